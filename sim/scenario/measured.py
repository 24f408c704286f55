"""Measured curves as a scenario prices them, and the rule for that: curves hold where they were measured."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ..errors import did_you_mean, quote
from ..records.run import On, falls, metric_name
from ..records.verdict import Value
from ..training.curves.curve import TRAINED, Curve
from ..training.curves.curves import Curves
from ..training.curves.points import Points, find_points
from ..training.scoring import Target
from .parts import Stop

_OF_LENGTH = ("schedule", "horizon")
"""Conditions about a run's length: the schedule of the learning rate, and the steps that it is for."""


@dataclass(frozen=True)
class Priced:
    """The curves of a scenario's schemes, the score that decides, and the ends of a run."""

    curves: Sequence[Curve]
    metric: str
    target: Target | None
    workers: int
    max_iterations: int | None
    directions: Collection[bool] = (True,)
    """Whether the score falls to the target, as far as something says so; two, where that differs."""

    def points(self, label: str, seed: int) -> Points | None:
        """The points at which a run is scored; None where there is no curve of it."""
        own = [curve for curve in self.curves if (curve.scheme, curve.seed) == (label, seed)]
        return find_points(own[0], self.metric, self.workers, self.target) if own else None

    def problem(self, label: str, seed: int, here: Mapping[str, Value]) -> str:
        """Why a curve says nothing of a run under the conditions ``here``; "" where it does."""
        own = {curve.seed: curve for curve in self.curves if curve.scheme == label}
        if not own:
            return f"no curve is of {quote(label)}"
        if seed not in own:
            there = ", ".join(map(str, sorted(own)))
            text = f"the curves of {quote(label)} have seed {there}, and this needs {seed}"
            return f"{text}; write their first as 'seed', their number as 'repeats'"
        text = _unlike(own[seed], here) or self._too_short(own[seed])
        return text and f"the curve of {quote(label)} {text}"

    @property
    def undecided(self) -> str:
        """Why it is not known whether the score falls to the target; "" where it is."""
        if len(self.directions) == 1 or not any(curve.known(self.metric) for curve in self.curves):
            return ""
        text = f"neither its name nor the curves say whether {quote(self.metric)} gets better by falling"
        return f"{text}; write 'falls: true' or 'falls: false' beside the file of curves"

    def _too_short(self, curve: Curve) -> str:
        known, most = curve.known(self.metric), self.max_iterations
        if not known:
            return f"has no score {quote(self.metric)}; {did_you_mean(self.metric, curve.scores)}"
        schedule, horizon = (curve.under.get(name) for name in _OF_LENGTH)
        cut = isinstance(horizon, int | float) and most is not None and most < horizon
        if schedule not in (None, "constant") and cut:
            text = f"has a {schedule} schedule over {horizon:.12g} steps, and says nothing of a run of {most}"
            return f"{text}; write 'max_iterations: {horizon:.12g}'"
        last, points = max(known), find_points(curve, self.metric, self.workers, self.target)
        if points.divergence or points.met is not None or (most is not None and most <= math.ceil(last)):
            return ""
        without = "" if self.target is None else f" without {self.metric} {self.target.value:g}"
        text = f"ends after {last:.12g} steps{without}; write 'max_iterations: {max(1, math.ceil(last))}'"
        return f"{text}, or bring a longer one"


def price(curves: Curves, labels: Sequence[str], workers: int, on: On, stop: Stop) -> Priced:
    """The curves of the schemes with these labels, for a scenario that evaluates ``on``."""
    compared = [run for run in curves.runs if run.scheme in labels]
    if (goal := stop.target) is None:
        names = list(curves.runs[0].scores)
        known = min(names, key=lambda name: falls(name) is None)
        metric = next((name for name in ("test_accuracy", "train_loss") if name in names), known)
        return Priced(compared, metric, None, workers, stop.max_iterations)
    metric = metric_name(goal.metric, goal.on, on)
    given = {each.falls for each in curves.files}
    seen = (_seen(run, metric, goal.value) for run in compared)
    either = given - {None} or {falls(metric)} - {None} or set[bool | None]().union(*seen)
    directions = frozenset(map(bool, either))
    target = Target(goal.metric, goal.value, True in directions, goal.on)
    return Priced(compared, metric, target, workers, stop.max_iterations, directions)


def _seen(curve: Curve, metric: str, target: float) -> set[bool]:
    """Whether a curve falls from its first score to its last, and whether to the target."""
    scores = [*filter(math.isfinite, curve.known(metric).values())]
    return {end < scores[0] for end in (*scores[-1:], target) if end != scores[0]} if scores else set()


def _unlike(curve: Curve, here: Mapping[str, Value]) -> str:
    trained = any(name.startswith(TRAINED) for name in here)
    for name, value in curve.under.items():
        if name in _OF_LENGTH or (name.startswith(TRAINED) and not trained):
            continue
        if name not in here:
            own = (each for each in (*here, *_OF_LENGTH) if not each.startswith(TRAINED))
            return f"names '{name}', which is no condition of this scheme; {did_you_mean(name, own)}"
        if here[name] != value:
            return f"was measured with {name} {value}, and here it is {here[name]}; measure it here too"
    return ""
