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
from ...records.intervals import FEWEST, UNKNOWN, finite, of_median
from ...records.run import Run
from ...records.summarise import summarise_resolved
from ...records.summary import Summary, Tuned
from ...records.sweeps.crossovers import Crossover
from ...records.unfinished import NOTHING_KEPT, Parts
from ...scenario.schema import Scenario, dump
from ..jobs import ALONE, JobProcesses, RunsProgress
from ..simulate import processes_for, run_here, simulate
from ..tune import with_chosen
from .candidates import outdone, step_seconds
from .holds import FURTHEST, find_turns, knobs, measure_next
from .measured import outside_measured
from .race import Race

_HOUR_S: Final = 3600.0


@dataclass(frozen=True)
class Raced:
    """The end of a race.

    Attributes:
        scenario: the last candidates with their values.
        runs: theirs, on the scenario's seeds.
        tuning: their trials.
        race: all trials.
        plainer: label -> the plainer scheme for which a candidate was left out.
    """

    scenario: Scenario
    runs: Sequence[Run]
    tuning: Sequence[Tuned]
    race: Race
    plainer: Mapping[str, str]

    @property
    def steps(self) -> float:
        """Steps of all workers in trials and runs."""
        return self.race.steps + sum(run.iterations for run in self.runs) * self.scenario.cluster.workers


def with_goal(scenario: Scenario, hours: float | None) -> Scenario:
    """The scenario; with ``hours``, its runs end after them and have no target, so that the score decides.

    Raises:
        InputError: nothing is trained, the hours are none, or there is no goal at all.
    """
    if hours is None:
        if is_trained(scenario) and scenario.stop.target is None:
            raise InputError("stop.target: a race needs a goal: add one, or say --hours")
        return scenario
    if not is_trained(scenario):
        raise InputError("--hours: nothing is trained here, so there is no score to compare; leave it out")
    if not 0 < hours < math.inf:
        raise InputError(f"--hours {hours:g}: must be more than 0")
    target, stop = scenario.stop.target, scenario.stop
    on = scenario.evaluate.on if target is None else target.on
    stop = stop.model_copy(update={"target": None, "max_time": hours * _HOUR_S})
    evaluate = scenario.evaluate.model_copy(update={"on": on})
    repeats = scenario.repeats if isinstance(scenario.repeats, int) else FEWEST
    return scenario.model_copy(update={"stop": stop, "evaluate": evaluate, "repeats": repeats})


def run_race(
    scenario: Scenario,
    score: tuple[str, bool],
    hours: float | None = None,
    *,
    device: torch.device | None = None,
    progress: RunsProgress | None = None,
    parts: Parts = NOTHING_KEPT,
    warn: Callable[[str], None] | None = None,
    processes: JobProcesses = ALONE,
) -> Raced:
    """Race a resolved scenario's schemes, and run the last ones.

    Args:
        scenario: with all candidates, and ``with_goal``.
        score: name of the score, and whether small is good.
        hours: time as the goal; None: the target is.
        device, progress, parts, warn, processes: as for ``simulate``.
    """
    here, at_work = partial(run_here, device, "auto"), processes_for(device, processes)
    run_all = partial(at_work.run_all, run_here=here, parts=parts, progress=progress, warn=warn)
    with one_thread():
        step_s = {entry.label: step_seconds(scenario, entry) for entry in scenario.schemes}
        plainer = outdone(scenario, step_s)
        racing = _only(scenario, step_s.keys() - plainer.keys())
        race = Race(racing, step_s, run_all, score, None if hours is None else hours * _HOUR_S)
        tuning = race.finalists() if is_trained(scenario) and len(racing.schemes) > 1 else []
    last = with_chosen(_only(racing, {each["label"] for each in tuning}) if tuning else racing, tuning)
    runs = list(simulate(last, device=device, progress=progress, parts=parts, warn=warn, processes=processes))
    return Raced(last, runs, tuning, race, plainer)


def recommend(raced: Raced, run_each: Callable[[list[Scenario]], list[list[Run]]]) -> dict[str, Any]:
    """Output of ``paceline recommend``, as plain values: the first, all candidates, and what would turn it.

    ``run_each``: runs scenarios that differ in their networks (``sweep.grid.simulate``).
    """
    last, runs, race = raced.scenario, raced.runs, raced.race
    summary = summarise_resolved(dump(last), last.name, runs, raced.tuning, facts={})
    timed = race.within_s is not None
    first = _by_score(runs, *race.score) if timed else _by_time(summary)
    turns: list[Crossover] = []
    varied = [] if timed or first["second"] is None else list(knobs(last))
    two = _only(last, {first["first"], first["second"]})
    for key in varied:
        turns += find_turns(
            two, key, [x for x in runs if x.label in (first["first"], first["second"])], run_each
        )
    return {
        "scenario": last.name, "within_s": race.within_s, "score": race.score[0], **first,
        "values": next((each["chosen"] for each in raced.tuning if each["label"] == first["first"]), {}),
        "candidates": _rows(race, runs, raced.plainer),
        "varied": varied, "furthest": FURTHEST, "crossovers": turns,
        "measure_next": measure_next(last, turns, first["examples"]),
        "outside_measured": outside_measured(last),
        "finalists": len(last.schemes), "trials": race.num_trials, "runs": len(runs), "steps": raced.steps,
    }  # fmt: skip


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
    return {**summary["verdict"], "examples": summary["verdict"].get("break_even")}


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
    settled = lead["low"] is not None and lead["low"] > 0
    words = f"{first}: {metric.replace('_', ' ')} {sign * statistics.median(scores[first].values()):.4g}"
    if lead["median"] is not None:
        words += f", ahead of {second} by {lead['median']:.2g}"
        words += (
            ""
            if lead["low"] is None or lead["high"] is None
            else f" ({lead['low']:.2g} to {lead['high']:.2g})"
        )
    text = words if settled else f"{words}, not settled"
    return {
        "first": first,
        "second": second,
        "settled": settled,
        "text": text,
        "lead": lead,
        "examples": None,
    }
