"""A recommendation for the terminal: what to run, how sure that is, and the candidates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from paceline.reports import words
from paceline.reports.tables import add_text_row, plain_table

_SHOWN = 12
"""Candidates in the terminal; --json has all."""


def render_recommendation(answer: Mapping[str, Any]) -> RenderableType:
    """What to run, how sure that is, the candidates, where another is ahead, and what to measure."""
    if answer["first"] is None:
        head = Text(f"Nothing to recommend: {answer['text']}.", style="bold")
    else:
        values = ", ".join(f"{key} {value:g}" for key, value in answer["values"].items())
        head = Text(f"Run {answer['first']}{f' with {values}' if values else ''}.", style="bold")
    sure = [f"{answer['text'][0].upper()}{answer['text'][1:]}."] if answer["first"] else []
    if answer["examples"]:
        sure.append(answer["examples"]["text"])
    return Group(
        head, *(Text(each) for each in sure), "", _table(answer), "", *(Text(each) for each in _notes(answer))
    )


def _table(answer: Mapping[str, Any]) -> RenderableType:
    table = plain_table()
    table.add_column("candidate", overflow="fold", min_width=14)
    for name in ("a step", "time to\\ntarget".replace("\\n", "\n"), "sent", words.plain(answer["score"])):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", min_width=12)
    rows = sorted(answer["candidates"], key=_order)
    for row in rows[:_SHOWN]:
        cells = (
            "-" if row["step_s"] is None else words.duration(row["step_s"]),
            "-" if row["time_to_target_s"] is None else words.duration(row["time_to_target_s"]),
            "-" if row["bytes"] is None else words.size(row["bytes"]),
            "-" if row["score"] is None else words.digits(row["score"]),
        )
        add_text_row(table, row["label"], *cells, _status(row, answer))
    if len(rows) > _SHOWN:
        add_text_row(table, f"and {len(rows) - _SHOWN} more", "", "", "", "", "(--json has all)")
    return table


def _order(row: Mapping[str, Any]) -> tuple[bool, bool, float, float]:
    time_s = row["time_to_target_s"]
    return not row["last"], time_s is None, time_s or 0.0, row["step_s"] or 0.0


def _status(row: Mapping[str, Any], answer: Mapping[str, Any]) -> str:
    if row["outdone_by"]:
        return f"step no faster than {row['outdone_by']}'s"
    parts = ["★" if row["label"] == answer["first"] else "", "Pareto" if row["front"] else ""]
    if not row["last"]:
        parts.append("left the race" if row["time_to_target_s"] is not None else "cut off, behind")
    return " ".join(filter(None, parts))


def _notes(answer: Mapping[str, Any]) -> list[str]:
    notes = [f"{each['text']}." for each in answer["crossovers"]]
    turning = {each["key"] for each in answer["crossovers"]}
    steady = [key.removeprefix("cluster.") for key in answer["varied"] if key not in turning]
    if steady and answer["second"]:
        notes.append(
            f"{answer['first']} stays ahead of {answer['second']} at {1 / answer['furthest']:g} to "
            f"{answer['furthest']:g} times {words.listed(steady)}."
        )
    if answer["measure_next"]:
        notes.append(f"Measure next: {answer['measure_next']}.")
    if answer["outside_measured"]:
        notes.append(f"Outside what was measured (docs/board.md): {words.listed(answer['measured'])}.")
    else:
        notes.append("The cluster lies inside what was measured (docs/board.md).")
    notes.append(f"{answer['trials']} trials and {answer['runs']} runs of the last {answer['finalists']}.")
    return notes


def render_periods(answer: Mapping[str, Any]) -> RenderableType:
    """The smallest periods by seconds alone: a line for each scheme."""
    lines = []
    for row in answer["schemes"]:
        if "problem" in row:
            lines.append(f"{row['label']}: {row['problem']}.")
            continue
        every = "at every step" if row["period"] == 1 else f"every {row['period']:,} steps"
        lines.append(
            f"{row['label']}: average {every}. A step takes {words.duration(row['step_s'])}, an average "
            f"{words.duration(row['average_s'])}: then averages take {100 * row['share']:.1f} % of the time, "
            f"and more often they take over {words.percent(answer['share'])}."
        )
    note = (
        "By seconds alone: nothing is trained here, and averaging seldom may cost examples. Add a task and "
        "stop.target, or measured curves (workload.curves), and candidates race."
    )
    return Group(*(Text(line, style="bold") for line in lines), "", Text(note))
