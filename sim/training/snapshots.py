"""Choice of the scored models and times: one rule for all schemes, simulated or measured.

Workers publish (time, step, model). A *snapshot* is the state of all of them at one moment: the latest kept
model of each worker. It is scored whenever the sum of all workers' steps has reached the next multiple of n
``every``, after all publications of that instant; times within ``INSTANT`` are one instant. Steps of a lost
worker stay counted, its model does not. The number of a worker's steps decides whether its model is kept: see
``Keep``.

Models are of any kind V here: tensors where they are local, references where they lie on other machines.
"""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Final, Generic, TypeVar

from ..records.run import BRACKET, INSTANT, LOST, On

V = TypeVar("V")

KEPT_APART: Final = BRACKET / 4
"""Share of a worker's steps that may lie between two of its kept models where not all are kept: scored models
are up to as much older than the moment of their scoring.
"""

KEPT_BYTES: Final = 2**30
"""Largest size of the kept models of all workers: over a whole run if all are to be kept, else between two
scorings.
"""

ASSUMED_STEPS: Final = 2_000
"""Assumed steps of a run whose number of steps is not given."""

_NO_NOTES: Final[Mapping[str, float]] = {}


@dataclass(frozen=True)
class Keep:
    """A rule for which models of a worker are kept for scoring.

    Attributes:
        every: steps between two scorings.
        apart: steps from one kept model to the next.
        share: of the steps done so far, up to which they may be further apart, by a divisor of ``every``; so
            those after a multiple of it are kept.
    """

    every: int
    apart: int = 1
    share: float = 0.0

    def at(self, done: int) -> bool:
        """Whether the model after ``done`` steps is kept.

        >>> [done for done in range(490, 512) if Keep(10, 2, 0.01).at(done)]
        [490, 492, 494, 496, 498, 500, 505, 510]
        """
        most = done * self.share
        if most < self.apart:
            return done % self.apart == 0
        return done % self._steps[bisect_right(self._steps, most) - 1] == 0

    @cached_property
    def between(self) -> int:
        """Largest number kept between two scorings: that of the first interval, where they lie closest.

        >>> Keep(10, 3).between, Keep(1000, 1, 0.01).between
        (4, 410)
        """
        if not self.share:
            return -(-self.every // self.apart)
        ends = [min(math.ceil(each / self.share) - 1, self.every) for each in self._steps[1:]]
        spans = pairwise((0, *ends, self.every))
        return sum(end // each - begin // each for each, (begin, end) in zip(self._steps, spans, strict=True))

    @cached_property
    def _steps(self) -> list[int]:
        """Steps from one kept model to the next, from the first to the last ones."""
        return [self.apart, *(each for each in divisors(self.every) if each > self.apart)]


def divisors(number: int) -> list[int]:
    """All divisors, ascending."""
    small = [each for each in range(1, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def keep_rule(workers: int, model_bytes: int, steps: int | None, every: int) -> Keep:
    """Choose which models are kept: all, if those of a whole run fit into ``KEPT_BYTES``.

    Else up to ``KEPT_APART`` of the steps apart (a narrow bracket of a target), at first as close as fits
    between two scorings. A function of the scenario alone: simulation and measurement keep the same ones.

    >>> keep_rule(8, 20_000, None, 10), keep_rule(64, 20_000, None, 10)
    (Keep(every=10, apart=1, share=0.0), Keep(every=10, apart=1, share=0.005))
    >>> keep_rule(64, 4_000_000, None, 10), keep_rule(256, 4_000_000, None, 10)
    (Keep(every=10, apart=5, share=0.005), Keep(every=10, apart=10, share=0.0))
    """
    if workers * model_bytes * (ASSUMED_STEPS if steps is None else steps) <= KEPT_BYTES:
        return Keep(every)
    most = KEPT_BYTES / (workers * model_bytes)
    closer = (Keep(every, each, KEPT_APART) for each in divisors(every)[:-1])
    return next((rule for rule in closer if rule.between <= most), Keep(every, every))


@dataclass(frozen=True, slots=True, eq=False)
class Published(Generic[V]):
    """A worker's publication of one step (0-based).

    Attributes:
        value: its model; None where it is not kept.
        bytes_sent: by the worker since the run began.
        leader: the scheme's model for all workers, if it publishes one.
        averaged: the average of this step, if there was one.
        notes: numbers about the step.
    """

    worker: int
    step: int
    time_s: float
    value: V | None
    bytes_sent: int = 0
    leader: V | None = None
    averaged: V | None = None
    notes: Mapping[str, float] = field(default_factory=lambda: _NO_NOTES)


@dataclass(frozen=True, slots=True)
class WorkerLost:
    """The loss of a worker, and of its model."""

    worker: int
    time_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot(Generic[V]):
    """The state of all workers at one moment.

    Attributes:
        total: steps of all workers together.
        bytes_sent: by all workers, up to their publications.
        steps: the step vector: number of steps in each worker's model, ``LOST`` where it is gone.
        models: of the present workers, by rank.
        leader: the latest model for all workers, if any.
        averaged: the step of the latest averaging and its model; before the first, 0 and the initial model.
    """

    total: int
    time_s: float
    bytes_sent: int
    steps: tuple[int, ...]
    models: Mapping[int, V]
    leader: V | None
    averaged: tuple[int, V]

    @property
    def published(self) -> On:
        """The kind of model of all that has been published by now."""
        return "averaged" if self.averaged[0] else "mean" if self.leader is None else "leader"

    @property
    def step(self) -> int:
        """Steps of the workers, rounded down to whole ones of each."""
        return self.total // len(self.steps)


def is_one_instant(earlier_s: float, later_s: float) -> bool:
    """Whether two times are equal up to rounding."""
    return earlier_s >= later_s * (1 - INSTANT)


class LatestModels(Generic[V]):
    """The latest publications; before these, the workers' first models."""

    def __init__(self, start: Sequence[V]) -> None:
        self._latest: dict[int, tuple[int, V]] = {rank: (0, model) for rank, model in enumerate(start)}
        self._done = [0] * len(start)
        self._bytes = [0] * len(start)
        self._leader: tuple[float, int, V] | None = None
        self._averaged = 0, start[0]
        self.total = 0

    def copy(self) -> LatestModels[V]:
        """A copy, which later changes do not touch."""
        other = copy(self)
        other._latest, other._done, other._bytes = dict(self._latest), self._done[:], self._bytes[:]
        return other

    def take(self, change: Published[V] | WorkerLost) -> None:
        """Apply a change; changes come in order of time."""
        if isinstance(change, WorkerLost):
            # If all are lost, the last model stays.
            if len(self._latest) > 1:
                self._latest.pop(change.worker, None)
            return
        rank, done = change.worker, change.step + 1
        self.total += done - self._done[rank]
        self._done[rank], self._bytes[rank] = done, change.bytes_sent
        if change.value is not None:
            self._latest[rank] = done, change.value
        # The latest leader counts; at one instant that of the lowest rank.
        known, time_s = self._leader, change.time_s
        if change.leader is not None and (
            known is None or rank <= known[1] or not is_one_instant(known[0], time_s)
        ):
            self._leader = time_s, rank, change.leader
        if change.averaged is not None and self._averaged[0] < done:
            self._averaged = done, change.averaged

    def snapshot(self, time_s: float) -> Snapshot[V]:
        """The current snapshot."""
        ranks = range(len(self._done))
        return Snapshot(
            total=self.total,
            time_s=time_s,
            bytes_sent=sum(self._bytes),
            steps=tuple(self._latest[rank][0] if rank in self._latest else LOST for rank in ranks),
            models={rank: self._latest[rank][1] for rank in ranks if rank in self._latest},
            leader=None if self._leader is None else self._leader[2],
            averaged=self._averaged,
        )

    def ended(self, time_s: float, finals: Mapping[int, V], leader: V | None) -> Snapshot[V]:
        """The snapshot at the end, with the last models, kept or not."""
        steps = tuple(done if rank in finals else LOST for rank, done in enumerate(self._done))
        return replace(self.snapshot(time_s), steps=steps, models=finals, leader=leader)


@dataclass(frozen=True, eq=False)
class ScoringInterval(Generic[V]):
    """Changes between two scorings.

    Attributes:
        before: the state at the earlier one.
        changes: since then, in order of time.
        end: the snapshot of the later one.
    """

    before: LatestModels[V]
    changes: Sequence[Published[V] | WorkerLost]
    end: Snapshot[V]

    @cached_property
    def moments(self) -> list[int]:
        """All instants inside with a new kept model or average: the number of changes until then."""
        moments, kept = [], False
        for number, (change, following) in enumerate(pairwise(self.changes), 1):
            kept |= isinstance(change, Published) and (
                change.value is not None or change.averaged is not None
            )
            if kept and not is_one_instant(change.time_s, following.time_s):
                moments += [] if is_one_instant(change.time_s, self.end.time_s) else [number]
                kept = False
        return moments

    def at(self, moment: int) -> Snapshot[V]:
        """The snapshot of one of the ``moments``."""
        progress = self.before.copy()
        for change in self.changes[:moment]:
            progress.take(change)
        return progress.snapshot(change.time_s)


class Snapshots(Generic[V]):
    """Cuts the publications of workers, fed in order of time, into the intervals between two scorings.

    ``remember``: intervals get their ``changes``, which hold on to all models of an interval. ``totals``: the
    steps of all workers together at which to score, in place of ``every``. ``due_s`` is the instant to
    score as soon as it has passed; None: none yet. ``latest``: the models of now.
    """

    def __init__(
        self, start: Sequence[V], every: int, remember: bool, totals: Sequence[int] | None = None
    ) -> None:
        self.latest = LatestModels(start)
        self._stride = every * len(start)
        self._totals = totals
        self._remember = remember
        self._before = self.latest.copy()
        self._changes: list[Published[V] | WorkerLost] = []
        self._next = self._after(0)
        self.due_s: float | None = None

    def take(self, change: Published[V] | WorkerLost) -> ScoringInterval[V] | None:
        """Apply a change, no earlier than the previous one; returns the interval it completes, if any."""
        complete = self.close() if self.has_passed(change.time_s) else None
        self.latest.take(change)
        if self._remember:
            self._changes.append(change)
        if self.due_s is None and self.latest.total >= self._next:
            self.due_s = change.time_s
        return complete

    def _after(self, total: int) -> int:
        if self._totals is None:
            return (total // self._stride + 1) * self._stride
        place = bisect_right(self._totals, total)
        return self._totals[place] if place < len(self._totals) else sys.maxsize

    def has_passed(self, time_s: float) -> bool:
        """Whether an instant is to be scored, and is over at ``time_s``."""
        return self.due_s is not None and not is_one_instant(self.due_s, time_s)

    def close(self, end: Snapshot[V] | None = None) -> ScoringInterval[V]:
        """The interval that ends at the instant to score, or with the snapshot ``end``."""
        if end is None:
            assert self.due_s is not None
            end = self.latest.snapshot(self.due_s)
        interval = ScoringInterval(self._before, self._changes, end)
        self._before, self._changes = self.latest.copy(), []
        self._next = self._after(self.latest.total)
        self.due_s = None
        return interval

    def forget(self) -> None:
        """Keep no more changes: the target has been met, and no crossing is left to find."""
        self._remember = False
        self._changes = []
