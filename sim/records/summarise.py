"""Summaries of runs: per run, per scheme over its repeats, and the winner."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any, Literal, cast

import numpy as np

from ..errors import InputError, quote
from .carry.break_even import Scope
from .carry.noise import describe_gradients, hint
from .intervals import ENOUGH_DRAWS, FEWEST, UNKNOWN, Interval, finite, of_median, of_ratio, or_inf
from .money.cost import CostInterval, PriceRecord, add_costs, race_cost
from .rows import left_out_of, mean_shares, row_of
from .run import Evaluation, Run, Source, falls
from .scenario_facts import Goal, TransportRecord, facts_of, read_facts
from .summary import (
    SUMMARY_VERSION,
    Equal,
    SchemeFacts,
    SchemeSummary,
    Summary,
    Tuned,
    is_by_step,
    is_uneven,
    race_s,
    race_times,
    verdict_of,
)
from .verdict import chance_to_win, find_verdict, find_winner, find_winners


def summarise(
    scenario_name: str,
    runs: Sequence[Run],
    target: Goal | None = None,
    tuning: Sequence[Tuned] = (),
    facts: Mapping[str, SchemeFacts] | None = None,
    transport: TransportRecord | None = None,
    proxy: str | None = None,
    choices: str | None = None,
    price: PriceRecord | None = None,
    scope: Scope | None = None,
) -> Summary:
    """Summarise runs of one or both sources; rows come in the order in which their schemes first appear.

    Args:
        tuning: earlier choices, if any.
        facts: label -> facts about a scheme apart from its runs.
        transport: carrier of the bytes, if known.
        proxy: what the trained model stands for, if for another one.
        choices: target, scored model and partition, as a phrase.
        price: of workers and traffic; None: no costs.
        scope: how far the steps to the target reach; None: unknown.

    Raises:
        InputError: two runs share source, label and seed.
    """
    groups = _grouped(runs)
    rows = [_row(group, (facts or {}).get(group[0].label, {})) for group in groups.values()]
    summary = Summary(
        version=SUMMARY_VERSION,
        scenario=scenario_name,
        target=target,
        runs=[row_of(run) for run in runs],
        summary=rows,
        winner=None,
        paired=0,
        equal=None,
    )
    by_step = is_by_step(summary)
    for source in {run.source: None for run in runs}:
        times, mine = race_times(summary, source), [row for row in rows if row["source"] == source]
        label = find_winner(times)
        best = next((row for row in mine if row["label"] == label), None)
        shared = _compare(mine, times, best)
        if source == runs[0].source:
            summary["winner"] = None if best is None or (by_step and is_uneven(best)) else label
            winners = [] if best is None else groups[source, best["label"]]
            summary["paired"] = shared
            summary["equal"] = equal_terms([run for run in runs if run.source == source], target, winners)
    if (equal := summary["equal"]) is not None:
        for row, group in zip(rows, groups.values(), strict=True):
            row["score_at_equal_time"] = score_at(group, equal, "time_s")
            row["score_at_equal_bytes"] = score_at(group, equal, "bytes_sent")
    optional: dict[str, Any] = {"tuning": [*tuning] or None, "transport": transport, "proxy": proxy}
    optional |= {"choices": choices, "scope": scope}
    summary |= cast(Summary, {key: value for key, value in optional.items() if value is not None})
    if price is not None:
        _add_costs(summary, runs, price, by_step)
    summary["verdict"] = verdict_of(summary, runs[0].source) if runs else find_verdict([], {})
    return summary


def _add_costs(summary: Summary, runs: Sequence[Run], price: PriceRecord, by_step: bool) -> None:
    summary["price"] = price
    costs: dict[tuple[Source, str], list[float]] = {}
    for row, run in zip(summary["runs"], runs, strict=True):
        add_costs(row, run, price)
        costs.setdefault((run.source, run.label), []).append(race_cost(row, by_step))
    for scheme in summary["summary"]:
        median = of_median(costs[scheme["source"], scheme["label"]])
        scheme["cost"] = CostInterval(**median, currency=price["currency"])


def summarise_resolved(
    scenario: str | Mapping[str, Any],
    scenario_name: str,
    runs: Sequence[Run],
    tuning: Sequence[Tuned] = (),
    facts: Mapping[str, SchemeFacts] | None = None,
) -> Summary:
    """``summarise`` with what a resolved scenario's text or content says of target, transport and price."""
    known = read_facts(scenario) if isinstance(scenario, str) else facts_of(scenario)
    summary = summarise(
        scenario_name, runs, known.target, tuning, facts, known.transport, known.proxy, known.choices,
        known.price, known.scope,
    )  # fmt: skip
    for row in summary["summary"]:
        if "gradients" in row and row["label"] in (known.all_reduce or ()):
            row["gradients"]["text"] += hint(
                [x for run in runs if run.label == row["label"] for x in run.gradients]
            )
    return summary


def _grouped(runs: Sequence[Run]) -> dict[tuple[Source, str], list[Run]]:
    groups: dict[tuple[Source, str], dict[int, Run]] = {}
    for run in runs:
        if groups.setdefault((run.source, run.label), {}).setdefault(run.seed, run) is not run:
            raise InputError(
                f"two {run.source} runs of {quote(run.label)} have seed {run.seed}: give each scheme its own "
                "label"
            )
    return {of: list(group.values()) for of, group in groups.items()}


def _row(group: Sequence[Run], facts: SchemeFacts) -> SchemeSummary:
    times = [or_inf(run.time_to_target_s) for run in group]
    steps, least_steps = _to_target(group, lambda met: float(met.step), lambda run: run.iterations)
    sent, least_bytes = _to_target(group, lambda met: float(met.bytes_sent), lambda run: run.bytes_sent)
    row = SchemeSummary(
        scheme=group[0].scheme,
        label=group[0].label,
        source=group[0].source,
        runs=len(group),
        reached=sum(run.reached_target for run in group),
        diverged=sum(run.status == "diverged" for run in group),
        partial=sum(run.status == "partial" for run in group),
        time_to_target_s=of_median(times),
        at_least_s=_to_target(group, lambda met: met.time_s, lambda run: run.wall_clock_s)[1],
        at_least_steps=least_steps,
        at_least_bytes=least_bytes,
        step_s=of_median([race_s(row_of(run), by_step=True) for run in group]),
        ratio_to_best=UNKNOWN,
        wins=0.0,
        p_win=None,
        steps_to_target=steps,
        bytes_to_target=sent,
        score_at_equal_time=None,
        score_at_equal_bytes=None,
        wall_clock_s=fmean([run.wall_clock_s for run in group]),
        iterations=fmean([run.iterations for run in group]),
        bytes_sent=fmean([run.bytes_sent for run in group]),
        time_s=mean_shares(group),
    )
    paces = [run.pace for run in group if run.pace is not None]
    if len(paces) == len(group):
        row["step_shares"] = [
            None if None in each else fmean([share for share in each if share is not None])
            for each in zip(*(pace.shares for pace in paces if pace.shares), strict=True)
        ]
        averages = [[each or math.inf for each in pace.average_s] for pace in paces]
        row["average_s"] = [finite(fmean(each)) for each in zip(*averages, strict=True)]
        row["leaves_out"] = left_out_of(group)
    if costs := [run.faults for run in group if run.faults]:
        lost_s = sum(each["down_s"] + each["repeated_s"] + each["writing_s"] for each in costs)
        row["goodput"] = 1.0 - lost_s / (sum(run.wall_clock_s for run in group) or 1.0)
        if len(group) >= ENOUGH_DRAWS:
            row["time_to_target_p90_s"] = finite(sorted(times)[math.ceil(0.9 * len(group)) - 1])
    if points := [each for run in group for each in run.gradients]:
        row["gradients"] = describe_gradients(points)
    measured = row["source"] == "measured"
    left_out = {"bounds": measured, "random": measured, "draws": not facts.get("draws")}
    row |= cast(SchemeSummary, {name: fact for name, fact in facts.items() if not left_out.get(name)})
    return row


def _to_target(
    group: Sequence[Run], at: Callable[[Evaluation], float], to_end: Callable[[Run], float]
) -> tuple[float | None, float | None]:
    """Median effort of runs to the target, None where most never met it, and then its lower bound."""
    median = finite(np.median([math.inf if run.met is None else at(run.met) for run in group]))
    if median is not None:
        return median, None
    ends = (math.inf if run.status == "diverged" else to_end(run) for run in group)
    bounds = [end if run.met is None else at(run.met) for run, end in zip(group, ends, strict=True)]
    return None, finite(np.median(bounds))


def _compare(
    rows: Sequence[SchemeSummary], times: Mapping[str, Mapping[int, float]], best: SchemeSummary | None
) -> int:
    """Fill in a row's comparison with the others; returns the number of seeds that all share."""
    shared = sorted(set.intersection(*(set(column) for column in times.values())))
    if best is None or not shared:
        return len(shared)
    columns = np.array([[times[row["label"]][seed] for seed in shared] for row in rows])
    wins = find_winners(columns).sum(axis=1)
    for row, won in zip(rows, wins, strict=True):
        row["ratio_to_best"] = of_ratio(times[row["label"]], times[best["label"]])
        row["wins"] = float(won)
        row["p_win"] = chance_to_win(row["wins"], len(shared)) if len(shared) >= FEWEST else None
    return len(shared)


def equal_terms(runs: Sequence[Run], target: Goal | None, winners: Sequence[Run]) -> Equal | None:
    """Terms on which to compare ``runs``, all of one source; ``winners`` are the winning scheme's, if any.

    None where nothing was scored.
    """
    names = {name for run in runs for each in run.evaluations for name in each.metrics}
    wished = [*([target["metric"]] if target else []), "test_accuracy", "train_loss"]
    metric = next((name for name in wished if name in names), None)
    whole = [run for run in runs if run.status == "completed"]
    if metric is None or not whole:
        return None
    met = [run.met for run in winners]
    if any(met):
        time_s = float(np.median([math.inf if each is None else each.time_s for each in met]))
        sent = float(np.median([math.inf if each is None else each.bytes_sent for each in met]))
    else:
        time_s = min(run.wall_clock_s for run in whole)
        sent = float(min(run.bytes_sent for run in whole))
    return Equal(metric=metric, falling=_falling(metric, target, whole), time_s=time_s, bytes=sent or None)


def score_at(runs: Sequence[Run], equal: Equal, by: Literal["time_s", "bytes_sent"]) -> Interval | None:
    """Median score of a scheme's runs on ``equal`` terms, with its interval.

    A run's score is that of its latest evaluation until then; one that is not finite counts as worst.
    """
    limit = equal["time_s"] if by == "time_s" else equal["bytes"]
    if limit is None:
        return None
    worst = math.inf if equal["falling"] else -math.inf
    scores = []
    for run in runs:
        seen = [each for each in run.evaluations if getattr(each, by) <= limit]
        score = seen[-1].metrics.get(equal["metric"]) if seen else None
        scores.append(worst if score is None else score)
    return of_median(scores)


def _falling(metric: str, target: Goal | None, runs: Sequence[Run]) -> bool:
    """Whether the metric falls to its target, by its name, else by a run's first score."""
    value = 0.0 if target is None else target["value"]
    first = (run.evaluations[0].metrics.get(metric) for run in runs if run.evaluations)
    start = next((score for score in first if score is not None), value)
    return {None: start > value, True: True, False: False}[falls(metric)]
