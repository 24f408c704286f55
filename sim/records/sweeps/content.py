"""The content of ``sweep.json``: changes and verdict of each setting, and what holds between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..summary import Summary, is_by_step, is_settled
from .crossovers import find_crossovers
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
