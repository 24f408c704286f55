"""Measured curves as a scenario prices them, and the rule for that: curves hold where they were measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..config.problems import Mistake
from ..errors import did_you_mean, quote
from ..records.run import On, metric_name
from ..records.verdict import Value
from ..training.curves.conditions import TRAINED
from ..training.curves.curve import SCHEDULED, Curve
from ..training.curves.curves import Curves
from ..training.curves.points import Points, find_points, is_falling
from ..training.scoring import Target
from .parts import Stop

_DEFAULT_METRICS = ("test_accuracy", "train_loss")


@dataclass(frozen=True)
class Priced:
    """Curves that a scenario compares.

    Attributes:
        curves: of the scenario's schemes alone.
        source: name of their files.
        metric: the score that decides.
        target: the score to reach, if any.
        workers: number of workers.
        max_iterations: steps of each worker, if limited.
    """

    curves: Sequence[Curve]
    source: str
    metric: str
    target: Target | None
    workers: int
    max_iterations: int | None

    def of(self, label: str) -> dict[int, Curve]:
        """Seed -> curve of a scheme."""
        return {curve.seed: curve for curve in self.curves if curve.scheme == label}

    def points(self, curve: Curve) -> Points:
        """The points of a curve at which a run is scored."""
        return find_points(curve, self.curves, self.metric, self.workers)


def price(curves: Curves, labels: Sequence[str], workers: int, on: On, stop: Stop) -> Priced:
    """The curves of the schemes with these labels, for a scenario that evaluates ``on``."""
    compared = [run for run in curves.runs if run.scheme in labels]
    goal, names = stop.target, list(curves.runs[0].scores)
    metric = next((name for name in _DEFAULT_METRICS if name in names), names[0])
    target = None
    if goal is not None:
        metric = metric_name(goal.metric, goal.on, on)
        target = Target(goal.metric, goal.value, is_falling(compared, metric), goal.on)
    return Priced(compared, curves.source, metric, target, workers, stop.max_iterations)


def wrong_curves(
    priced: Priced, conditions: Mapping[str, Mapping[str, Value]], seeds: range, known: Sequence[str]
) -> Iterator[Mistake]:
    """The first mistake of a scenario whose curves are missing, too short, or of other conditions.

    ``conditions``: label -> those of this scenario, in the order of its schemes; ``known``: labels of all
    measured schemes.
    """
    for number, (label, here) in enumerate(conditions.items()):
        own, at = priced.of(label), ("schemes", number)
        there = ", ".join(map(str, sorted(own)))
        for seed in seeds:
            if not own:
                problem = f"{priced.source} has no curve of {quote(label)}; {did_you_mean(label, known)}"
            elif seed not in own:
                problem = f"the curves of {quote(label)} have seed {there}, and this needs {seed}; "
                problem += "write their first as 'seed', their number as 'repeats'"
            elif problem := _unlike(own[seed], here) or _too_short(priced, own[seed]):
                problem = f"the curve of {quote(label)} in {priced.source} {problem}"
            if problem:
                yield Mistake(at, problem)
                return


def _unlike(curve: Curve, here: Mapping[str, Value]) -> str:
    trained = any(name.startswith(TRAINED) for name in here)
    for name, value in curve.under.items():
        if name in SCHEDULED or (name.startswith(TRAINED) and not trained):
            continue
        if name not in here:
            own = (each for each in (*here, *SCHEDULED) if not each.startswith(TRAINED))
            return f"names '{name}', which is no condition of this scheme; {did_you_mean(name, own)}"
        if here[name] != value:
            return f"was measured with {name} {value}, and here it is {here[name]}; measure it here too"
    return ""


def _too_short(priced: Priced, curve: Curve) -> str:
    known, most, target = curve.known(priced.metric), priced.max_iterations, priced.target
    if not known:
        return f"has no score {quote(priced.metric)}; {did_you_mean(priced.metric, curve.scores)}"
    schedule, horizon = (curve.under.get(name) for name in SCHEDULED)
    cut = isinstance(horizon, int | float) and most is not None and most < horizon
    if schedule not in (None, "constant") and cut:
        return (
            f"has a {schedule} schedule over {horizon:g} steps, which says nothing of a run of {most}; "
            f"write 'max_iterations: {horizon:g}'"
        )
    last, score = max(known.items())
    met = target is not None and priced.points(curve).meeting(target, priced.metric)
    if not math.isfinite(score) or met or (most is not None and most <= last):
        return ""
    without = "" if target is None else f" without {priced.metric} {target.value:g}"
    return f"ends after {last:g} steps{without}; write 'max_iterations: {last:g}', or bring a longer one"
