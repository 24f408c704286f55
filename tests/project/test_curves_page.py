"""docs/curves.md: its example runs, and its table is what the program makes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import paceline
from benchmarks.ft_diloco_curves import BAR, LEVELS, MARK, PAGE, Crossing, crossings, in_order, page

TEXT = PAGE.read_text(encoding="utf-8")


def test_the_example_runs(tmp_path: Path) -> None:
    files = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", TEXT, flags=re.DOTALL)
    for name, content in files:
        (tmp_path / name).write_text(content)
    assert sum(content.count("\n") for _, content in files) <= 20
    study = paceline.simulate(tmp_path / "priced.yaml", jobs=1, progress=False)
    assert study.winner == "diloco"
    assert all(run.reached_target for run in study.runs)


def test_pairs_in_order_are_counted() -> None:
    priced = [
        Crossing(2.0, 25, 10, 1.0, 1.1),
        Crossing(2.0, 100, 10, 2.0, 1.0),
        Crossing(2.0, 500, 10, 3.0, 3.0),
    ]
    assert in_order(priced) == 2


@pytest.mark.slow
def test_the_table_is_what_the_program_makes() -> None:
    made = [crossings(level) for level in LEVELS]
    assert TEXT.partition(MARK)[2] == page(made)
    assert max(abs(each.error) for level in made for each in level) <= BAR
    assert sum(map(in_order, made)) == 9
