"""A sweep of many schemes in a narrow terminal, and in LaTeX."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from paceline.reports.sweep_page import _tex
from paceline.reports.sweep_tables import _SweepTable, beside_crossovers, sweep_cells

LABELS = [f"scheme number={number} of_many" for number in range(18)]


def answer_of(settings: int, repeats: int = 1) -> dict[str, Any]:
    """Times of eighteen schemes, the first of which is ahead; scheme 3 never arrives."""
    rows = []
    for setting in range(settings):
        summary = []
        for number, label in enumerate(LABELS):
            median = None if number == 3 else 1.5 + setting + number / 8
            ends = (median - 0.25, median + 0.25) if median and repeats > 4 else (None, None)
            time = {"median": median, "low": ends[0], "high": ends[1]}
            summary += [{"label": label, "time_to_target_s": time, "at_least_s": 9.25, "runs": repeats}]
        verdict = {"first": LABELS[0], "factor": 1.1, "interval": None, "settled": True}
        values = {"cluster.network.latency": f"{setting + 1} ms"}
        known = {
            "by_step": False,
            "outages": None,
            "settled": setting == 0,
            "summary": summary,
            "verdict": verdict,
        }
        rows.append({"set": values, **known})
    return {"settings": rows}


def test_a_sweep_says_who_encodes_for_nothing_and_averages_seldom() -> None:
    answer = answer_of(3)
    free = "the time to encode and decode values, of which `cluster.compute.encoding` says nothing"
    for each in answer["settings"][:2]:
        each["summary"][0]["leaves_out"] = [free]
    answer["settings"][2]["verdict"]["few_rounds"] = "Too short to say: ..."
    answer["settings"][2]["summary"][1]["leaves_out"] = [free]  # which is not first
    for each in answer["settings"]:
        each["outages"] = None
    told = beside_crossovers(answer)
    assert told[0] == f"In 2 of 3 settings {LABELS[0]} is first without {free}"
    assert told[1].startswith("Too short to say in 1 of 3 settings: below 16 rounds")
    assert len(told) == 2


def test_a_column_has_one_unit() -> None:
    answer = answer_of(2)
    for each, seconds in zip(answer["settings"], (119.0, 160.0), strict=True):
        each["summary"][1]["time_to_target_s"]["median"] = seconds
    assert [cells[2] for cells in sweep_cells(answer)] == ["119 s", "160 s"]


@pytest.mark.parametrize("width", [60, 80, 400])
def test_no_scheme_and_no_cell_is_dropped_in_a_narrow_terminal(width: int) -> None:
    """Blanks and line breaks aside, each label stands above its column, and each cell in its row."""
    answer = answer_of(4)
    console = Console(width=width, record=True, file=StringIO())
    rows = sweep_cells(answer)
    console.print(_SweepTable(answer, rows))
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    for cells in rows:
        found = " ".join(line for line in lines if line.startswith(cells[0])).split()
        assert sorted(found) == sorted(" ".join([*cells, *[cells[0]] * (text.count("latency") - 1)]).split())
    assert (text.count("latency") == 1) == (width == 400)
    assert text.count("scheme") == len(LABELS)


def test_latex_has_a_row_for_each_scheme() -> None:
    lines = _tex(answer_of(2)).splitlines()
    assert "scheme & latency 1 ms (s) & latency 2 ms (s)" in lines[2]
    assert lines[4].startswith(r"scheme number=0 of\_many & 1.50\rlap{$^\star$} & 2.50\rlap{$^?$}")
    assert lines[7].startswith(r"scheme number=3 of\_many & $>$ 9.25 & $>$ 9.25")
    assert len(lines) == 4 + len(LABELS) + 4
    assert lines[-2].startswith("% time to target, medians of repeats")
    assert lines[-1].startswith("% settled in 1; in 1 by one repeat")


def test_latex_has_intervals() -> None:
    lines = _tex(answer_of(1, repeats=5)).splitlines()
    assert lines[5].startswith(r"scheme number=1 of\_many & 1.62 (1.38 to 1.88)")


def test_latex_of_many_settings_has_a_row_for_each() -> None:
    assert len(_tex(answer_of(9)).splitlines()) == 4 + 9 + 2
