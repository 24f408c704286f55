"""Points of a measured curve at which a run is scored, and the scorer that looks them up.

Each curve stands for itself: whether and when it is at a target, no other curve decides. The target counts
as met at the first of its own points that meets it once noise is smoothed: up to its best point a curve is
taken to get better all the time, and points that go the other way count with their mean (isotonic
regression, Ayer and others 1955). A monotone curve stays as it is; a curve with more points is not below a
target earlier for that. Between two points a curve is straight, which matters where a run ends there.

References:
    Ayer, Brunk, Ewing, Reid and Silverman, An empirical distribution function for sampling with incomplete
    information, Annals of Mathematical Statistics 26, 1955.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
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
        metric: the score that decides.
        totals: steps of all workers together.
        scores: None where a score was not finite.
        divergence: the step at which ``metric`` was not, in words; "" where it always was.
        met: number of the point that meets the target; None: none does.
        line: totals and smoothed scores of the point before it and of itself.
        between: steps of a worker between which the target is met, as far as the points tell: from the last
            one before any meets it, to the one from which on all do, up to the best.
    """

    metric: str
    totals: tuple[int, ...]
    scores: tuple[Scores, ...]
    divergence: str = ""
    met: int | None = None
    line: tuple[tuple[int, float], ...] = ()
    between: tuple[float, float] | None = None

    def score_at(self, total: int) -> float:
        """The score on the straight line to the point that meets the target."""
        (begin, first), (end, last) = self.line
        return first + (last - first) * (total - begin) / (end - begin)


def find_points(curve: Curve, metric: str, workers: int, target: Target | None = None) -> Points:
    """The points of a curve at which ``metric`` is known, for a run of ``workers``."""
    rows: dict[int, tuple[float, Scores]] = {}
    for number, step in enumerate(curve.steps):
        pairs = ((name, values[number]) for name, values in curve.scores.items())
        scores = {name: finite(score) for name, score in pairs if score is not None}
        if step is not None and metric in scores:
            rows[math.ceil(step * workers - _ROUNDING)] = step, scores
    steps, totals = [step for step, _ in rows.values()], tuple(rows)
    column = [scores[metric] for _, scores in rows.values()]
    known = [*takewhile(lambda score: score is not None, column)]
    bad = f"{metric} is not finite at step {steps[len(known)]:,.0f} of its curve" if None in column else ""
    again = [step for step, score in zip(steps, column, strict=True) if score is not None][len(known) :]
    if again:
        bad += f", and finite again at step {again[0]:,.0f}: leave a cell empty where nothing was scored"
    points = Points(metric, totals, tuple(scores for _, scores in rows.values()), bad)
    meets = [target is not None and target.reached(score) for score in known]
    if target is None or True not in meets:
        return points
    even = smooth([score for score in known if score is not None], target.falling)
    met, first = [target.reached(score) for score in even].index(True), meets.index(True)
    last_miss = max((number for number in range(len(even)) if not meets[number]), default=-1)
    return replace(
        points,
        met=met,
        line=tuple(zip(totals, even, strict=False))[met - 1 : met + 1],
        between=(steps[first - 1] if first else 0.0, steps[last_miss + 1]),
    )


def smooth(scores: Sequence[float], falling: bool) -> list[float]:
    """Scores up to the best one, never getting worse: those that do count with their mean.

    >>> smooth([3.0, 1.0, 2.0, 1.2, 0.9, 1.5], falling=True)
    [3.0, 1.5, 1.5, 1.2, 0.9]
    """
    sign = 1.0 if falling else -1.0
    best = min(range(len(scores)), key=lambda number: sign * scores[number])
    blocks: list[tuple[float, int]] = []  # sums, and of how many
    for score in scores[: best + 1]:
        block = score, 1
        while blocks and sign * blocks[-1][0] * block[1] < sign * block[0] * blocks[-1][1]:
            earlier = blocks.pop()
            block = block[0] + earlier[0], block[1] + earlier[1]
        blocks.append(block)
    return [total / count for total, count in blocks for _ in range(count)]


@dataclass
class CurveScorer(Scorer[V]):
    """Scores a run by a curve instead of its models."""

    points: Points = field(kw_only=True)
    _taken: int = field(default=0, init=False)

    @override
    def begin(self, start: Sequence[V]) -> None:
        self._snapshots = Snapshots(start, self.every, remember=False, totals=self.points.totals)
        self._judge(self._evaluate(self._snapshots.latest.ended(0.0, dict(enumerate(start)), None)))

    @override
    def finish(self, time_s: float, finals: Mapping[int, V], leader: V | None) -> None:
        """Score the end too where the line to the point that meets the target has met it by then."""
        if self.settle() or self._snapshots is None or self.points.met != self._taken or not self._taken:
            return
        end = self._snapshots.latest.ended(time_s, finals, leader)
        score = self.points.score_at(end.total)
        if self.target is not None and self.target.reached(score):
            self._taken += 1
            self._judge(self._evaluation(end, {self.points.metric: score}))

    @override
    def _scores(self, snapshot: Snapshot[V]) -> Mapping[On, Scores]:
        self._taken = bisect_right(self.points.totals, snapshot.total)
        return {self.on: self.points.scores[self._taken - 1] if self._taken else {}}

    @override
    def _judge(self, evaluation: Evaluation) -> None:
        earlier_s = self.evaluations[-1].time_s if self.evaluations else evaluation.time_s
        self.evaluations.append(evaluation)
        if self.points.met is not None and self._taken > self.points.met and not self.over:
            self.reached_s, self.bracket_s = evaluation.time_s, (earlier_s, evaluation.time_s)
        elif self.reached_s is None:
            self.diverged |= evaluation.metrics.get(self.points.metric, 0.0) is None

    @override
    def _narrow(self, earlier_s: float, interval: ScoringInterval[V]) -> Snapshot[V]:
        """The end: a curve has no points in between."""
        return interval.end
