"""Points of a measured curve at which a run is scored, and the scorer that looks them up.

A curve with more points crosses a noisy target earlier. So a crossing counts only at points that all compared
curves have, as far as they go; a scheme's own points since the last of these narrow it down.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Final

from typing_extensions import override

from ...records.intervals import finite
from ...records.run import Evaluation, On
from ..scoring import Scorer, Scores, Target
from ..snapshots import ScoringInterval, Snapshot, Snapshots, V
from .curve import Curve

_ROUNDING: Final = 1e-6
"""Share of a step that a number of examples over a batch may be off."""


@dataclass(frozen=True)
class Points:
    """Points of one curve, ascending.

    Attributes:
        totals: steps of all workers together.
        scores: None where a score was not finite.
        common: whether all compared curves that go so far have the point.
    """

    totals: tuple[int, ...]
    scores: tuple[Scores, ...]
    common: tuple[bool, ...]

    def meet(self, target: Target, metric: str) -> bool:
        """Whether a common point meets a target."""
        return any(target.reached(scores.get(metric)) for scores in compress(self.scores, self.common))


def find_points(curve: Curve, compared: Collection[Curve], metric: str, workers: int) -> Points:
    """The points of a curve at which ``metric`` is known, for a run of ``workers``."""
    # Whole steps: workers of a result folder may be apart by less than one where they are scored.
    others = [{math.floor(step + _ROUNDING) for step in each.known(metric)} for each in compared]
    ends = [max(steps, default=-1) for steps in others]
    rows: dict[int, tuple[Scores, bool]] = {}
    for number, step in enumerate(curve.steps):
        pairs = ((name, values[number]) for name, values in curve.scores.items())
        scores = {name: finite(score) for name, score in pairs if score is not None}
        if step is not None and metric in scores:
            whole = math.floor(step + _ROUNDING)
            common = all(whole in there or whole > end for there, end in zip(others, ends, strict=True))
            rows[math.ceil(step * workers - _ROUNDING)] = scores, common
    return Points(tuple(rows), *(tuple(column) for column in zip(*rows.values(), strict=True)))


def is_falling(curves: Sequence[Curve], metric: str) -> bool:
    """Whether a metric gets better by falling, as most curves do."""
    falls = 0
    for curve in curves:
        scores = [*filter(math.isfinite, curve.known(metric).values())] or [0.0]
        falls += (scores[-1] < scores[0]) - (scores[-1] > scores[0])
    return falls >= 0


@dataclass
class CurveScorer(Scorer[V]):
    """Scores a run by a curve instead of its models."""

    points: Points = field(kw_only=True)
    _taken: int = field(default=0, init=False)
    _common: list[bool] = field(default_factory=list, init=False)
    """For each evaluation, whether its point is common."""

    @override
    def begin(self, start: Sequence[V]) -> None:
        self._snapshots = Snapshots(start, self.every, remember=False, totals=self.points.totals)
        self._judge(self._evaluate(self._snapshots.last(0.0, dict(enumerate(start)), None), {}))

    @override
    def finish(self, time_s: float, finals: Mapping[int, V], leader: V | None) -> None:
        self.settle()

    @override
    def _scores(self, snapshot: Snapshot[V]) -> Mapping[On, Scores]:
        before, self._taken = self._taken, bisect_right(self.points.totals, snapshot.total)
        self._common.append(any(self.points.common[before : self._taken]))
        return {self.on: self.points.scores[self._taken - 1] if self._taken else {}}

    @override
    def _judge(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)
        self.diverged |= None in evaluation.metrics.values()
        if self.reached_s is None and not self.diverged and self._common[-1] and self._meets(evaluation):
            self.reached_s = evaluation.time_s
            self.bracket_s = (evaluation.time_s, evaluation.time_s)

    @override
    def _narrow(self, earlier_s: float, interval: ScoringInterval[V]) -> None:
        """Bisect the scheme's own points since the last common one, which missed the target."""
        high = len(self.evaluations) - 1
        low = max((number for number in range(high) if self._common[number]), default=0)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._meets(self.evaluations[middle]) else (middle, high)
        self.reached_s = self.evaluations[high].time_s
        self.bracket_s = (self.evaluations[low].time_s, self.reached_s)
