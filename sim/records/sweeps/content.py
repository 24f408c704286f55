"""What a sweep keeps: ``sweep.json``, with what holds between settings, and a table of all runs.

Crossovers are values of a key from which on another scheme is first. Schemes are paired by seed. On each seed
the difference of two schemes' times is interpolated between the settings on either side of its change of
sign: linearly in the key, or in the inverse of a data rate, in which the time of a message is linear. The
crossover is the median over seeds, with an interval for chance and for the bend between settings.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import pyarrow as pa
from typing_extensions import TypedDict

from ...config.problems import short_keys, show_value
from ...config.units import Format, format_plain, format_rate, read_numbers
from ..formats.parquet import WORDS
from ..intervals import Interval, of_median
from ..rows import RunRow, Shares
from ..summary import Summary, is_by_step, is_settled, main_source, race_times
from .draws import describe_draws

SWEEP_FILE: Final = "sweep.json"
SWEEP_VERSION: Final = 1
WORKERS_KEY: Final = "cluster.workers"


def describe_sweep(
    folders: Sequence[str],
    settings: Sequence[Mapping[str, Any]],
    summaries: Sequence[Summary],
    ranges: Mapping[str, Sequence[Any]] | None = None,
) -> dict[str, Any]:
    """Content of ``sweep.json`` and ``--json``: changes and verdict of each setting, and the crossovers.

    ``ranges``: key -> what its values were drawn from, if they were.
    """
    rows = [
        {
            "folder": folder,
            "set": dict(setting),
            "winner": summary["winner"],
            "verdict": summary["verdict"],
            "settled": is_settled(summary),
            "outages": _outages(summary),
            "by_step": is_by_step(summary),
            "transport": summary.get("transport"),
            "summary": summary["summary"],
        }
        for folder, setting, summary in zip(folders, settings, summaries, strict=True)
    ]
    between = steps_between(rows)
    firsts = [summary["verdict"]["first"] for summary in summaries]
    return {
        "version": SWEEP_VERSION,
        "scenario": summaries[0]["scenario"],
        **({"ranges": dict(ranges)} if ranges else {}),
        "settings": rows,
        "crossovers": find_crossovers(settings, summaries),
        **({"steps_between": between} if between else {}),
        **({"draws": describe_draws(settings, ranges, firsts)} if ranges else {}),
    }


def _outages(summary: Summary) -> int | None:
    """Number of faults in all runs; None where none can happen."""
    known = [run["faults"]["outages"] for run in summary["runs"] if "faults" in run]
    return sum(known) if known else None


def steps_at(workers: int, known: Mapping[int, float]) -> float:
    """Steps to the target at ``workers``, from those at fewer and at more of them, with equal batches.

    With a critical batch B, n workers with batches of b need S (1 + B / (n b)) steps, a straight line in
    1 / n.

    Source:
        McCandlish, Kaplan, Amodei et al., An empirical model of large-batch training, arXiv 1812.06162,
        eq. 2.7.
    """
    (few, steps_few), (many, steps_many) = sorted(known.items())
    share = (1 / workers - 1 / many) / (1 / few - 1 / many)
    return steps_many + share * (steps_few - steps_many)


def steps_between(settings: Sequence[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Steps of all-reduce at doubled numbers of workers between the ends of a sweep over these alone.

    None where it misses the target at an end, or needs more steps with more workers; other schemes have no
    such law.

    Args:
        settings: of ``sweep.json``.
    """
    by_label: dict[str, dict[int, float]] = {}
    for setting in settings:
        if list(setting["set"]) == [WORKERS_KEY]:
            for row in (row for row in setting["summary"] if row["scheme"] == "all_reduce"):
                by_label.setdefault(row["label"], {})[setting["set"][WORKERS_KEY]] = row["steps_to_target"]
    estimates = {}
    for label, steps in by_label.items():
        few, many = min(steps), max(steps)
        doubled = (few * 2**k for k in range(1, many.bit_length()))
        between = [workers for workers in doubled if workers < many and workers not in steps]
        if between and steps[few] and steps[many] and steps[few] >= steps[many]:
            ends = {few: steps[few], many: steps[many]}
            estimates[label] = {workers: steps_at(workers, ends) for workers in between}
    return estimates


class Crossover(TypedDict):
    """A change of the first scheme along one key.

    Attributes:
        text: a sentence without a full stop.
        settled: the order is settled on both sides, or the whole interval lies inside the sweep's values.
        key: of the scenario.
        others: values of the sweep's other keys.
        before, after: labels of the first schemes below and above.
        between: the neighbouring values of the key at which they are first.
        at: the key's value in SI where both take equally long; None for an end outside the sweep's values.
    """

    text: str
    settled: bool
    key: str
    others: dict[str, Any]
    before: str
    after: str
    between: list[Any]
    at: Interval


def find_crossovers(settings: Sequence[Mapping[str, Any]], summaries: Sequence[Summary]) -> list[Crossover]:
    """Find all changes of the first scheme along the keys whose values are all numbers, or all quantities."""
    crossovers = []
    for key in settings[0]:
        if (numbers := read_numbers([setting[key] for setting in settings])) is None:
            continue
        values, written = numbers
        lines: dict[str, list[tuple[float, int]]] = {}
        for place, value in enumerate(values):
            lines.setdefault(repr(_others(settings[place], key)), []).append((value, place))
        for line in lines.values():
            crossovers += _along(key, written, sorted(line), settings, summaries)
    return crossovers


def _others(setting: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in setting.items() if name != key}


def _along(
    key: str,
    written: Format,
    line: Sequence[tuple[float, int]],
    settings: Sequence[Mapping[str, Any]],
    summaries: Sequence[Summary],
) -> list[Crossover]:
    """Crossovers along one line of settings: values of the key in ascending order, and their places."""
    values = [value for value, _ in line]
    own = [summaries[place] for _, place in line]
    firsts = [summary["verdict"]["first"] for summary in own]
    crossovers = []
    for place, (before, after) in enumerate(pairwise(firsts)):
        if before is None or after is None or before == after:
            continue
        times = [race_times(summary, main_source(summary)) for summary in own]
        seeds = set.intersection(*(set(each.get(label, ())) for each in times for label in (before, after)))
        less = [[_less(each[before][seed], each[after][seed]) for each in times] for seed in seeds]
        low, median, high = zip(
            *(crossing(values, each, place, written is format_rate) for each in less), strict=True
        )
        at = Interval(
            median=of_median(median)["median"], low=of_median(low)["low"], high=of_median(high)["high"]
        )
        left, right = (settings[line[near][1]] for near in (place, place + 1))
        beside = all(map(is_settled, own[place : place + 2]))
        change = Crossover(
            text="", settled=beside or None not in at.values(), key=key, others=_others(left, key),
            before=before, after=after, between=[left[key], right[key]], at=at,
        )  # fmt: skip
        change["text"] = _sentence(change, written)
        crossovers.append(change)
    return crossovers


def _sentence(change: Crossover, written: Format) -> str:
    *others, name = short_keys([*change["others"], change["key"]])
    values = map(show_value, change["others"].values())
    where = "".join(f"{other} {value}: " for other, value in zip(others, values, strict=True))
    ends = [change["at"][end] for end in ("median", "low", "high")]
    median, low, high = (None if end is None else written(end) for end in ends)
    between = " and ".join(map(str, change["between"]))
    if None not in (median, low, high):
        beyond = f"{median} ({low} to {high})"
    elif change["settled"] and median is not None:
        beyond = f"about {median} (a value between {between})"
    else:
        beyond = f"a value between {between} (not settled)"
    return f"{where}beyond {beyond} of {name}, {change['after']} is ahead of {change['before']}"


def _less(before_s: float, after_s: float) -> float:
    return 0.0 if before_s == after_s else before_s - after_s


def crossing(
    values: Sequence[float], differences: Sequence[float], near: int = 0, inverse: bool = False
) -> tuple[float, float, float]:
    """Value at which differences of one seed turn positive, between bounds; infinite if not in ``values``.

    >>> crossing([0.0, 1.0, 3.0, 4.0], [-2.0, -1.0, 3.0, 6.0])
    (1.5, 1.5, 2.0)
    >>> crossing([1.0, 2.0], [-2.0, -1.0])
    (inf, inf, inf)

    A curve bent to one side lies between its chord and the lines through the points before and behind, whose
    zeros are the bounds; at the ends of ``values`` it may be flat beyond them. Beside an infinite difference
    (a run that never got there) it is halfway.

    Args:
        values: ascending.
        near: place in ``values``: of several, the next one to it counts.
        inverse: interpolate in 1 / value.
    """
    turns = [k for k, (a, b) in enumerate(pairwise(differences)) if a <= 0 < b]
    if not turns:
        nowhere = -math.inf if differences[-1] > 0 else math.inf
        return nowhere, nowhere, nowhere
    k = min(turns, key=lambda k: abs(k - near))
    at = [1 / value if inverse else value for value in values]
    below, above, width = differences[k], differences[k + 1], at[k + 1] - at[k]
    part, ends = 0.5, (0.0, 1.0)
    if math.isfinite(above - below):
        before = (below - differences[k - 1]) * width / (at[k] - at[k - 1]) if k else 0.0
        after = (differences[k + 2] - above) * width / (at[k + 2] - at[k + 1]) if k + 2 < len(at) else 0.0
        part = -below / (above - below)
        ends = (
            min(-below / before, 1.0) if before > 0 else 1.0,
            max(1 - above / after, 0.0) if after > 0 else 0.0,
        )
    low = max((end for end in ends if end <= part), default=part)
    high = min((end for end in ends if end >= part), default=part)
    least, median, most = (at[k] + each * width for each in (low, part, high))
    return (1 / least, 1 / median, 1 / most) if inverse else (least, median, most)


RUNS_FILE: Final = "runs.parquet"

_COLUMNS: Final = {
    "label": WORDS, "scheme": WORDS, "seed": pa.int64(), "status": WORDS, "reached_target": pa.bool_(),
    "time_to_target_s": pa.float64(), "steps_to_target": pa.int64(), "step_s": pa.float64(),
    "wall_clock_s": pa.float64(), "iterations": pa.float64(),
    "bytes_sent": pa.int64(), **{f"{part}_s": pa.float64() for part in Shares.__annotations__},
}  # fmt: skip


def tabulate_runs(
    folders: Sequence[str], settings: Sequence[Mapping[str, Any]], summaries: Sequence[Summary]
) -> pa.Table:
    """Tabulate each run beside the folder of its setting and the values set; docs/records.md has the columns.

    Numbers and quantities of one kind are in SI; other values are text, or JSON where they are neither.
    """
    rows = [(number, run) for number, summary in enumerate(summaries) for run in summary["runs"]]
    columns = {"setting": pa.array([folders[number] for number, _ in rows], pa.string())}
    for key in settings[0]:
        values = _plain([setting[key] for setting in settings])
        name = key if key not in _COLUMNS else f"set.{key}"
        columns[name] = pa.array([values[number] for number, _ in rows])
    cells = [dict(_cells(run)) for _, run in rows]
    metrics = dict.fromkeys(name for each in cells for name in each if name not in _COLUMNS)
    for name in (*_COLUMNS, *metrics):
        columns[name] = pa.array([each.get(name) for each in cells], _COLUMNS.get(name, pa.float64()))
    return pa.table(columns)


def _plain(values: Sequence[Any]) -> list[float] | list[int] | list[str]:
    numbers = read_numbers(values)
    if numbers is None:
        return [value if isinstance(value, str) else json.dumps(value) for value in values]
    if numbers[1] is format_plain and all(isinstance(value, int) for value in values):
        return list(values)
    return numbers[0]


def _cells(run: RunRow) -> Iterator[tuple[str, Any]]:
    yield from ((name, value) for name, value in run.items() if name in _COLUMNS)
    yield from ((f"{name}_s", value) for name, value in {"idle": 0.0, "down": 0.0, **run["time_s"]}.items())
    yield from ((f"final.{name}", value) for name, value in run["final"].items())
