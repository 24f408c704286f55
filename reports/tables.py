"""The summary as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paceline.sim.records.summary import Row, Summary

from . import words

if TYPE_CHECKING:
    from rich.table import Table


def render(summary: Summary) -> Table:
    """One line per scheme (and source, if there are two), best first.

    Medians over repeats with their 95 % interval for the time to target, means for everything else.
    """
    from rich.table import Table
    from rich.text import Text

    rows = summary["summary"]
    sources = list(dict.fromkeys(row["source"] for row in rows))
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("scheme", overflow="fold", min_width=18)
    if len(sources) > 1:
        table.add_column("source", no_wrap=True)
    for name in ("time to\ntarget", "vs\nbest", "steps", "sent", "compute /\ncomm. / wait"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("status", min_width=11)
    for source in sources:
        mine = words.ranked(summary, source)
        unit = column_unit(mine)
        for row in mine:
            best = row["label"] == mine[0]["label"] and row["time_to_target_s"]["median"] is not None
            cells = [row["label"], *([source] if len(sources) > 1 else []), *_cells(summary, row, unit)]
            # Text, not str: a label is not markup.
            table.add_row(*(Text(cell, style="bold" if best else "") for cell in cells))
    return table


def _cells(summary: Summary, row: Row, unit: tuple[str, float]) -> list[str]:
    ratio = row["ratio_to_best"]["median"]
    return [
        "\n".join(part for part in time_to_target(summary, row, unit) if part),
        words.factor(ratio) if ratio is not None else "-",
        f"{row['iterations']:,.0f}",
        words.size(row["bytes_sent"]),
        shares(row),
        status(summary, row),
    ]


def shares(row: Row) -> str:
    """Compute, communicate and wait in per cent of the wall clock."""
    wall_s = row["wall_clock_s"] or 1.0
    parts = row["time_s"]["compute"], row["time_s"]["communicate"], row["time_s"]["wait"]
    return " / ".join(f"{100 * part / wall_s:.0f}" for part in parts) + " %"


def column_unit(rows: Sequence[Row]) -> tuple[str, float]:
    """The unit for a column of times to target, or of what is known of them."""
    known = (row["time_to_target_s"]["median"] or row["at_least_s"] or row["wall_clock_s"] for row in rows)
    return words.time_unit(known)


def time_to_target(summary: Summary, row: Row, unit: tuple[str, float] | None = None) -> tuple[str, str]:
    """A row's time to target, ``> bound`` where it is censored, and its interval ('' for none)."""
    time = row["time_to_target_s"]
    if time["median"] is None:
        if not wanted(summary) or row["at_least_s"] is None:
            return "-", ""
        return f"> {words.duration(row['at_least_s'], unit)}", ""
    text = words.duration(time["median"], unit)
    if time["low"] is None:
        return text, ""
    _, second = unit or words.time_unit([time["median"]])
    high = "∞" if time["high"] is None else words.digits(time["high"] / second)
    return text, f"{words.digits(time['low'] / second)} to {high}"


def status(summary: Summary, row: Row) -> str:
    """How a row's repeats ended."""
    found: list[str] = []
    if wanted(summary):
        if row["diverged"] == row["runs"]:
            found = []
        elif row["runs"] > 1:
            found = [f"reached {row['reached']}/{row['runs']}"]
        elif row["reached"]:
            found = ["reached"]
        elif not row["diverged"] and not row["partial"]:
            found = ["not reached"]
    elif not row["diverged"] and not row["partial"]:
        found = ["completed"]
    for name, count in (("diverged", row["diverged"]), ("partial", row["partial"])):
        if count:
            found.append(name if row["runs"] == 1 else f"{name} {count}/{row['runs']}")
    return ", ".join(found)


def wanted(summary: Summary) -> bool:
    """Whether the runs had a target at all."""
    return summary["target"] is not None or any(run["reached_target"] for run in summary["runs"])
