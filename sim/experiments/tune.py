"""Tuning of every scheme with the same effort, on seeds that the comparison does not use.

One learning rate for all is unfair: schemes that add up updates want small ones, schemes that average seldom
may want large ones. So each scheme gets the same number of trials, in two rounds: all points of the grid on
one seed, then the best of them on two more. Values with which a training diverges or misses the target on any
seed lose; the best mean time to target wins, or the best mean score where no values arrive. It is the mean,
which one bad seed spoils, since a median of three would take values with which every third training fails.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Final, cast

import numpy as np

from .. import seeds
from ..records.rates import RATE, seconds_to_levels
from ..records.run import Run, metric_name
from ..records.summary import Tuned, TuningTrial, mean_time_s
from ..records.unfinished import NOTHING_KEPT, Parts
from ..records.verdict import Value
from ..scenario.schema import Scenario
from ..scenario.tuning_grid import SEEDS, Tune, with_values
from ..workloads import find_task
from .jobs import PlannedRun

_KEPT: Final = 40
"""Levels between the first score of a trial and the target whose times are kept."""


def next_trials(scenario: Scenario, done: Sequence[Run], parts: Parts = NOTHING_KEPT) -> list[PlannedRun]:
    """Trials of the next round for every scheme, after ``done``, the runs of earlier rounds in order."""
    if scenario.tune is None:
        return []
    plain = scenario.model_copy(update={"tune": None})
    trials = [
        (with_values(entry, scenario.workload.optimizer, values), seed)
        for entry, tried in zip(scenario.schemes, _tried(scenario, done), strict=True)
        for values, seed in planned_trials(scenario, tried)
    ]
    return [
        PlannedRun("trial", number, plain, entry, seed, parts)
        for number, (entry, seed) in enumerate(trials, len(done))
    ]


def choose(scenario: Scenario, done: Sequence[Run]) -> tuple[Scenario, list[Tuned]]:
    """Choose values for every scheme; return the scenario with them in place of ``tune``, and the trials."""
    if scenario.tune is None:
        return scenario, []
    tuned = [
        record(scenario.tune, entry.label, tried, *deciding_score(scenario))
        for entry, tried in zip(scenario.schemes, _tried(scenario, done), strict=True)
    ]
    return with_chosen(scenario, tuned), tuned


def with_chosen(scenario: Scenario, tuned: Sequence[Tuned]) -> Scenario:
    """Put the chosen values into the scenario, in place of ``tune``."""
    if not tuned:
        return scenario
    chosen = {each["label"]: each["chosen"] for each in tuned}
    entries = tuple(
        with_values(entry, scenario.workload.optimizer, chosen[entry.label]) for entry in scenario.schemes
    )
    return scenario.model_copy(update={"schemes": entries, "tune": None})


def planned_trials(scenario: Scenario, tried: Sequence[TuningTrial]) -> list[tuple[dict[str, Value], int]]:
    """Values and seeds of a scheme's next round: all points, then the best ones, then none."""
    tune = scenario.tune
    assert tune is not None
    first, *others = tuning_seeds(scenario)
    points = list(tune.points())
    if not tried:
        return [(point, first) for point in points]
    _, falling = deciding_score(scenario)
    best = best_first(tune, tried, falling)[: tune.finalists() if len(tried) == len(points) else 0]
    return [(point, seed) for seed in others for point in points if point in best]


def tuning_seeds(scenario: Scenario) -> list[int]:
    """The ``SEEDS`` seeds of trials, which no run of the comparison has."""
    draws = seeds.generator(scenario.seed, seeds.SHARED, "tuning")
    return [int(draws.integers(2**62)) for _ in range(SEEDS)]


def _tried(scenario: Scenario, done: Sequence[Run]) -> list[list[TuningTrial]]:
    """The trials of each scheme, from the runs of whole rounds."""
    metric, falling = deciding_score(scenario)
    target = scenario.stop.target
    runs = iter(done)
    tried: list[list[TuningTrial]] = [[] for _ in scenario.schemes]
    for _ in range(2):
        for own in tried:
            for (values, seed), run in zip(planned_trials(scenario, own), runs, strict=False):
                trial = trial_of(values, seed, run, metric)
                if RATE in values and target is not None and seed == tuning_seeds(scenario)[0]:
                    trial["levels"] = _levels(run, metric, target.value, falling)
                own.append(trial)
    return tried


def _levels(run: Run, metric: str, target: float, falling: bool) -> list[list[float]]:
    """Scores at equal distances from a run's first to the target, and seconds to each, as far as it got."""
    scores = [(each.time_s, each.metrics.get(metric)) for each in run.evaluations]
    known = np.array(scores, float).reshape(-1, 2)  # no score is no number
    if np.isnan(known[:, 1]).all():
        return []
    sign = -1.0 if falling else 1.0
    times_s, scored = known[~np.isnan(known[:, 1])].T
    levels = np.linspace(scored[0], target, _KEPT + 1)
    seconds = seconds_to_levels(times_s, sign * scored, sign * levels)
    return cast(list[list[float]], np.stack([levels, seconds], 1)[np.isfinite(seconds)].tolist())


def trial_of(values: dict[str, Value], seed: int, run: Run, metric: str) -> TuningTrial:
    """Record of a trial; ``metric``: name of the score that it keeps."""
    ended = run.status == "completed" and run.evaluations
    score = run.evaluations[-1].metrics.get(metric) if ended else None
    return TuningTrial(values=values, seed=seed, time_to_target_s=run.time_to_target_s, score=score)


def best_first(tune: Tune, tried: Sequence[TuningTrial], falling: bool) -> list[dict[str, Value]]:
    """Tried points by mean time to target, those on more seeds before others; by score where none arrives.

    ``falling``: whether a small score is good.
    """

    def end(trial: TuningTrial) -> float:
        score = trial["score"]
        return math.inf if score is None else score if falling else -score

    def merit(point: dict[str, Value]) -> tuple[bool, int, float, float]:
        mine = [trial for trial in tried if trial["values"] == point]
        time_s = mean_time_s(mine)
        return math.isinf(time_s), -len(mine), time_s, fmean(map(end, mine))

    return sorted((point for point in tune.points() if any(t["values"] == point for t in tried)), key=merit)


def record(tune: Tune, label: str, tried: list[TuningTrial], metric: str, falling: bool) -> Tuned:
    """Record of a scheme's trials, with the values that they choose."""
    chosen = best_first(tune, tried, falling)[0]
    edge = [key for key, values in tune.grid.items() if _at_edge(chosen[key], values)]
    return Tuned(label=label, chosen=chosen, at_edge=edge, metric=metric, trials=tried)


def _at_edge(value: Value, values: Sequence[Value]) -> bool:
    """Whether a better value may lie beyond the grid: numbers have an order, words have none."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return len(numbers) == len(values) > 1 and value in (min(numbers), max(numbers))


def deciding_score(scenario: Scenario) -> tuple[str, bool]:
    """Evaluations' name of the score that decides where no trial arrives, and whether small is good."""
    target, task = scenario.stop.target, find_task(scenario.workload.task)
    if target is None:
        return "train_loss", True
    name = metric_name(target.metric, target.on, scenario.evaluate.on)
    return name, target.metric in task.falling
