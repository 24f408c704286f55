"""Points of a measured curve at which a run is scored, and the scorer that looks them up.

A curve with more points crosses a noisy target earlier. So a crossing counts only at points that all compared
curves have, as far as they go; a scheme's own points since the last of these narrow it down.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from ...records.intervals import finite
from ...records.run import Evaluation, On
from ..scoring import Scorer, Scores, Target
from ..snapshots import ScoringInterval, Snapshot, Snapshots, V
from .curve import Curve

_ROUNDING = 1e-6
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

    def before(self, total: int) -> int:
        """Number of points up to ``total`` steps."""
        return bisect_right(self.totals, total)

    def meeting(self, target: Target, metric: str) -> bool:
        """Whether a common point meets a target."""
        pairs = zip(self.scores, self.common, strict=True)
        return any(common and target.reached(scores.get(metric)) for scores, common in pairs)


def find_points(curve: Curve, compared: Collection[Curve], metric: str, workers: int) -> Points:
    """The points of a curve at which ``metric`` is known, for a run of ``workers``."""
    others = [{_whole(step) for step in each.known(metric)} for each in compared]
    ends = [max(steps, default=-1) for steps in others]
    rows: dict[int, tuple[Scores, bool]] = {}
    for number, step in enumerate(curve.steps):
        if step is None or curve.scores[metric][number] is None:
            continue
        pairs = ((name, values[number]) for name, values in curve.scores.items())
        known = {name: finite(score) for name, score in pairs if score is not None}
        place = _whole(step)
        common = all(place in there or place > end for there, end in zip(others, ends, strict=True))
        rows[math.ceil(step * workers - _ROUNDING)] = known, common
    columns = zip(*rows.values(), strict=True)
    return Points(tuple(rows), *(tuple(column) for column in columns))


def _whole(step: float) -> int:
    # Workers of a result folder may be apart by less than a step where their models are scored.
    return math.floor(step + _ROUNDING)


def is_falling(curves: Sequence[Curve], metric: str) -> bool:
    """Whether a metric gets better by falling, as most curves do."""
    falls = 0
    for curve in curves:
        scores = [score for score in curve.known(metric).values() if math.isfinite(score)]
        falls += (scores[-1] < scores[0]) - (scores[-1] > scores[0]) if scores else 0
    return falls >= 0


@dataclass
class CurveScorer(Scorer[V]):
    """Scores a run by a curve instead of its models."""

    points: Points = field(kw_only=True)
    _taken: int = field(default=0, init=False)
    _is_common: list[bool] = field(default_factory=list, init=False)

    @override
    def begin(self, start: Sequence[V]) -> None:
        self._snapshots = Snapshots(start, self.every, remember=False, totals=self.points.totals)
        first = self._snapshots.last(0.0, dict(enumerate(start)), None)
        self._judge(self._evaluate(first, {}))

    @override
    def finish(self, time_s: float, finals: Mapping[int, V], leader: V | None) -> None:
        self.settle()

    @override
    def _scores(self, snapshot: Snapshot[V]) -> Mapping[On, Scores]:
        before, self._taken = self._taken, self.points.before(snapshot.total)
        self._is_common.append(any(self.points.common[before : self._taken]))
        return {self.on: self.points.scores[self._taken - 1] if self._taken else {}}

    @override
    def _judge(self, evaluation: Evaluation) -> None:
        self.evaluations.append(evaluation)
        if None in evaluation.metrics.values():
            self.diverged = True
        elif self._is_common[-1] and self._meets(evaluation):
            self.reached_s = evaluation.time_s
            self.bracket_s = (evaluation.time_s, evaluation.time_s)

    @override
    def _narrow(self, earlier_s: float, interval: ScoringInterval[V]) -> None:
        """Bisect the scheme's own points since the last common one, which missed the target."""
        last = len(self.evaluations) - 1
        low = max((number for number in range(last) if self._is_common[number]), default=0)
        high = last
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._meets(self.evaluations[middle]) else (middle, high)
        self.reached_s = self.evaluations[high].time_s
        self.bracket_s = (self.evaluations[low].time_s, self.reached_s)
