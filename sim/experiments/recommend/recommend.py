"""A recommendation: candidates raced with equal tuning, and what their last runs say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch

from ...config.units import format_bytes, format_seconds
from ...devices import one_thread
from ...errors import InputError
from ...records.money.cost import cost, format_money
from ...records.run import Run
from ...records.scenario_facts import read_facts
from ...records.summarise import summarise_resolved
from ...records.summary import Tuned
from ...records.unfinished import NOTHING_KEPT, Parts
from ...scenario.parts import TargetSettings
from ...scenario.schema import Scenario, dump
from ..jobs import ALONE, JobProcesses, RunsProgress
from ..simulate import processes_for, run_here
from ..tune import deciding_score, with_chosen
from .candidates import is_trained, outdone, step_seconds
from .holds import FURTHEST, find_turns, nearest_turn, quantities
from .measured import outside_measured
from .race import Race

_HOUR_S: Final = 3600.0


def check_goal(scenario: Scenario, hours: float | None) -> None:
    """Raise ``InputError`` where there is nothing to race for."""
    if hours is None and is_trained(scenario) and scenario.stop.target is None:
        raise InputError("stop.target: a race needs a goal; add one, or say --hours")
    if hours is not None and not is_trained(scenario):
        raise InputError("--hours: nothing is trained here, so there is no score to compare; leave it out")
    if hours is not None and not 0 < hours < math.inf:
        raise InputError(f"--hours {hours:g}: must be more than 0")


def run_race(
    scenario: Scenario,
    hours: float | None = None,
    *,
    device: torch.device | None = None,
    progress: RunsProgress | None = None,
    parts: Parts = NOTHING_KEPT,
    processes: JobProcesses = ALONE,
) -> tuple[Scenario, list[Tuned], Race]:
    """Race a resolved scenario's schemes: the last ones with their values, their trials, and all of the race.

    With ``hours`` trials have no target, and the last scenario's is the best score that is in reach after
    them. Other arguments are as for ``simulate``.
    """
    score, target = deciding_score(scenario), scenario.stop.target
    here, at_work = partial(run_here, device, "auto"), processes_for(device, processes)
    run_all = partial(at_work.run_all, run_here=here, parts=parts, progress=progress)
    within_s = None if hours is None else hours * _HOUR_S
    if within_s is not None:
        on = scenario.evaluate.on if target is None else target.on
        metric = score[0] if target is None else target.metric
        score = metric, score[1]
        stop = scenario.stop.model_copy(update={"target": None, "max_time": within_s})
        evaluate = scenario.evaluate.model_copy(update={"on": on})
        scenario = scenario.model_copy(update={"stop": stop, "evaluate": evaluate})
    with one_thread():
        step_s = {entry.label: step_seconds(scenario, entry) for entry in scenario.schemes}
        left = step_s.keys() - outdone(scenario, step_s) if is_trained(scenario) else step_s.keys()
        race = Race(only(scenario, left), step_s, run_all, score, within_s)
        tuning = race.finalists() if is_trained(scenario) and len(left) > 1 else []
    last = only(scenario, {each["label"] for each in tuning} if tuning else left)
    if within_s is not None and tuning:
        best = [x["score"] for x in tuning[0]["trials"] if x["values"] == tuning[0]["chosen"]]
        value = statistics.median(math.nan if x is None else x for x in best)
        goal = TargetSettings(metric=score[0], value=value, on=last.evaluate.on)
        last = last.model_copy(update={"stop": last.stop.model_copy(update={"target": goal})})
    return with_chosen(last, tuning), tuning, race


def only(scenario: Scenario, labels: Any) -> Scenario:
    """The scenario with the schemes of these labels."""
    kept = tuple(entry for entry in scenario.schemes if entry.label in labels)
    return scenario.model_copy(update={"schemes": kept})


def advise(
    last: Scenario, runs: Sequence[Run], race: Race, run_each: Callable[[list[Scenario]], list[list[Run]]]
) -> dict[str, Any]:
    """What the last runs of a race say, as plain values; ``text`` holds it in sentences.

    ``run_each``: runs scenarios that differ in their networks (``sweep.grid.simulate``).
    """
    text = dump(last)
    verdict = summarise_resolved(text, last.name, runs, facts={})["verdict"]
    two = only(last, {verdict["first"], verdict["second"]})
    own = [run for run in runs if run.label in {entry.label for entry in two.schemes}]
    turns = {
        name: find_turns(two, name, own, run_each)
        for name in (quantities(two) if len(two.schemes) == 2 else ())
    }
    front = _front(last, {run.label: run for run in [*race.runs.values(), *runs]})
    steady = [name for name, crossovers in turns.items() if not crossovers]
    outside = outside_measured(last)
    sentences = [f"Pareto front: {'; '.join(row['text'] for row in front)}"] if front else []
    sentences += [each["text"] for crossovers in turns.values() for each in crossovers]
    if steady:
        times = f"{1 / FURTHEST:g} to {FURTHEST:g} times"
        sentences.append(
            f"{verdict['first']} stays ahead of {verdict['second']} at {times} the {' and '.join(steady)}"
        )
    if near := nearest_turn(two, turns):
        sentences.append(f"Measure next: {near}")
    sentences.append(
        f"Not covered by measurements: {', '.join(outside)}"
        if outside
        else "Measured: clusters such as this one"
    )
    return {
        "first": verdict["first"], "candidates": race.step_s, "trials": race.num_trials,
        "front": front, "crossovers": turns, "outside_measured": outside, "text": sentences,
    }  # fmt: skip


def _front(scenario: Scenario, runs: Mapping[str, Run]) -> list[dict[str, Any]]:
    """Runs that no other beats in time, bytes and money to the target, fastest first."""
    price = read_facts(dump(scenario)).price
    rows = []
    for label, run in runs.items():
        if (met := run.met) is not None:
            share = met.bytes_sent / max(run.bytes_sent, 1)
            spent = None if price is None else cost(price, met.time_s, run.between, share)
            costs = (met.time_s, met.bytes_sent, spent or 0.0)
            money = "" if price is None or spent is None else f", {format_money(spent, price['currency'])}"
            words = f"{label} ({format_seconds(met.time_s)}, {format_bytes(met.bytes_sent)}{money})"
            rows.append((costs, {"label": label, "costs": list(costs), "text": words}))
    return [
        row
        for costs, row in sorted(rows, key=lambda each: each[0])
        if not any(
            other != costs and all(a <= b for a, b in zip(other, costs, strict=True)) for other, _ in rows
        )
    ]
