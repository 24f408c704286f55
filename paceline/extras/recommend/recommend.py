"""A recommendation: candidates raced with equal tuning, and what their last runs say.

The race is successive halving over learning rates, seeds and time. All candidates try the same values on one
seed. A trial ends at ``SLACK`` times the best time so far: it is behind. One candidate in ``HALVED`` tries
its two best values on two more seeds, as in ``tune``, where a late trial is no miss yet; ``FINALISTS`` run on
the scenario's own seeds.

Source: Karnin, Koren and Somekh, Almost optimal exploration in multi-armed bandits, ICML 2013 (halving);
Hutter, Hoos, Leyton-Brown and Stuetzle, ParamILS, JAIR 36, 2009 (capping).
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final

import torch

from paceline.sim.config.units import format_bytes, format_seconds
from paceline.sim.devices import one_thread
from paceline.sim.errors import InputError, RunError
from paceline.sim.experiments.costs.bounds import describe_schemes
from paceline.sim.experiments.costs.unevenness import about_speeds
from paceline.sim.experiments.jobs import ALONE, JobProcesses, PlannedRun, RunsProgress
from paceline.sim.experiments.simulate import processes_for, run_here
from paceline.sim.experiments.tune import (
    best_first,
    deciding_score,
    record,
    trial_of,
    tuning_seeds,
    with_chosen,
)
from paceline.sim.records.money.cost import PriceRecord, cost_to_end, format_money, parse_money
from paceline.sim.records.run import Run
from paceline.sim.records.scenario_facts import read_facts
from paceline.sim.records.summarise import summarise_resolved
from paceline.sim.records.summary import SchemeSummary, Tuned, TuningTrial, mean_time_s
from paceline.sim.records.unfinished import NOTHING_KEPT, Parts
from paceline.sim.records.verdict import Value
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.parts import TargetSettings
from paceline.sim.scenario.schema import Scenario, dump
from paceline.sim.scenario.tuning_grid import Tune, with_values

from .candidates import is_trained, outdone, step_seconds
from .frameworks import how_to_run, ways_to_run

_HOUR_S: Final = 3600.0


def check_goal(scenario: Scenario, hours: float | None, tokens: float | None, within: bool) -> None:
    """Raise ``InputError`` where there is nothing to race for, or a limit (``within``) makes no sense."""
    trained = is_trained(scenario)
    if hours is not None and not 0 < hours < math.inf:
        raise InputError(f"--hours {hours:g}: must be more than 0, and finite")
    if tokens is None and within and not trained and scenario.workload.curves is None:
        raise InputError("--hours and --budget: nothing is trained here; say for how many --tokens")
    if tokens is not None and (trained or scenario.workload.curves is not None):
        raise InputError("--tokens: goes with workload.timing_only; here stop.target says when a run ends")
    if hours is None and trained and scenario.stop.target is None:
        raise InputError("stop.target: a race needs a goal; add one, or say --hours")


def amount_of(scenario: Scenario, budget: str | None) -> float:
    """The amount that ``--budget`` says, in the currency of the scenario's prices; infinite without one."""
    if budget is None:
        return math.inf
    try:
        amount, currency = parse_money(budget)
    except InputError as error:
        raise InputError(f"--budget: {error}") from None
    if scenario.price is None or read_price_of(scenario)["currency"] != currency:
        raise InputError(
            f"--budget: needs prices in {currency}, such as price: {{worker_hour: 2.5 {currency}}}"
        )
    return amount


def read_price_of(scenario: Scenario) -> PriceRecord:
    """Prices of a scenario that has some."""
    price = read_facts(dump(scenario)).price
    assert price is not None
    return price


def run_race(
    scenario: Scenario,
    hours: float | None = None,
    budget: float = math.inf,
    *,
    device: torch.device | None = None,
    progress: RunsProgress | None = None,
    parts: Parts = NOTHING_KEPT,
    processes: JobProcesses = ALONE,
) -> tuple[Scenario, list[Tuned], Race]:
    """Race a resolved scenario's schemes: the last ones with their values, their trials, and all of the race.

    With ``hours`` trials have no target, and the last scenario's is the best score in reach within them;
    curves keep theirs. Runs of more than ``budget`` count as without an end. Other arguments are as for
    ``simulate``.
    """
    score, stop, evaluate = deciding_score(scenario), scenario.stop, scenario.evaluate
    within_s = None if hours is None or not is_trained(scenario) else hours * _HOUR_S
    if within_s is not None:
        if stop.target is not None:
            score = stop.target.metric, score[1]
            evaluate = evaluate.model_copy(update={"on": stop.target.on})
        stop = stop.model_copy(update={"target": None, "max_time": within_s})
    scenario = scenario.model_copy(update={"stop": stop, "evaluate": evaluate})
    here, at_work = partial(run_here, device, "auto"), processes_for(device, processes)
    run_all = partial(at_work.run_all, run_here=here, progress=progress)
    with one_thread():
        step_s = {entry.label: step_seconds(scenario, entry) for entry in scenario.schemes}
        left = step_s.keys() - outdone(scenario, step_s) if is_trained(scenario) else step_s.keys()
        afford = (
            (lambda run: True) if math.isinf(budget) else partial(_affords, read_price_of(scenario), budget)
        )
        race = Race(only(scenario, left), step_s, run_all, score, within_s, afford, parts)
        if progress is not None:
            progress.begin("trial", race.most_trials(), parts.num_kept("trial"))
        tuning = race.finalists() if is_trained(scenario) and len(left) > 1 else []
    last = with_chosen(only(scenario, {each["label"] for each in tuning} if tuning else left), tuning)
    if within_s is not None and tuning:
        trials = [x["score"] for x in tuning[0]["trials"] if x["values"] == tuning[0]["chosen"]]
        scores = [x for x in trials if x is not None]
        if not scores:
            raise RunError("no candidate has a score: all trials diverged; try smaller learning rates")
        goal = TargetSettings(metric=score[0], value=statistics.median(scores), on=evaluate.on)
        last = last.model_copy(update={"stop": stop.model_copy(update={"target": goal})})
    return last, tuning, race


def _affords(price: PriceRecord, budget: float, run: Run) -> bool:
    return cost_to_end(run, price) <= budget


def only(scenario: Scenario, labels: Any) -> Scenario:
    """The scenario with the schemes of these labels."""
    kept = tuple(entry for entry in scenario.schemes if entry.label in labels)
    return scenario.model_copy(update={"schemes": kept})


def advise(
    last: Scenario,
    runs: Sequence[Run],
    race: Race,
    budget: float = math.inf,
    impossible: Mapping[str, str] = MappingProxyType({}),
    own: int = 0,
    hours: float = math.inf,
) -> dict[str, Any]:
    """What the last runs of a race say, as plain values; ``text`` holds it in sentences.

    ``budget``: schemes that cost more are no advice, as are those that take more than ``hours``.
    ``impossible``: label -> why it was no candidate.
    ``own``: number of the scenario's own schemes, the first candidates.
    """
    rows = summarise_resolved(dump(last), last.name, runs, facts={})["summary"]
    dear = {row["label"]: _costs(row)[2] for row in rows if budget < _costs(row)[2] < math.inf}
    late = {row["label"]: _costs(row)[0] for row in rows if hours * _HOUR_S < _costs(row)[0] < math.inf}
    left, facts = [x for x in runs if x.label not in dear | late], describe_schemes(last, with_bounds=False)
    summary = summarise_resolved(dump(last), last.name, left, facts=facts)
    verdict, front, text = summary["verdict"], _front(summary["summary"]), list[str]()
    first, tried = verdict["first"], {entry.label for entry in race.scenario.schemes}
    to_run = {x.label: (x, ways_to_run(last, x)) for x in last.schemes if x.label == first}
    if any(row["label"] == first and row["bytes_to_target"] == 0 for row in front):
        text.append(f"{first} reaches the target before it sends anything")
    if dear:
        unit = read_price_of(last)["currency"]
        over = ", ".join(f"{label} ({format_money(cost, unit)})" for label, cost in dear.items())
        text.append(f"over the {format_money(budget, unit)} that may be spent: {over}")
    text += [f"{label} takes more than the {hours:g} h: {format_seconds(late[label])}" for label in late]
    if alike := [label for label in race.step_s if label not in tried]:
        text.append(f"not tried, since a plainer candidate's step is as fast: {', '.join(alike)}")
    raced = {entry.label for entry in last.schemes}
    if lost := [label for label in list(race.step_s)[:own] if label in tried - raced]:
        text.append(f"of the scenario's schemes, behind others in the trials and not run: {', '.join(lost)}")
    kinds: dict[str, list[str]] = {}
    for label, why in impossible.items():  # sizes differ by candidate
        kinds.setdefault(why[:_ALIKE], []).append(label)
    text += [f"not possible here: {', '.join(own)} ({impossible[own[0]]})" for own in kinds.values()]
    text += (sentence.removesuffix(".") for sentence in about_speeds(last, race.step_s))
    if not is_trained(last):
        text.append("curves have no other schemes than the scenario's: no more candidates")
    of = f"of {len(tried)} candidates in {race.num_trials} trials and {len(runs)} runs"
    sure = "" if verdict["settled"] else " (not settled)"
    head = f"Recommended: {first}{sure}, {of}" if first else f"Nothing to recommend {of}"
    sentences = [f"Pareto front: {'; '.join(map(_words, front))}"] * bool(front) + text
    return {
        "first": first, "to_run": [row for _, rows in to_run.values() for row in rows],
        "candidates": race.step_s, "trials": race.num_trials,
        "front": [{key: row.get(key) for key in _COSTS} | {"label": row["label"]} for row in front],
        "over_budget": dear, "late": late, "not_tried": alike, "impossible": dict(impossible),
        "text": [f"{head}.", *(how_to_run(*each) for each in to_run.values()),
                 *(f"{each[0].upper()}{each[1:]}." for each in sentences)],
    }  # fmt: skip


_ALIKE: Final = 16
"""Letters that reasons of one kind begin with."""
_COSTS: Final = ("time_to_target_s", "bytes_to_target", "cost")


def _front(rows: Sequence[SchemeSummary]) -> list[SchemeSummary]:
    """Schemes that no other beats in time, bytes and money to the target, fastest first; equals once."""
    costs = {row["label"]: _costs(row) for row in rows}
    distinct = {costs[row["label"]]: row for row in reversed(rows)}
    return [
        row
        for mine, row in sorted(distinct.items())
        if math.isfinite(mine[0])
        and not any(x != mine and all(map(operator.le, x, mine)) for x in costs.values())
    ]


def _costs(row: SchemeSummary) -> tuple[float, ...]:
    money = row["cost"]["median"] if "cost" in row else 0.0
    known = row["time_to_target_s"]["median"], row["bytes_to_target"], money
    return tuple(math.inf if x is None else x for x in known)


def _words(row: SchemeSummary) -> str:
    time_s, num_bytes, amount = _costs(row)
    money = f", {format_money(amount, row['cost']['currency'])}" if "cost" in row else ""
    return f"{row['label']} ({format_seconds(time_s)}, {format_bytes(num_bytes)}{money})"


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
