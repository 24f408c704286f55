"""What a set of runs says: per run, per scheme over its repeats, and who won.

Repeats are compared by their median time to target. A run that never reached the target counts as
infinitely late, so that it is never dropped: a scheme has a median if most of its repeats got there.
Intervals hold 90 %, by bootstrap over the repeats; two schemes are compared on the seeds that they
share, which saw the same data and the same stragglers, so that ratios vary less than times.

Everything here is plain JSON: ``None`` where a number is missing or not finite, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NotRequired

import numpy as np
from numpy.typing import NDArray
from typing_extensions import TypedDict

from sim.errors import InputError
from sim.records import Run, Source, Status

VERSION: Final = 1
"""Of ``summary.json``; changes when an older reader would misunderstand it."""

_LEVEL: Final = 0.9
_RESAMPLES: Final = 10_000
_SEED: Final = 20_260_101
_ALWAYS: Final = ("train_loss", "test_accuracy", "consensus_distance")

Floats = NDArray[np.float64]


class Interval(TypedDict):
    """A median over repeats with its 90 % interval.

    ``median`` is None if most repeats never got there. ``low`` and ``high`` are None with one repeat;
    otherwise a bound is None where it is infinite.
    """

    median: float | None
    low: float | None
    high: float | None


class Shares(TypedDict):
    """Seconds per worker; add up to the wall clock."""

    compute: float
    communicate: float
    wait: float


class RunRow(TypedDict):
    """One run. ``final``: the last scores, None for a metric that the task lacks; ``digest``: see ``Run``."""

    scheme: str
    label: str
    seed: int
    source: Source
    reached_target: bool
    time_to_target_s: float | None
    wall_clock_s: float
    iterations: float
    final: dict[str, float | None]
    bytes_sent: int
    time_s: Shares
    status: Status
    message: NotRequired[str]
    digest: str


class Row(TypedDict):
    """One scheme, over its repeats.

    Attributes:
        runs, reached, diverged, partial: numbers of repeats.
        at_least_s: a lower bound on the median time to target where that is unknown because runs
            ended too early; None where it is known, or where most repeats diverged.
        ratio_to_best: time to target over the winner's, on the seeds that both have.
        p_win: share of the bootstrap's resamples in which this scheme is first; None with one repeat.
        steps_to_target: median; None like the median time.
        wall_clock_s, iterations, bytes_sent, time_s: means.
    """

    scheme: str
    label: str
    source: Source
    runs: int
    reached: int
    diverged: int
    partial: int
    time_to_target_s: Interval
    at_least_s: float | None
    ratio_to_best: Interval
    p_win: float | None
    steps_to_target: float | None
    wall_clock_s: float
    iterations: float
    bytes_sent: float
    time_s: Shares


class Goal(TypedDict):
    """The score that ends a run."""

    metric: str
    value: float


class Lead(TypedDict):
    """By what factor the winner is faster than the second: times of the second over the winner's."""

    second: str
    factor: Interval


class Summary(TypedDict):
    """The JSON object of ``simulate`` and ``realrun``, and of ``summary.json``.

    ``winner``: the label with the smallest median time to target; None where nobody has one. If both
    simulated and measured runs are there, it is about the source of the first run.
    """

    version: int
    scenario: str
    target: Goal | None
    runs: list[RunRow]
    summary: list[Row]
    winner: str | None
    lead: Lead | None


def summarise(scenario_name: str, runs: Sequence[Run], target: Goal | None = None) -> Summary:
    """Summarise runs; rows come in the order in which their schemes first appear.

    Args:
        scenario_name: copied.
        runs: any number of them, one or both sources.
        target: what the runs were after, if anything; copied.

    Raises:
        InputError: two runs share source, label and seed.
    """
    groups = _grouped(runs)
    rows = [_row(group) for group in groups.values()]
    winner: Row | None = None
    lead: Lead | None = None
    for source in {run.source: None for run in runs}:
        mine = [row for row in rows if row["source"] == source]
        times = {label: _times(group) for (s, label), group in groups.items() if s == source}
        ranked = ranking(mine)
        best = ranked[0] if ranked and ranked[0]["time_to_target_s"]["median"] is not None else None
        _compare(mine, times, best)
        if source == runs[0].source and best is not None:
            winner, lead = best, _lead(ranked, times)
    return Summary(
        version=VERSION,
        scenario=scenario_name,
        target=target,
        runs=[_run_row(run) for run in runs],
        summary=rows,
        winner=None if winner is None else winner["label"],
        lead=lead,
    )


def ranking(rows: Iterable[Row]) -> list[Row]:
    """Rows, best first: by median time to target; then those without, by how often they reached it."""

    def place(row: Row) -> tuple[float, int, int]:
        median = row["time_to_target_s"]["median"]
        return (math.inf if median is None else median, -row["reached"], row["diverged"])

    return sorted(rows, key=place)


def steps_to_target(run: Run) -> float | None:
    """Steps that had been done when the target was met; None if it never was."""
    if run.time_to_target_s is None:
        return None
    met = [e.step for e in run.evaluations if e.time_s <= run.time_to_target_s]
    return float(met[-1]) if met else None


def _grouped(runs: Sequence[Run]) -> dict[tuple[Source, str], list[Run]]:
    groups: dict[tuple[Source, str], list[Run]] = {}
    for run in runs:
        group = groups.setdefault((run.source, run.label), [])
        if any(other.seed == run.seed for other in group):
            raise InputError(
                f"two {run.source} runs of '{run.label}' have seed {run.seed}: give each scheme its own label"
            )
        group.append(run)
    return groups


def _run_row(run: Run) -> RunRow:
    last: Mapping[str, float | None] = run.evaluations[-1].metrics if run.evaluations else {}
    names = dict.fromkeys((*_ALWAYS, *last))
    row = RunRow(
        scheme=run.scheme,
        label=run.label,
        seed=run.seed,
        source=run.source,
        reached_target=run.reached_target,
        time_to_target_s=run.time_to_target_s,
        wall_clock_s=run.wall_clock_s,
        iterations=run.iterations,
        final={name: _finite(last.get(name)) for name in names},
        bytes_sent=run.bytes_sent,
        time_s=_shares([run]),
        status=run.status,
        digest=run.digest,
    )
    if run.message:
        row["message"] = run.message
    return row


def _row(group: Sequence[Run]) -> Row:
    times = _times(group)
    median = _finite(_median(list(times.values())))
    met = [steps_to_target(run) for run in group]
    return Row(
        scheme=group[0].scheme,
        label=group[0].label,
        source=group[0].source,
        runs=len(group),
        reached=sum(run.reached_target for run in group),
        diverged=sum(run.status == "diverged" for run in group),
        partial=sum(run.status == "partial" for run in group),
        time_to_target_s=_interval(median, _resampled_medians(_column(times))),
        at_least_s=None if median is not None else _finite(_median([_at_least(run) for run in group])),
        ratio_to_best=Interval(median=None, low=None, high=None),
        p_win=None,
        steps_to_target=_finite(_median([math.inf if steps is None else steps for steps in met])),
        wall_clock_s=_mean([run.wall_clock_s for run in group]),
        iterations=_mean([run.iterations for run in group]),
        bytes_sent=_mean([run.bytes_sent for run in group]),
        time_s=_shares(group),
    )


def _shares(group: Sequence[Run]) -> Shares:
    return Shares(
        compute=_mean([run.time_s.compute for run in group]),
        communicate=_mean([run.time_s.communicate for run in group]),
        wait=_mean([run.time_s.wait for run in group]),
    )


def _times(group: Sequence[Run]) -> dict[int, float]:
    """Seed -> time to target, infinite where it was not reached; by seed, so that order cannot matter."""
    found = {run.seed: math.inf if run.time_to_target_s is None else run.time_to_target_s for run in group}
    return dict(sorted(found.items()))


def _at_least(run: Run) -> float:
    if run.time_to_target_s is not None:
        return run.time_to_target_s
    return math.inf if run.status == "diverged" else run.wall_clock_s


def _compare(rows: Sequence[Row], times: Mapping[str, Mapping[int, float]], best: Row | None) -> None:
    """Fill in what a row says in comparison with the others."""
    if best is None:
        return
    for row in rows:
        row["ratio_to_best"] = _ratio(times[row["label"]], times[best["label"]])
    shared = sorted(set.intersection(*(set(column) for column in times.values())))
    if len(shared) < 2:
        return
    medians = np.stack([_resampled_medians(np.array([t[seed] for seed in shared])) for t in times.values()])
    first = (medians == medians.min(axis=0)) & np.isfinite(medians)
    shares = (first / np.maximum(first.sum(axis=0), 1)).mean(axis=1)
    for label, share in zip(times, shares, strict=True):
        next(row for row in rows if row["label"] == label)["p_win"] = float(share)


def _lead(ranked: Sequence[Row], times: Mapping[str, Mapping[int, float]]) -> Lead | None:
    if len(ranked) < 2 or ranked[1]["time_to_target_s"]["median"] is None:
        return None
    best, second = ranked[0]["label"], ranked[1]["label"]
    return Lead(second=second, factor=_ratio(times[second], times[best]))


def _ratio(above: Mapping[int, float], below: Mapping[int, float]) -> Interval:
    """Ratio of the medians on shared seeds; both sides are resampled alike."""
    shared = [seed for seed in above if seed in below]
    if not shared:
        return Interval(median=None, low=None, high=None)
    a, b = (np.array([column[seed] for seed in shared]) for column in (above, below))
    return _interval(
        _finite(float(_divided(np.median(a, keepdims=True), np.median(b, keepdims=True))[0])),
        _divided(_resampled_medians(a), _resampled_medians(b)),
    )


def _divided(above: Floats, below: Floats) -> Floats:
    """``above / below``, 1 where both are infinite: neither is ahead."""
    out = np.ones_like(above)
    np.divide(above, below, out=out, where=np.isfinite(above) | np.isfinite(below))
    return out


def _resampled_medians(values: Floats) -> Floats:
    """Medians of resamples; the same number of values is always resampled in the same way."""
    if len(values) < 2:
        return np.empty(0)
    generator = np.random.Generator(np.random.Philox(_SEED))
    drawn = generator.integers(len(values), size=(_RESAMPLES, len(values)))
    medians: Floats = np.median(values[drawn], axis=1)
    return medians


def _interval(median: float | None, resampled: Floats) -> Interval:
    if not len(resampled):
        return Interval(median=median, low=None, high=None)
    # Without interpolation, so that a bound is a value that was drawn, or infinite.
    low, high = np.quantile(resampled, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], method="inverted_cdf")
    return Interval(median=median, low=_finite(float(low)), high=_finite(float(high)))


def _column(times: Mapping[int, float]) -> Floats:
    return np.array(list(times.values()))


def _median(values: Sequence[float]) -> float:
    return float(np.median(np.array(values)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
