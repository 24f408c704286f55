"""CSV files of quantities with units."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.sim.config.csv_tables import read_table
from paceline.sim.errors import InputError


@pytest.mark.parametrize(
    "text",
    [
        "a [ms],b\n1,x\n",
        "\ufeffa [ms];b\r\n1;x\r\n",
        "# from a spreadsheet, in German\na [ms]\tb\n1\tx\n",
        "a [ms],b\n,\n1,x\n,\n",
    ],
)
def test_tables_as_spreadsheets_write_them(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(text.encode())
    table = read_table(path)
    assert (table.names, table.units) == (("a", "b"), ("ms", ""))
    assert [cells for _, cells in table.rows] == [("1", "x")]


@pytest.mark.parametrize("text", ["51 ms\n52 ms\n", "0 s,100 Mbit/s\n10 s,50 Mbit/s\n"])
def test_a_table_without_a_header_loses_no_row(tmp_path: Path, text: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=r"t\.csv:1: is a row of values"):
        read_table(path)
