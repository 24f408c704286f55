"""Summaries of a set of runs: per run, per scheme over its repeats, and who won.

A run that never reached the target counts as infinitely late, so that it is never dropped: a scheme has a
median time if most of its repeats got there. Runs without a target are compared by their time per step; one
that did not complete its steps counts as infinitely slow. Two schemes are compared on the seeds that they
share, which saw the same data and the same stragglers, so that ratios vary less than times; the winner, the
order of the others and all factors are of these ratios (``verdict``, which also says in a sentence what they
support). Intervals are those of ``intervals``.

Everything here is plain JSON: ``None`` where a number is missing or not finite, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NotRequired

import numpy as np
from typing_extensions import TypedDict

from ..errors import InputError, quote
from .equal_terms import Equal, equal_terms, score_at
from .intervals import FEWEST, UNKNOWN, Interval, finite, of_median, of_ratio
from .run import Run, Source, Status
from .scenario_facts import Goal, TransportRecord
from .verdict import Verdict, chance_to_win, find_verdict, find_winner, find_winners

SUMMARY_VERSION: Final = 3
"""Of ``summary.json``; changes when an older reader would misunderstand it."""

SUMMARY_VERSIONS: Final = (2, SUMMARY_VERSION)
"""What this program reads. In version 2 synchronous schemes were scored step by step, asynchronous ones on
models of every ``evaluate.every``-th step, and all that can be scored was."""

_ALWAYS: Final = ("train_loss", "test_accuracy", "consensus_distance")


class Shares(TypedDict):
    """Seconds per worker; add up to the wall clock."""

    compute: float
    communicate: float
    wait: float


class MachineRow(TypedDict):
    """Where a worker ran, as in ``paceline.sim.records.run.Machine``."""

    host: str
    clock_error_s: float | None


class RunRow(TypedDict):
    """One run.

    ``final``: the last scores, None for a metric that the task lacks; ``digest``, ``exchanges``,
    ``bracket_s``, ``engine``, ``engine_reason``, ``left_out``: see ``Run``.
    """

    scheme: str
    label: str
    seed: int
    source: Source
    reached_target: bool
    time_to_target_s: float | None
    wall_clock_s: float
    iterations: float
    final: dict[str, float | None]
    bytes_sent: int
    time_s: Shares
    status: Status
    message: NotRequired[str]
    digest: str
    machines: NotRequired[list[MachineRow]]
    hosts: NotRequired[dict[str, str]]
    exchanges: NotRequired[list[str]]
    bracket_s: NotRequired[list[float]]
    engine: NotRequired[str]
    engine_reason: NotRequired[str]
    left_out: NotRequired[list[list[int]]]


Cost = Literal["compute", "waiting", "latency", "bandwidth", "software"]
"""What the time of a run goes back to; see ``Bounds``."""


class Bounds(TypedDict):
    """What a scheme's time goes back to: shares of its wall clock that add up to 1.

    A tenth less of a cost makes the run shorter by a tenth of its share, as long as that cost still counts.

    Attributes:
        compute: the gradients, as an undisturbed worker computes them.
        waiting: what slow workers and slow moments add to that.
        latency: latencies of messages.
        bandwidth: their bytes.
        software: overheads of messages and of waking up.
        waits_for: ranks that are always slow,
        slow_workers: and their part of ``waiting``; the rest is for whoever is late.
        step_s: elapsed time over the mean number of steps that workers did in it.
        steps: how many steps were followed.
        random: something in the time of a step is.
    """

    compute: float
    waiting: float
    latency: float
    bandwidth: float
    software: float
    waits_for: list[int]
    slow_workers: float
    step_s: float
    steps: int
    random: bool


class MemoryRecord(TypedDict):
    """What each device of a worker holds at most, as the scheme declares it.

    Attributes:
        total_bytes: the sum of the parts.
        parts: bytes by name: parameters, gradients and so on.
        left_out: what is not counted, as phrases.
        limit_bytes: what the device has; None where the scenario does not say it.
    """

    total_bytes: float
    parts: dict[str, float]
    left_out: list[str]
    limit_bytes: float | None


class SchemeFacts(TypedDict):
    """What is known of a scheme apart from its runs.

    ``does``: what it does, in a sentence. ``bounds``, ``memory``: None where they are not known.
    """

    does: str
    bounds: Bounds | None
    memory: NotRequired[MemoryRecord | None]


class SchemeSummary(TypedDict):
    """One scheme, over its repeats.

    Attributes:
        runs, reached, diverged, partial: numbers of repeats.
        at_least_s: a lower bound on the median time to target where that is unknown because runs
            ended too early; None where it is known, or where most repeats diverged.
        step_s: wall clock over steps, infinite where a run did not complete; absent in older folders.
        ratio_to_best: time to target over the winner's: median over the seeds that both have. Without a
            target the same of ``step_s``.
        wins: on how many of the seeds that all schemes share this one was first; a tie is shared.
        p_win: chance to be first on one more seed (``verdict.chance_to_win``); None with few repeats.
        steps_to_target: median step of the evaluation that met the target; None like the median time.
        score_at_equal_time, score_at_equal_bytes: where ``Summary.equal`` says; None where it does not.
        wall_clock_s, iterations, bytes_sent, time_s: means.
        does, bounds, memory: see ``SchemeFacts``; absent in older folders, ``bounds`` also where runs were
            measured.
    """

    scheme: str
    label: str
    source: Source
    runs: int
    reached: int
    diverged: int
    partial: int
    time_to_target_s: Interval
    at_least_s: float | None
    step_s: NotRequired[Interval]
    ratio_to_best: Interval
    wins: float
    p_win: float | None
    steps_to_target: float | None
    score_at_equal_time: Interval | None
    score_at_equal_bytes: Interval | None
    wall_clock_s: float
    iterations: float
    bytes_sent: float
    time_s: Shares
    does: NotRequired[str]
    bounds: NotRequired[Bounds | None]
    memory: NotRequired[MemoryRecord | None]


class Lead(TypedDict):
    """By what factor the winner is faster than the second: its ``ratio_to_best``."""

    second: str
    factor: Interval


class TuningTrial(TypedDict):
    """One run of the tuning, before the comparison.

    Attributes:
        values: by key, as in ``tune``.
        seed: of this run; no run of the comparison has it.
        time_to_target_s: None if it did not get there.
        score: of ``Tuned.metric``, at its end.
    """

    values: dict[str, bool | int | float | str]
    seed: int
    time_to_target_s: float | None
    score: float | None


class Tuned(TypedDict):
    """What one scheme chose.

    Attributes:
        label: of the scheme.
        chosen: the values with the best median time to target; if none reaches it, the best median score.
        at_edge: keys whose value is the smallest or largest that there was to choose from.
        metric: the score that decides where no trial reaches the target.
        trials: all of them, in order.
    """

    label: str
    chosen: dict[str, bool | int | float | str]
    at_edge: list[str]
    metric: str
    trials: list[TuningTrial]


class Summary(TypedDict):
    """The JSON object of ``simulate`` and ``realrun``, and of ``summary.json``.

    If both simulated and measured runs are there, what is not per row is about the source of the first run.

    Attributes:
        winner: the label of who is first (``paceline.sim.records.verdict``), by time per step if there is
            no target; None if nobody arrives. Whether that is settled, ``verdict`` says.
        verdict: absent in older folders; ``paceline.sim.records.folder`` adds it when it reads them.
        lead: of the winner over the second; None where there are no two.
        paired: number of seeds that all schemes share.
        equal: where scores are compared at equal time and at equal bytes; None where nothing was scored.
        tuning: what the schemes chose, where the scenario has ``tune``.
        transport: what carried the bytes; absent in older folders.
        proxy: what the trained model stood for, as a sentence; absent where it stood for itself.
    """

    version: int
    scenario: str
    target: Goal | None
    transport: NotRequired[TransportRecord]
    proxy: NotRequired[str]
    runs: list[RunRow]
    summary: list[SchemeSummary]
    winner: str | None
    verdict: NotRequired[Verdict]
    lead: Lead | None
    paired: int
    equal: Equal | None
    tuning: NotRequired[list[Tuned]]


def summarise(
    scenario_name: str,
    runs: Sequence[Run],
    target: Goal | None = None,
    tuning: Sequence[Tuned] = (),
    facts: Mapping[str, SchemeFacts] | None = None,
    transport: TransportRecord | None = None,
    proxy: str | None = None,
) -> Summary:
    """Summarise runs; rows come in the order in which their schemes first appear.

    Args:
        scenario_name: copied.
        runs: any number of them, one or both sources.
        target: what the runs were after, if anything; copied.
        tuning: what was chosen before, if anything; copied.
        facts: label -> what is known of a scheme apart from its runs; copied.
        transport: what carries the bytes, if that is known; copied.
        proxy: what the trained model stands for, if for another one; copied.

    Raises:
        InputError: two runs share source, label and seed.
    """
    groups = _grouped(runs)
    by_step = target is None and not any(run.reached_target for run in runs)
    rows = [_row(group, (facts or {}).get(group[0].label)) for group in groups.values()]
    winner: SchemeSummary | None = None
    lead: Lead | None = None
    paired, equal = 0, None
    for source in {run.source: None for run in runs}:
        mine = [row for row in rows if row["source"] == source]
        times = {label: _times(group, by_step) for (s, label), group in groups.items() if s == source}
        label = find_winner(times)
        best = next((row for row in mine if row["label"] == label), None)
        shared = _compare(mine, times, best)
        if source == runs[0].source:
            winner, paired = best, shared
            lead = _lead(ranking(mine, label)) if best is not None else None
            winners = groups[source, best["label"]] if best is not None else []
            equal = equal_terms([run for run in runs if run.source == source], target, winners)
    if equal is not None:
        for row, group in zip(rows, groups.values(), strict=True):
            row["score_at_equal_time"] = score_at(group, equal, "time_s")
            row["score_at_equal_bytes"] = score_at(group, equal, "bytes_sent")
    summary = Summary(
        version=SUMMARY_VERSION,
        scenario=scenario_name,
        target=target,
        runs=[_run_row(run) for run in runs],
        summary=rows,
        winner=None if winner is None else winner["label"],
        lead=lead,
        paired=paired,
        equal=equal,
    )
    if runs:
        summary["verdict"] = verdict_of(summary, runs[0].source)
    else:
        summary["verdict"] = find_verdict([], {})
    if tuning:
        summary["tuning"] = list(tuning)
    if transport is not None:
        summary["transport"] = transport
    if proxy is not None:
        summary["proxy"] = proxy
    return summary


def verdict_of(summary: Summary, source: Source) -> Verdict:
    """Word the verdict on the runs of one source: ``summary["verdict"]`` is that of the first run's."""
    rows = [row for row in summary["summary"] if row["source"] == source]
    main = summary["runs"][0]["source"] if summary["runs"] else None
    by_step = is_by_step(summary)
    times: dict[str, dict[int, float]] = {row["label"]: {} for row in rows}
    for run in summary["runs"]:
        if run["source"] == source:
            times[run["label"]][run["seed"]] = _race_s(run, by_step)
    ranked = [row["label"] for row in ranking(rows, summary["winner"] if source == main else None)]
    bounds = [row.get("bounds") for row in rows]
    exact = by_step and source == "simulated" and all(each and not each["random"] for each in bounds)
    return find_verdict(ranked, times, by_step, exact)


def is_by_step(summary: Summary) -> bool:
    """Whether schemes are compared by their time per step: there was no target."""
    return summary["target"] is None and not any(run["reached_target"] for run in summary["runs"])


def _race_s(run: RunRow, by_step: bool) -> float:
    """What schemes are compared by, infinite for a run that did not get there."""
    if by_step:
        whole = run["status"] == "completed" and run["iterations"] > 0
        return run["wall_clock_s"] / run["iterations"] if whole else math.inf
    return math.inf if run["time_to_target_s"] is None else run["time_to_target_s"]


def renew_chances(summary: Summary) -> None:
    """Set ``p_win`` by the rule of today where there is one: older summaries have a share of resamples."""
    seeds: dict[Source, dict[str, set[int]]] = {}
    for run in summary["runs"]:
        seeds.setdefault(run["source"], {}).setdefault(run["label"], set()).add(run["seed"])
    for row in summary["summary"]:
        if row["p_win"] is not None:
            row["p_win"] = chance_to_win(row["wins"], len(set.intersection(*seeds[row["source"]].values())))


def ranking(rows: Iterable[SchemeSummary], winner: str | None = None) -> list[SchemeSummary]:
    """Rows of one source, best first: the winner, then by ratio to it; those without a time come last.

    Equal ratios are in the order of median times; those without a time in that of how often they got there.
    Where there was no target, times are those of a step.
    ``winner``, the label of who is first, may be slower by its median time than one that ties with it, if a
    third beats that one.
    """

    rows = list(rows)
    by_step = all(row["time_to_target_s"]["median"] is None for row in rows)

    def place(row: SchemeSummary) -> tuple[bool, bool, float, float, int, int, float]:
        ratio = row["ratio_to_best"]["median"]
        median = row["time_to_target_s"]["median"]
        if by_step and ratio is not None:
            median = row["step_s"]["median"]
        # A ratio below 1 is one of a circle, in which the smallest median time decided.
        behind = math.inf if ratio is None else max(ratio, 1.0)
        time_s = math.inf if median is None else median
        late = 0.0 if median is None else behind
        tied = -row["reached"], row["diverged"], row["wall_clock_s"]
        return median is None, row["label"] != winner, late, time_s, *tied

    return sorted(rows, key=place)


def median_run(
    summary: Summary, row: SchemeSummary, key: Literal["wall_clock_s", "iterations", "bytes_sent"]
) -> float:
    """The median of what the runs of a row have under ``key``, where the row itself has the mean."""
    mine = (run for run in summary["runs"] if (run["source"], run["label"]) == (row["source"], row["label"]))
    return _median([float(run[key]) for run in mine])


def steps_to_target(run: Run) -> float | None:
    """Step of the evaluation that met the target; None if none did."""
    if run.time_to_target_s is None:
        return None
    # The first of that instant: older records have a score of workers that were ahead after it.
    return next((float(e.step) for e in run.evaluations if e.time_s >= run.time_to_target_s), None)


def _grouped(runs: Sequence[Run]) -> dict[tuple[Source, str], list[Run]]:
    groups: dict[tuple[Source, str], list[Run]] = {}
    for run in runs:
        group = groups.setdefault((run.source, run.label), [])
        if any(other.seed == run.seed for other in group):
            raise InputError(
                f"two {run.source} runs of {quote(run.label)} have seed {run.seed}: give each scheme its own "
                "label"
            )
        group.append(run)
    return groups


def _run_row(run: Run) -> RunRow:
    last: Mapping[str, float | None] = run.evaluations[-1].metrics if run.evaluations else {}
    names = dict.fromkeys((*_ALWAYS, *last))
    row = RunRow(
        scheme=run.scheme,
        label=run.label,
        seed=run.seed,
        source=run.source,
        reached_target=run.reached_target,
        time_to_target_s=run.time_to_target_s,
        wall_clock_s=run.wall_clock_s,
        iterations=run.iterations,
        final={name: finite(last.get(name)) for name in names},
        bytes_sent=run.bytes_sent,
        time_s=_shares([run]),
        status=run.status,
        digest=run.digest,
    )
    if run.message:
        row["message"] = run.message
    if run.machines:
        row["machines"] = [MachineRow(host=m.host, clock_error_s=m.clock_error_s) for m in run.machines]
    if run.hosts:
        row["hosts"] = dict(run.hosts)
    if run.exchanges is not None:
        row["exchanges"] = list(run.exchanges)
    if run.bracket_s is not None:
        row["bracket_s"] = list(run.bracket_s)
    if run.engine:
        row["engine"] = run.engine
    if run.engine_reason:
        row["engine_reason"] = run.engine_reason
    if run.left_out:
        row["left_out"] = [list(each) for each in run.left_out]
    return row


def _row(group: Sequence[Run], facts: SchemeFacts | None) -> SchemeSummary:
    time, step = (of_median(list(_times(group, by_step).values())) for by_step in (False, True))
    median = time["median"]
    met = [steps_to_target(run) for run in group]
    row = SchemeSummary(
        scheme=group[0].scheme,
        label=group[0].label,
        source=group[0].source,
        runs=len(group),
        reached=sum(run.reached_target for run in group),
        diverged=sum(run.status == "diverged" for run in group),
        partial=sum(run.status == "partial" for run in group),
        time_to_target_s=time,
        at_least_s=None if median is not None else finite(_median([_at_least(run) for run in group])),
        step_s=step,
        ratio_to_best=UNKNOWN,
        wins=0.0,
        p_win=None,
        steps_to_target=finite(_median([math.inf if steps is None else steps for steps in met])),
        score_at_equal_time=None,
        score_at_equal_bytes=None,
        wall_clock_s=_mean([run.wall_clock_s for run in group]),
        iterations=_mean([run.iterations for run in group]),
        bytes_sent=_mean([run.bytes_sent for run in group]),
        time_s=_shares(group),
    )
    if facts is not None:
        row["does"] = facts["does"]
        if "memory" in facts:
            row["memory"] = facts["memory"]
        if row["source"] == "simulated":
            row["bounds"] = facts["bounds"]
    return row


def _shares(group: Sequence[Run]) -> Shares:
    return Shares(
        compute=_mean([run.time_s.compute for run in group]),
        communicate=_mean([run.time_s.communicate for run in group]),
        wait=_mean([run.time_s.wait for run in group]),
    )


def _times(group: Sequence[Run], by_step: bool) -> dict[int, float]:
    """Seed -> what schemes are compared by (``_race_s``); by seed, so that order cannot matter."""
    return dict(sorted((run.seed, _race_s(_run_row(run), by_step)) for run in group))


def _at_least(run: Run) -> float:
    if run.time_to_target_s is not None:
        return run.time_to_target_s
    return math.inf if run.status == "diverged" else run.wall_clock_s


def _compare(
    rows: Sequence[SchemeSummary], times: Mapping[str, Mapping[int, float]], best: SchemeSummary | None
) -> int:
    """Fill in what a row says in comparison with the others; returns how many seeds all of them share."""
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


def _lead(ranked: Sequence[SchemeSummary]) -> Lead | None:
    if len(ranked) < 2 or ranked[1]["ratio_to_best"]["median"] is None:
        return None
    return Lead(second=ranked[1]["label"], factor=ranked[1]["ratio_to_best"])


def _median(values: Sequence[float]) -> float:
    return float(np.median(np.array(values)))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
