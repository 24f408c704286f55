"""Race of candidates by successive halving over learning rates, seeds and time.

All candidates try the same values on one seed. A trial ends at ``SLACK`` times the best time so far: it is
behind. One candidate in ``HALVED`` tries its two best values on two more seeds, as in ``tune``, where a late
trial is no miss yet; ``FINALISTS`` run on the scenario's own seeds.

Source: Karnin, Koren and Somekh, Almost optimal exploration in multi-armed bandits, ICML 2013 (halving);
Hutter, Hoos, Leyton-Brown and Stuetzle, ParamILS, JAIR 36, 2009 (capping).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Final

from paceline.sim.experiments.jobs import PlannedRun
from paceline.sim.experiments.tune import best_first, record, trial_of, tuning_seeds
from paceline.sim.records.run import Run
from paceline.sim.records.summary import Tuned, TuningTrial, mean_time_s
from paceline.sim.records.unfinished import NOTHING_KEPT, Parts
from paceline.sim.records.verdict import Value
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario
from paceline.sim.scenario.tuning_grid import Tune, with_values

SLACK: Final = 1.2
PATIENT: Final = 3.0
"""Factor on the best time at which a trial on a further seed ends: means need times."""
CLOSE: Final = 1.2
"""Factor on the best time within which a candidate's second values, and the third of the last, stay."""
HALVED: Final = 4
FINALISTS: Final = 3
PROBES: Final = 4
"""First trials, from the fastest step to the slowest: no time can end them yet."""
PROBE_STEPS: Final = 64
"""Steps of the probes; they double until one of them arrives."""
_RATES: Final = (1 / 3, 1.0, 3.0)
"""Factors on a scheme's learning rate where the scenario has no ``tune``."""
_EARLY: Final = 0.25
"""Share of a given time after which scores are first compared."""


@dataclass
class Race:
    """Trials of the candidates of a resolved scenario.

    Attributes:
        step_s: label -> seconds of a step.
        run_all: does planned runs, and yields them in order.
        score: name of the score that decides where no trial arrives, and whether small is good.
        within_s: time after which scores are compared; None: the target is the goal.
        afford: whether a run's cost is within the limit.
        parts: store of complete trials.
        tried: label -> trials.
        steps: of all workers so far.
    """

    scenario: Scenario
    step_s: Mapping[str, float]
    run_all: Callable[[Sequence[PlannedRun]], Iterable[Run]]
    score: tuple[str, bool]
    within_s: float | None = None
    afford: Callable[[Run], bool] = lambda run: True
    parts: Parts = NOTHING_KEPT
    tried: dict[str, list[TuningTrial]] = field(default_factory=dict)
    num_trials: int = 0
    steps: float = 0.0

    def finalists(self) -> list[Tuned]:
        """Race, and return the last ones with their values, best first."""
        first, *others = tuning_seeds(self.scenario)
        self._screen(first)
        alive = sorted(self.scenario.schemes, key=self._merit)
        alive = alive[: max(FINALISTS, math.ceil(len(alive) / HALVED))]
        best_s = self._merit(alive[0])[0]
        cap_s = self.within_s or PATIENT * best_s
        arms = [
            (entry, values)
            for entry in alive
            for values in self._best(entry)[:2]
            if self._time_s(entry, values) <= min(SLACK * best_s, CLOSE * self._merit(entry)[0])
        ]
        for seed in others:
            self._try(arms, seed, cap_s)
        alive = self._distinct(sorted(alive, key=self._merit))
        near_s = CLOSE * self._merit(alive[0])[0]
        best = alive[:2] + [x for x in alive[2:FINALISTS] if self._merit(x)[0] <= near_s]
        tuned = [record(tune_of(self.scenario, x), x.label, self.tried[x.label], *self.score) for x in best]
        return [Tuned(**each, cut_off=True) for each in tuned]

    def most_trials(self) -> int:
        """Number of trials, if all last candidates try two values again."""
        points = sum(len(list(tune_of(self.scenario, x).points())) for x in self.scenario.schemes)
        return points + 4 * max(FINALISTS, math.ceil(len(self.scenario.schemes) / HALVED))

    def _screen(self, seed: int) -> None:
        entries = sorted(self.scenario.schemes, key=lambda entry: self.step_s[entry.label])
        points = [(entry, _middle_first(tune_of(self.scenario, entry))) for entry in entries]
        most = max(len(own) for _, own in points)
        arms = [(entry, own[k]) for k in range(most) for entry, own in points if k < len(own)]
        if self.within_s is not None:
            self._try(arms, seed, _EARLY * self.within_s)
            return
        size = min(PROBES, len(entries))
        probes = [arms[round(k * (len(entries) - 1) / max(size - 1, 1))] for k in range(size)]
        cap_s = PROBE_STEPS * max(x for x in self.step_s.values() if x < math.inf)
        while not self._try(probes, seed, cap_s):
            self.tried.clear()
            cap_s *= 2
        left = [arm for arm in arms if arm not in probes]
        while left:
            size *= 2
            self._try(left[:size], seed, self._cap_s())
            left = left[size:]

    def _try(self, arms: Sequence[tuple[SchemeEntry, dict[str, Value]]], seed: int, cap_s: float) -> bool:
        """Run trials for at most ``cap_s``; whether one has arrived, or none can within the scenario."""
        stop, workers = self.scenario.stop, self.scenario.cluster.workers
        limit_s = min(cap_s, math.inf if stop.max_time is None else stop.max_time)
        capped = stop if math.isinf(limit_s) else stop.model_copy(update={"max_time": limit_s})
        scenario = self.scenario.model_copy(update={"stop": capped, "tune": None})
        default = scenario.workload.optimizer
        planned = [
            PlannedRun("trial", number, scenario, with_values(entry, default, values), seed, self.parts)
            for number, (entry, values) in enumerate(arms, self.num_trials)
        ]
        self.num_trials += len(planned)
        runs = list(self.run_all(planned))
        for (entry, values), run in zip(arms, runs, strict=True):
            trials = self.tried.setdefault(entry.label, [])
            trial = trial_of(values, seed, run, self.score[0])
            if not self.afford(run):
                trial = TuningTrial(values=values, seed=seed, time_to_target_s=None, score=None)
            trials.append(trial)
            self.steps += run.iterations * workers
        arrived = any(run.reached_target for run in runs)
        return arrived or limit_s < cap_s or all(run.wall_clock_s < limit_s for run in runs)

    def _distinct(self, entries: Iterable[SchemeEntry]) -> list[SchemeEntry]:
        """The first of those with equal trials on all seeds, such as of periods longer than a run."""
        best = [(entry, self._trials(entry, self._best(entry)[0])) for entry in entries]
        return [entry for k, (entry, own) in enumerate(best) if all(own != other for _, other in best[:k])]

    def _best(self, entry: SchemeEntry) -> list[dict[str, Value]]:
        return best_first(tune_of(self.scenario, entry), self.tried[entry.label], self.score[1])

    def _merit(self, entry: SchemeEntry) -> tuple[float, float]:
        """Mean time of the best values, and where they do not arrive their score; small is good."""
        values, sign = self._best(entry)[0], 1 if self.score[1] else -1
        scores = [trial["score"] for trial in self._trials(entry, values)]
        mean = fmean(math.inf if x is None else sign * x for x in scores)
        return self._time_s(entry, values), mean

    def _time_s(self, entry: SchemeEntry, values: dict[str, Value]) -> float:
        return mean_time_s(self._trials(entry, values))

    def _trials(self, entry: SchemeEntry, values: dict[str, Value]) -> list[TuningTrial]:
        return [trial for trial in self.tried[entry.label] if trial["values"] == values]

    def _cap_s(self) -> float:
        return self.within_s or SLACK * min(
            self._merit(x)[0] for x in self.scenario.schemes if x.label in self.tried
        )


def tune_of(scenario: Scenario, entry: SchemeEntry) -> Tune:
    """Values for a candidate: the scenario's grid, else three learning rates around its own."""
    if scenario.tune is not None:
        return scenario.tune
    rule = entry.optimizer or scenario.workload.optimizer
    rate = getattr(rule.constants, "lr", None)
    if rate is None:
        return Tune.model_validate({})
    grid = {"optimizer.lr": tuple(float(f"{factor * rate:.3g}") for factor in _RATES)}
    return Tune.model_validate({"grid": grid, "trials": len(_RATES) + 4})


def _middle_first(tune: Tune) -> list[dict[str, Value]]:
    points = list(tune.points())
    return sorted(points, key=lambda point: abs(points.index(point) - (len(points) - 1) / 2))
