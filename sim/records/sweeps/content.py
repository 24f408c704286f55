"""The content of ``sweep.json``: changes and verdict of each setting, and what holds between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ...config.files import is_file, read_json
from ...errors import InputError
from ..folder import read_results
from ..summary import Summary, is_by_step, is_settled
from .crossovers import find_crossovers
from .draws import describe_draws
from .runs import tabulate_runs

SWEEP_FILE: Final = "sweep.json"
_VERSION: Final = 1
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
        "version": _VERSION,
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


def is_sweep(folder: Path) -> bool:
    """Whether a folder holds a sweep's results."""
    return is_file(folder / SWEEP_FILE)


def read_sweep(folder: Path) -> tuple[dict[str, Any], pa.Table]:
    """Describe the sweep in a folder anew from its settings' results, older ones too, and tabulate its runs.

    Raises ``InputError`` where a file is missing, damaged or foreign.
    """
    path = folder / SWEEP_FILE
    content = read_json(path, "sweep")
    rows, ranges = content.get("settings"), content.get("ranges") or {}
    if content["version"] != _VERSION or not isinstance(rows, list) or not _are_rows(rows, ranges):
        raise InputError(f"{path}: is damaged, or of another version; make these results again")
    summaries = [read_results(folder / row["folder"]).summary for row in rows]
    for row, summary in zip(rows, summaries, strict=True):
        kept = [each.get("wall_clock_s") for each in row["summary"]]
        if kept != [each["wall_clock_s"] for each in summary["summary"]]:
            raise InputError(f"{path}: is not of the results in {row['folder']}; make these results again")
    names, settings = ([row[key] for row in rows] for key in ("folder", "set"))
    return describe_sweep(names, settings, summaries, ranges), tabulate_runs(names, settings, summaries)


def _are_rows(rows: Sequence[Any], ranges: object) -> bool:
    """Whether each of these has a folder of its own, and all have values of the same keys."""
    keys = dict[str, frozenset[object]]()
    for row in rows:
        match row:
            case {"folder": str(name), "set": {**values}, "summary": [{}, *_]} if name.isdecimal():
                keys[name] = frozenset(values)
            case _:
                return False
    alike = len({*keys.values()}) == 1 and len(keys) == len(rows)
    return alike and isinstance(ranges, dict) and all(ranges.keys() <= each for each in keys.values())


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
