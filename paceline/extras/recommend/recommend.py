"""A recommendation: candidates raced with equal tuning, and what their last runs say."""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import torch

from paceline.sim.config.units import format_bytes, format_seconds
from paceline.sim.devices import one_thread
from paceline.sim.errors import InputError, RunError
from paceline.sim.experiments.costs.bounds import describe_schemes
from paceline.sim.experiments.jobs import ALONE, JobProcesses, RunsProgress
from paceline.sim.experiments.simulate import processes_for, run_here
from paceline.sim.experiments.tune import deciding_score, with_chosen
from paceline.sim.records.money.cost import PriceRecord, cost_to_end, format_money
from paceline.sim.records.run import Run
from paceline.sim.records.scenario_facts import read_facts
from paceline.sim.records.summarise import summarise_resolved
from paceline.sim.records.summary import SchemeSummary, Tuned
from paceline.sim.records.unfinished import NOTHING_KEPT, Parts
from paceline.sim.scenario.parts import TargetSettings
from paceline.sim.scenario.schema import Scenario, dump

from .candidates import is_trained, outdone, step_seconds
from .race import Race

_HOUR_S: Final = 3600.0


def check_goal(scenario: Scenario, hours: float | None, euros: float | None) -> None:
    """Raise ``InputError`` where there is nothing to race for, or a limit makes no sense."""
    trained, price = is_trained(scenario), scenario.price
    for option, limit in (("--hours", hours), ("--euros", euros)):
        if limit is not None and not 0 < limit < math.inf:
            raise InputError(f"{option} {limit:g}: must be more than 0, and finite")
    if hours is not None and not trained:
        raise InputError("--hours: nothing is trained here, so no trials race; write 'stop.max_time' instead")
    if hours is None and trained and scenario.stop.target is None:
        raise InputError("stop.target: a race needs a goal; add one, or say --hours")
    currency = None if price is None else read_price_of(scenario)["currency"]
    if euros is not None and currency != "EUR":
        instead = f"write those in {currency} in EUR too" if currency else "add some"
        raise InputError(f"--euros: needs prices in EUR; {instead}, such as price: {{worker_hour: 2.5 EUR}}")


def read_price_of(scenario: Scenario) -> PriceRecord:
    """Prices of a scenario that has some."""
    price = read_facts(dump(scenario)).price
    assert price is not None
    return price


def run_race(
    scenario: Scenario,
    hours: float | None = None,
    euros: float | None = None,
    *,
    device: torch.device | None = None,
    progress: RunsProgress | None = None,
    parts: Parts = NOTHING_KEPT,
    processes: JobProcesses = ALONE,
) -> tuple[Scenario, list[Tuned], Race]:
    """Race a resolved scenario's schemes: the last ones with their values, their trials, and all of the race.

    With ``hours`` trials have no target, and the last scenario's is the best score in reach within them. Runs
    of more than ``euros`` count as without an end. Other arguments are as for ``simulate``.
    """
    score, stop, evaluate = deciding_score(scenario), scenario.stop, scenario.evaluate
    within_s = None if hours is None else hours * _HOUR_S
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
        afford = (lambda run: True) if euros is None else partial(_affords, read_price_of(scenario), euros)
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


def _affords(price: PriceRecord, euros: float, run: Run) -> bool:
    return cost_to_end(run, price) <= euros


def only(scenario: Scenario, labels: Any) -> Scenario:
    """The scenario with the schemes of these labels."""
    kept = tuple(entry for entry in scenario.schemes if entry.label in labels)
    return scenario.model_copy(update={"schemes": kept})


def advise(
    last: Scenario,
    runs: Sequence[Run],
    race: Race,
    euros: float | None = None,
    impossible: Mapping[str, str] = MappingProxyType({}),
    own: int = 0,
) -> dict[str, Any]:
    """What the last runs of a race say, as plain values; ``text`` holds it in sentences.

    ``euros``: schemes that cost more are no advice. ``impossible``: label -> why it was no candidate.
    ``own``: number of the scenario's own schemes, the first candidates.
    """
    rows = summarise_resolved(dump(last), last.name, runs, facts={})["summary"]
    dear = {row["label"]: _costs(row)[2] for row in rows if _costs(row)[2] > (euros or math.inf)}
    left, facts = [x for x in runs if x.label not in dear], describe_schemes(last, with_bounds=False)
    summary = summarise_resolved(dump(last), last.name, left, facts=facts)
    verdict, front, text = summary["verdict"], _front(summary["summary"]), list[str]()
    first, tried = verdict["first"], {entry.label for entry in race.scenario.schemes}
    if any(row["label"] == first and row["bytes_to_target"] == 0 for row in front):
        text.append(f"{first} reaches the target before it sends anything")
    if dear:
        over = ", ".join(f"{label} ({format_money(cost, 'EUR')})" for label, cost in dear.items())
        text.append(f"over the {format_money(euros or 0.0, 'EUR')} that may be spent: {over}")
    if alike := [label for label in race.step_s if label not in tried]:
        text.append(f"not tried, since a plainer candidate's step is as fast: {', '.join(alike)}")
    raced = {entry.label for entry in last.schemes}
    if lost := [label for label in list(race.step_s)[:own] if label in tried - raced]:
        text.append(f"of the scenario's schemes, behind others in the trials and not run: {', '.join(lost)}")
    kinds: dict[str, list[str]] = {}
    for label, why in impossible.items():  # sizes differ by candidate
        kinds.setdefault(why[:_ALIKE], []).append(label)
    text += [f"not possible here: {', '.join(own)} ({impossible[own[0]]})" for own in kinds.values()]
    if not is_trained(last):
        text.append("curves have no other schemes than the scenario's: no more candidates")
    of = f"of {len(tried)} candidates in {race.num_trials} trials and {len(runs)} runs"
    sure = "" if verdict["settled"] else " (not settled)"
    head = f"Recommended: {first}{sure}, {of}" if first else f"Nothing to recommend {of}"
    sentences = [head, *([f"Pareto front: {'; '.join(map(_words, front))}"] if front else []), *text]
    return {
        "first": first, "candidates": race.step_s, "trials": race.num_trials,
        "front": [{key: row.get(key) for key in _COSTS} | {"label": row["label"]} for row in front],
        "over_budget": dear, "not_tried": alike, "impossible": dict(impossible),
        "text": [f"{each[0].upper()}{each[1:]}." for each in sentences],
    }  # fmt: skip


_ALIKE: Final = 16
"""Letters that reasons of one kind begin with."""
_COSTS: Final = ("time_to_target_s", "bytes_to_target", "cost")


def _front(rows: Sequence[SchemeSummary]) -> list[SchemeSummary]:
    """Schemes that no other beats in time, bytes and money to the target, fastest first; equals once."""
    costs = {row["label"]: _costs(row) for row in rows}

    def is_beaten(mine: tuple[float, ...]) -> bool:
        return any(x != mine and all(map(operator.le, x, mine)) for x in costs.values())

    distinct = {costs[row["label"]]: row for row in reversed(rows)}
    return [row for mine, row in sorted(distinct.items()) if math.isfinite(mine[0]) and not is_beaten(mine)]


def _costs(row: SchemeSummary) -> tuple[float, ...]:
    money = row["cost"]["median"] if "cost" in row else 0.0
    known = row["time_to_target_s"]["median"], row["bytes_to_target"], money
    return tuple(math.inf if x is None else x for x in known)


def _words(row: SchemeSummary) -> str:
    time_s, num_bytes, amount = _costs(row)
    money = f", {format_money(amount, row['cost']['currency'])}" if "cost" in row else ""
    return f"{row['label']} ({format_seconds(time_s)}, {format_bytes(num_bytes)}{money})"
