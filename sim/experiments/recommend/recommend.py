"""A recommendation: candidates raced with equal tuning, the first of them, and how far its place holds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch

from ...devices import one_thread
from ...errors import InputError
from ...records.intervals import UNKNOWN, finite, of_median
from ...records.run import Run
from ...records.summarise import summarise_resolved
from ...records.summary import Summary, Tuned
from ...records.sweeps.crossovers import Crossover
from ...records.unfinished import NOTHING_KEPT, Parts
from ...scenario.schema import Scenario, dump
from ..jobs import ALONE, JobProcesses, PlannedRun, RunsProgress
from ..simulate import processes_for, run_here, simulate
from ..sweep import grid
from ..tune import deciding_score, with_chosen
from .candidates import outdone, step_seconds
from .holds import FACTORS, crossovers_along, knobs, measure_next, scaled
from .measured import outside_measured
from .race import Race

_HOUR_S: Final = 3600.0


@dataclass(frozen=True)
class Recommendation:
    """The result of a race.

    Attributes:
        scenario: the last candidates with their values.
        runs: theirs, on the scenario's seeds.
        tuning: their trials.
        summary: of these.
        answer: output of ``paceline recommend``, as plain values.
    """

    scenario: Scenario
    runs: Sequence[Run]
    tuning: Sequence[Tuned]
    summary: Summary
    answer: dict[str, Any]


def within(scenario: Scenario, hours: float) -> Scenario:
    """The scenario with the time as its goal: runs end after it, and the score decides.

    Raises:
        InputError: nothing is trained, or the hours are none.
    """
    if not is_trained(scenario):
        raise InputError("--hours: nothing is trained here, so there is no score to compare; leave it out")
    if not 0 < hours < math.inf:
        raise InputError(f"--hours {hours:g}: must be more than 0")
    target, stop = scenario.stop.target, scenario.stop
    on = scenario.evaluate.on if target is None else target.on
    stop = stop.model_copy(update={"target": None, "max_time": hours * _HOUR_S})
    evaluate = scenario.evaluate.model_copy(update={"on": on})
    return scenario.model_copy(update={"stop": stop, "evaluate": evaluate, "repeats": _repeats(scenario)})


def _repeats(scenario: Scenario) -> int:
    return scenario.repeats if isinstance(scenario.repeats, int) else scenario.repeats.most


def recommend(
    scenario: Scenario,
    score: tuple[str, bool],
    hours: float | None = None,
    *,
    device: torch.device | None = None,
    progress: RunsProgress | None = None,
    parts: Parts = NOTHING_KEPT,
    warn: Callable[[str], None] | None = None,
    processes: JobProcesses = ALONE,
) -> Recommendation:
    """Race a resolved scenario's schemes, and say which to run.

    Args:
        scenario: with all candidates, and ``within`` the hours if they are the goal.
        score: name of the score, and whether small is good.
        hours: time as the goal; None: the target is.
    """
    at_work = processes_for(device, processes)

    def run_all(planned: Sequence[PlannedRun]) -> Sequence[Run]:
        here = partial(run_here, device, "auto")
        return list(at_work.run_all(planned, here, parts=parts, progress=progress, warn=warn))

    timed = hours is not None
    with one_thread():
        step_s = {entry.label: step_seconds(scenario, entry) for entry in scenario.schemes}
        plainer = outdone(scenario, step_s)
        racing = _only(scenario, step_s.keys() - plainer.keys())
        race = Race(racing, step_s, run_all, score, _HOUR_S * hours if hours is not None else None)
        tuning = race.finalists() if is_trained(scenario) and len(racing.schemes) > 1 else []
        last = with_chosen(_only(racing, {each["label"] for each in tuning}) if tuning else racing, tuning)
    options = {"device": device, "progress": progress, "processes": processes}
    runs = list(simulate(last, parts=parts, warn=warn, **options))
    summary = summarise_resolved(dump(last), last.name, runs, tuning, facts={})
    rows = _rows(race, runs, plainer)
    first = _by_score(runs, *score) if timed else _by_time(summary)
    crossovers = []
    if not timed and first["second"] is not None:
        two = _only(last, {first["first"], first["second"]})
        crossovers = [each for key in knobs(two) for each in _crossovers(two, key, options)]
    answer = {
        "scenario": scenario.name, "hours": hours, "score": score[0], **first,
        "values": next((each["chosen"] for each in tuning if each["label"] == first["first"]), {}),
        "candidates": rows,
        "varied": list(knobs(last)) if not timed else [], "factors": [FACTORS[0], FACTORS[-1]],
        "crossovers": crossovers,
        "measure_next": measure_next(last, crossovers, first["examples"]),
        "measured": outside_measured(last), "finalists": len(last.schemes),
        "trials": race.num_trials, "runs": len(runs),
        "steps": race.steps + sum(run.iterations * scenario.cluster.workers for run in runs),
    }  # fmt: skip
    return Recommendation(last, runs, tuning, summary, answer)


def is_trained(scenario: Scenario) -> bool:
    """Whether gradients are computed, so that schemes differ in what they learn."""
    return not scenario.workload.timing_only and scenario.workload.curves is None


def _only(scenario: Scenario, labels: Collection[str]) -> Scenario:
    kept = tuple(entry for entry in scenario.schemes if entry.label in labels)
    return scenario.model_copy(update={"schemes": kept})


def _rows(race: Race, runs: Sequence[Run], plainer: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row for each candidate as far as it came: medians of its last runs, else its best trial."""
    rows = []
    for label, step_s in race.step_s.items():
        own = [run for run in runs if run.label == label]
        seen = own or [race.runs[label]] if own or label in race.runs else []
        row = {
            "label": label, "step_s": finite(step_s), "outdone_by": plainer.get(label), "last": bool(own),
            "time_to_target_s": _median(math.inf if x.met is None else x.met.time_s for x in seen),
            "bytes": _median(x.bytes_sent if x.met is None else x.met.bytes_sent for x in seen),
            "score": _median(_score(x, race.score[0]) for x in seen),
        }  # fmt: skip
        rows.append(row)
    goods = [_costs(row, race) for row in rows]
    for row, mine in zip(rows, goods, strict=True):
        row["front"] = mine is not None and not any(
            other is not None and other != mine and all(a <= b for a, b in zip(other, mine, strict=True))
            for other in goods
        )
    return rows


def _costs(row: Mapping[str, Any], race: Race) -> tuple[float, float] | None:
    """What a candidate on the Pareto front has least of; None where it did not come to the end."""
    if race.within_s is None:
        return None if row["time_to_target_s"] is None else (row["time_to_target_s"], row["bytes"])
    if row["score"] is None or not row["last"]:
        return None
    return row["score"] if race.score[1] else -row["score"], row["bytes"]


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return of_median(known)["median"] if known else None


def _score(run: Run, metric: str) -> float:
    score = run.evaluations[-1].metrics.get(metric) if run.evaluations else None
    return math.nan if score is None else score


def _by_time(summary: Summary) -> dict[str, Any]:
    """First and second by the verdict, whose words and interval are those of ``simulate``."""
    verdict = summary["verdict"]
    kept = ("first", "second", "settled", "text", "factor", "interval")
    known = verdict.get("break_even")
    return {key: verdict[key] for key in kept} | {"examples": known}


def _by_score(runs: Sequence[Run], metric: str, falling: bool) -> dict[str, Any]:
    """First and second by the median score, and the paired difference of their scores."""
    sign = 1 if falling else -1
    scores: dict[str, dict[int, float]] = {}
    for run in runs:
        score = _score(run, metric)
        scores.setdefault(run.label, {})[run.seed] = math.inf if math.isnan(score) else sign * score
    ranked = sorted(scores, key=lambda label: statistics.median(scores[label].values()))
    first, second = ranked[0], ranked[1] if len(ranked) > 1 else None
    lead = UNKNOWN
    if second is not None:
        lead = of_median([scores[second][seed] - mine for seed, mine in scores[first].items()])
    return {
        "first": first, "second": second, "settled": lead["low"] is not None and lead["low"] > 0,
        "lead": lead, "examples": None,
    }  # fmt: skip


def _crossovers(two: Scenario, key: str, options: Mapping[str, Any]) -> list[Crossover]:
    """Where another of two schemes is ahead, along one quantity; lockstep trains once for all its values."""
    scenarios = [scaled(two, key, factor) for factor in FACTORS]
    return crossovers_along(two, key, grid.simulate(scenarios, **options))
