"""One page, one number: what has one name has one value in the terminal, on the page, in JSON, in papers."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from rich.console import Group
from rich.table import Table

from paceline.reports import words
from paceline.reports.folders import read_sources
from paceline.reports.page import _view, render
from paceline.reports.paper_files import write_files
from paceline.reports.tables import render_summary
from paceline.sim.records.folder import write_results
from paceline.sim.records.run import Evaluation, Run
from paceline.sim.records.summary import SchemeSummary, Summary
from paceline.sim.records.verdict import format_factor
from tests.support.html_page import Page
from tests.support.made_results import SCENARIO
from tests.support.made_runs import made_run, made_scenario

AMOUNT = re.compile(r"[\d,]+(?:\.\d+)? ?(?:µs|ms|min|[kMGTP]?B|[sh])\b")


def overshooting(label: str, seed: int, met_s: float, end_s: float, step_s: float, step_bytes: int) -> Run:
    """A run that met its target between two scorings, and went on to the next one."""
    met, steps = round(met_s / step_s), round(end_s / step_s)
    run = made_run(label, seed, reached_s=met_s, wall_s=end_s, steps=steps, num_bytes=steps * step_bytes)
    first, _, last = run.evaluations
    scores: dict[str, float | None] = {"train_loss": 0.6, "test_accuracy": 0.92, "consensus_distance": 0.1}
    return replace(run, evaluations=(first, Evaluation(met, met_s, met * step_bytes, scores), last))


@st.composite
def races(draw: st.DrawFn) -> list[Run]:
    """Schemes that go on for a while after the target; some never get there, in some repeats or in all."""
    runs = []
    for label in draw(st.sampled_from([("a", "b"), ("a", "b c", "d")])):
        step_s, sent = draw(st.floats(0.001, 0.5)), draw(st.integers(10**3, 10**9))
        late = draw(st.sampled_from([0.0, 0.0, 0.3, 1.0]))
        for seed in range(draw(st.sampled_from([1, 5, 6]))):
            met_s = step_s * draw(st.integers(10, 200))
            end_s = met_s + step_s * draw(st.integers(1, 60))
            run = overshooting(label, seed, met_s, end_s, step_s, sent)
            if draw(st.floats(0, 1, exclude_max=True)) < late:
                run = replace(
                    run, reached_target=False, time_to_target_s=None, evaluations=run.evaluations[::2]
                )
            runs.append(run)
    return runs


def cells_of_terminal(summary: Summary) -> dict[str, dict[str, str]]:
    drawn = render_summary(summary)
    assert isinstance(drawn, Group)
    table = next(each for each in drawn.renderables if isinstance(each, Table))
    names = [" ".join(str(column.header).split()) for column in table.columns]
    rows = zip(*([str(cell) for cell in column.cells] for column in table.columns), strict=True)
    return {row[0]: dict(zip(names, (cell.split("\n")[0] for cell in row), strict=True)) for row in rows}


def cells_of_page(page: Page) -> dict[str, dict[str, str]]:
    table = next(table for table in page.tables if "vs best" in [cell.lower() for cell in table[0]])
    names = [cell.lower() for cell in table[0]]
    return {row[0]: dict(zip(names, row, strict=True)) for row in table[1:]}


def cells_for_papers(text: str) -> dict[str, dict[str, str]]:
    plain = re.sub(r"\\phantom\{.\}", "", text.replace("$>$", ">"))
    lines = [line.removesuffix("\\\\").strip() for line in plain.splitlines() if "&" in line]
    rows = [[cell.strip() for cell in line.split("&")] for line in lines]
    return {row[0]: dict(zip(rows[0], row, strict=True)) for row in rows[1:]}


def numbers(cell: str) -> str:
    return " ".join(cell.split())


def check(runs: list[Run], folder: Path, scenario: str = SCENARIO) -> None:
    summary = write_results(folder / "r", scenario, "four", runs, force=True)
    (study,) = read_sources([folder / "r"])
    write_files(folder / "files", [study], [])
    page = Page(render([folder / "r"]))
    terminal, shown = cells_of_terminal(summary), cells_of_page(page)
    paper = cells_for_papers((folder / "files" / "table.tex").read_text())
    named = {"scheme", "status"}
    for label, row in terminal.items():
        for name in row.keys() - named:
            mine = {numbers(each[label][name]) for each in (paper, terminal) if name in each[label]}
            assert all(numbers(shown[label][name]).startswith(value) for value in mine), (label, name)
        assert {"vs best"} < row.keys() & shown[label].keys() & paper[label].keys()
    check_json(summary, terminal)
    check_words(summary, terminal, page.text)
    check_figures(study, summary)


def check_json(summary: Summary, terminal: dict[str, dict[str, str]]) -> None:
    """Every time, number of steps and amount in the terminal's table is one of its row in JSON."""
    rows = {row["label"]: row for row in summary["summary"]}
    for label, row in terminal.items():
        for name, key in NAMES.items():
            if name in row:
                assert numbers(row[name]) in said(rows[label], key), (label, name)


NAMES = {
    "time to target": ("time_to_target_s", "at_least_s", words.duration),
    "steps to target": ("steps_to_target", "at_least_steps", "{:,.0f}".format),
    "sent to target": ("bytes_to_target", "at_least_bytes", words.size),
    "time per step": ("step_s", "", words.duration),
    "wall clock": ("wall_clock_s", "", words.duration),
    "sent": ("bytes_sent", "", words.size),
}


def said(row: SchemeSummary, of: tuple[str, str, Any]) -> list[str]:
    key, least, write = of
    known: Any = dict(row)
    value = known[key]["median"] if isinstance(known[key], dict) else known[key]
    if value is None:
        bound = known.get(least)
        return ["-"] if bound is None else in_any_unit(bound, write, "> ")
    return in_any_unit(value, write)


def in_any_unit(value: float, write: Any, before: str = "") -> list[str]:
    """A time in any unit: the whole column has that of the smallest."""
    if write is not words.duration:
        return [before + write(value)]
    units = [words.time_unit([one]) for one in (1e-6, 1e-3, 1.0, 200.0, 8000.0)]
    return [before + words.duration(value, unit) for unit in units]


def number_of(amount: str) -> float:
    """A time in seconds; an amount of data in bytes."""
    number, unit = amount.split()
    units = dict([*words._TIMES, *words._SIZES])
    return float(number.replace(",", "")) * units[unit]


def check_words(summary: Summary, shown: dict[str, dict[str, str]], text: str) -> None:
    """Times and amounts in the sentences about medians and about equal terms stand in the table, too."""
    cells = " ".join(cell for row in shown.values() for cell in row.values())
    sentence = words.medians(summary) or ""
    for amount in AMOUNT.findall(sentence):
        value = pytest.approx(number_of(amount), rel=0.006)
        assert any(number_of(each) == value for each in AMOUNT.findall(cells)), (amount, cells)
    first, *others = words.ranked(summary)
    times = [row["time_to_target_s"]["median"] or math.nan for row in (first, *others[:1])]
    factor = others[0]["ratio_to_best"]["median"] if others else None
    if factor is not None and not any(map(math.isnan, times)) and first["runs"] > 1:
        quotient, paired = (format_factor(value) for value in (times[1] / times[0], factor))
        note = words.paired(summary) or ""
        wanted = f"{paired} for {others[0]['label']}, where the medians' quotient is {quotient}"
        assert quotient == paired or wanted in note
        assert note.replace(" ", "") in text.replace(" ", "").replace("\u00a0", "")
    if (equal := summary["equal"]) is not None and first["bytes_to_target"] is not None:
        assert equal["bytes"] == first["bytes_to_target"]
        assert equal["time_s"] == first["time_to_target_s"]["median"]
    headline = summary["verdict"]["text"]
    if summary["verdict"]["settled"] and factor is not None:
        assert f"{format_factor(factor)} as fast as {others[0]['label']}" in headline


def check_figures(study: Any, summary: Summary) -> None:
    """A bar is as long as its row's number in the table."""
    rows = {row["label"]: row for row in summary["summary"]}
    data: dict[str, pd.DataFrame] = {p.name.split("-", 2)[2]: p.data for p in _view(study)["pictures"]}
    for name in ("step-cost", "run-cost"):
        for bar in data[name].to_dict("records"):
            length_s = bar["compute_s"] + bar["communicate_s"] + bar["wait_s"]
            row = rows[str(bar["label"])]
            by_step = row["wall_clock_s"] if summary["target"] is None else None
            whole = by_step or row["time_to_target_s"]["median"] or row["at_least_s"]
            wanted = row["step_s"]["median"] if name == "step-cost" else whole
            assert length_s == pytest.approx(wanted, rel=1e-9), (name, bar)


@pytest.mark.slow
@settings(max_examples=5, phases=[Phase.generate])
@given(races())
def test_one_name_one_number(tmp_path_factory: pytest.TempPathFactory, runs: list[Run]) -> None:
    check(runs, tmp_path_factory.mktemp("race"))


@pytest.mark.usefixtures("undrawn")
def test_one_name_one_number_without_a_target(tmp_path: Path) -> None:
    """Repeats that took unequal times and sent unequal amounts: a mean of them is not their median."""
    runs = [
        made_run(label, seed, reached_s=None, wall_s=each * (1 + 3 * (seed == 2)), num_bytes=9**seed * 1000)
        for label, each in (("a", 10.0), ("b", 12.0))
        for seed in range(5)
    ]
    check(runs, tmp_path, made_scenario("four"))


@pytest.mark.usefixtures("undrawn")
def test_a_median_of_ratios_is_no_ratio_of_medians(tmp_path: Path) -> None:
    times = ([5.0, 6.0, 8.0, 9.0, 12.0], [9.0, 9.5, 10.0, 13.0, 17.0])
    order = (range(5), (4, 3, 0, 1, 2))
    runs = [
        overshooting(label, seed, column[place], column[place] + 1.0, 0.1, 10**6)
        for label, column, places in zip("ab", times, order, strict=True)
        for seed, place in enumerate(places)
    ]
    check(runs, tmp_path)
