"""Tuning of every scheme with the same effort, on seeds that the comparison does not use.

One learning rate for all is unfair: schemes that add up updates want small ones, schemes that average seldom
may want large ones. So each scheme gets the same number of runs on the same points and seeds, and keeps the
values with the best mean time to target over the seeds; if none reaches it on all of them, those with the
best mean score at the end. It is the mean, which one bad seed spoils, since a median of three would take
values with which every third training fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from .. import seeds
from ..records.run import Run, metric_name
from ..records.summary import Tuned, TuningTrial, mean_time_s
from ..records.verdict import Value
from ..scenario.entries import SchemeEntry
from ..scenario.schema import Scenario
from ..scenario.tune import Tune, with_values
from ..workloads import find_task

RunEntry = Callable[[Scenario, SchemeEntry, int], Run]
"""Run one scheme of a scenario under a seed."""


def tune(scenario: Scenario, run: RunEntry) -> tuple[Scenario, list[Tuned]]:
    """Choose values for every scheme; return the scenario with them in place of ``tune``, and the trials."""
    if scenario.tune is None:
        return scenario, []
    plain = scenario.model_copy(update={"tune": None})
    tuned = [_tuned(plain, scenario.tune, entry, run) for entry in scenario.schemes]
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


def planned_trials(tune: Tune, seed: int) -> list[tuple[dict[str, Value], int]]:
    """List values and seed of every trial: all points on one seed, then all on the next."""
    points = list(tune.points())
    draws = seeds.generator(seed, seeds.SHARED, "tuning")
    own = [int(draws.integers(2**62)) for _ in range(tune.trials // len(points))]
    return [(point, own_seed) for own_seed in own for point in points]


def _tuned(scenario: Scenario, tune: Tune, entry: SchemeEntry, run: RunEntry) -> Tuned:
    trials, ends = [], []
    metric, falling = _metric(scenario)
    for values, seed in planned_trials(tune, scenario.seed):
        trial_run = run(scenario, with_values(entry, scenario.workload.optimizer, values), seed)
        score = trial_run.evaluations[-1].metrics.get(metric) if trial_run.evaluations else None
        ends.append(math.inf if score is None else score if falling else -score)
        trials.append(
            TuningTrial(values=values, seed=seed, time_to_target_s=trial_run.time_to_target_s, score=score)
        )

    def merit(point: dict[str, Value]) -> tuple[float, float]:
        mine = [number for number, trial in enumerate(trials) if trial["values"] == point]
        return mean_time_s(trials[number] for number in mine), fmean(ends[number] for number in mine)

    chosen = min(tune.points(), key=merit)
    edge = [key for key, values in tune.grid.items() if _at_edge(chosen[key], values)]
    return Tuned(label=entry.label, chosen=chosen, at_edge=edge, metric=metric, trials=trials)


def _at_edge(value: Value, values: Sequence[Value]) -> bool:
    """Whether a better value may lie beyond the grid: numbers have an order, words have none."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool)]
    return len(numbers) == len(values) > 1 and value in (min(numbers), max(numbers))


def _metric(scenario: Scenario) -> tuple[str, bool]:
    """Evaluations' name of the score that decides where no trial arrives, and whether small is good."""
    target, task = scenario.stop.target, find_task(scenario.workload.task)
    if target is None:
        return "train_loss", True
    name = metric_name(target.metric, target.on, scenario.evaluate.on)
    return name, target.metric in task.falling
