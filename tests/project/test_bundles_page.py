"""The table of bundles is made from the files in docs/bundles, which are small and name nobody."""

from __future__ import annotations

import json
import platform
from pathlib import Path

import pytest

from benchmarks.validation import bundles
from paceline.sim.errors import InputError

MAX_BYTES = 350_000
"""Of a bundle in this repository."""


def test_the_page_has_a_row_for_each_bundle() -> None:
    page = bundles.PAGE.read_text(encoding="utf-8")
    assert bundles.with_table(page, bundles.section(bundles.committed())) == page
    assert page.count("](bundles/") == len(bundles.committed()) >= 1


@pytest.mark.parametrize("path", bundles.committed(), ids=lambda path: path.stem)
def test_a_bundle_is_small_and_without_names(path: Path) -> None:
    assert path.stat().st_size < MAX_BYTES
    document = json.loads(path.read_text(encoding="utf-8"))
    hosts = {each["host"] for run in document["summary"]["runs"] for each in run.get("machines", [])}
    assert all(host.startswith("host-") for host in hosts)
    assert platform.node() not in document["profile"]["machine"].split(", ")


def test_a_row_cannot_leave_its_table(tmp_path: Path) -> None:
    file = tmp_path / "a | b.json"
    file.write_bytes(bundles.committed()[0].read_bytes())
    row = bundles.section([file])[-1]
    assert "a \\| b" in row
    assert row.count(" | ") == 7  # between eight cells


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(InputError, match=r"is no file of 'paceline report --bundle'"):
        bundles.section([tmp_path / "x.json"])
