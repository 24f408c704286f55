"""What workers did in their first steps, from events.

A worker's lane divides as its account does: *compute* while a gradient of it runs, *wait* while its main
coroutine is blocked and the last needed peer has not started, *communicate* while it is blocked after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

Box = tuple[float, float]

_STEPS: Final = 4
_MOST_STEPS: Final = 40
_NO_EXCHANGE: Final = frozenset(
    {"gradient", "segment", "wait", "wait_any", "poll", "now", "next_step", "sleep"}
)
_RESUMPTIONS: Final = frozenset({"wait", "wait_any"})
"""Rows about a started operation (they carry its handle) in which the main coroutine was blocked."""


@dataclass(frozen=True)
class Lane:
    """One worker up to some time.

    Attributes:
        worker: its rank.
        main: ``compute``, ``communicate`` and ``wait`` -> intervals in seconds, disjoint.
        background: transfers of started operations and of services, after their peers had started.
    """

    worker: int
    main: dict[str, list[Box]]
    background: list[Box]


def span_s(runs: Sequence[pd.DataFrame]) -> float:
    """How much of several runs to show: some steps and an exchange of each, on one scale.

    No more than what keeps the steps of the fastest visible.
    """
    needed = [max(_steps_end_s(run, _STEPS), _first_exchange_s(run)) for run in runs]
    most = [_steps_end_s(run, _MOST_STEPS) for run in runs]
    return min(max(needed, default=0.0), min(most, default=0.0)) or 1.0


def lanes(events: pd.DataFrame, end_s: float, workers: int) -> list[Lane]:
    """The first ``workers`` workers of one run, by rank, up to ``end_s``."""
    shown = events[(events["start_s"] < end_s) & (events["worker"] < workers)]
    return [_lane(int(str(worker)), mine, end_s) for worker, mine in shown.groupby("worker", sort=True)]


def _lane(worker: int, events: pd.DataFrame, end_s: float) -> Lane:
    operation = events["operation"].astype(str)
    gradients = events[operation == "gradient"]
    compute = _union(zip(gradients["start_s"], gradients["end_s"], strict=True), end_s)
    resumed = (events["handle"] < 0) | operation.isin(_RESUMPTIONS)
    awaited = events[(operation != "gradient") & (events["task"] == 0) & resumed]
    peer_s = np.where(awaited["operation"].astype(str) == "sleep", awaited["end_s"], awaited["peer_s"])
    wait = _union(zip(awaited["start_s"], peer_s, strict=True), end_s)
    communicate = _union(zip(peer_s, awaited["end_s"], strict=True), end_s)
    beside = events[~operation.isin(_NO_EXCHANGE) & ((events["task"] > 0) | (events["handle"] >= 0))]
    return Lane(
        worker,
        {"compute": compute, "communicate": _without(communicate, compute), "wait": _without(wait, compute)},
        _union(zip(beside["peer_s"], beside["end_s"], strict=True), end_s),
    )


def _steps_end_s(run: pd.DataFrame, steps: int) -> float:
    """When the median worker had done so many steps."""
    main = run[(run["task"] == 0) & (run["step"] < steps)]
    return float(main.groupby("worker")["end_s"].max().median())


def _first_exchange_s(run: pd.DataFrame) -> float:
    """When the median worker had ended its first exchange; 0 if there was none."""
    exchanges = run[(run["task"] == 0) & ~run["operation"].astype(str).isin(_NO_EXCHANGE)]
    return float(exchanges.groupby("worker")["end_s"].min().median()) if len(exchanges) else 0.0


def _union(boxes: Iterable[Box], end_s: float) -> list[Box]:
    """Disjoint intervals, ascending, cut off at ``end_s``."""
    out: list[Box] = []
    for start, end in sorted(boxes):
        end = min(end, end_s)
        if start >= end:
            continue
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((start, end))
    return out


def _without(boxes: Sequence[Box], holes: Sequence[Box]) -> list[Box]:
    """What of disjoint intervals lies outside other disjoint intervals."""
    out: list[Box] = []
    for start, end in boxes:
        for left, right in holes:
            if right <= start or left >= end:
                continue
            if left > start:
                out.append((start, left))
            start = right
            if start >= end:
                break
        if start < end:
            out.append((start, end))
    return out
