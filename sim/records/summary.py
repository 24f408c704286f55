"""Summaries of a set of runs: per run, per scheme over its repeats, and the winner.

A run that never reached the target counts as infinitely late and is never dropped: a scheme has a median time
if most of its repeats got there. Runs without a target are compared by their time per step; one that did not
complete its steps counts as infinitely slow. Two schemes are compared on their common seeds, with the same
data and stragglers, so that ratios vary less than times; the winner, the order of the others and all factors
are of these ratios (``verdict``, which also words what they support). Intervals are those of ``intervals``.

Everything here is plain JSON: ``None`` where a number is missing or not finite, never NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence, Set
from statistics import fmean, median
from typing import Final, Literal, NotRequired, TypeVar

from typing_extensions import TypedDict

from .carry.break_even import FEWEST_ROUNDS, PROXY_SAYS, Scope, find_break_even, too_few_rounds
from .carry.noise import GradientSummary
from .carry.score_error import error_of_ratio, score_error
from .intervals import Interval, or_inf
from .money.cost import CostInterval, PriceRecord, race_cost
from .rates import RATE, RateOrders, find_orders
from .rows import RowFacts, RunRow
from .run import OTHER_CLOCK, Source
from .scenario_facts import CURVES, OF_RECIPE, Goal, TransportRecord
from .verdict import BreakEven, Tried, Value, Verdict, find_verdict, find_winner

_T = TypeVar("_T")

SUMMARY_VERSION: Final = 3
"""Version of ``summary.json``; changes when an older reader would misunderstand it."""

UNEVEN: Final = 2.0
"""Ratio of the fastest worker's steps to the slowest one's beyond which a mean step names no winner."""


Cost = Literal["compute", "waiting", "latency", "bandwidth", "software"]
"""Causes of a run's time; see ``Bounds``."""


class Bounds(TypedDict):
    """Causes of a scheme's time: shares of its wall clock that add up to 1.

    A tenth less of a cost makes the run shorter by a tenth of its share, as long as that cost still counts.

    Attributes:
        compute: gradients on an undisturbed worker.
        waiting: added by slow workers and slow moments.
        latency: of messages.
        bandwidth: for the bytes of messages.
        software: overheads of messages and of waking up, and ``round``.
        waits_for: ranks that are always slow,
        slow_workers: and their part of ``waiting``; the rest is for momentary stragglers.
        step_s: elapsed time over the workers' mean number of steps in it.
        steps: number of steps followed.
        random: whether the time of a step is random.
        by_bandwidth: (factor, ``step_s`` with every bandwidth times it), ascending; empty without a
            target, absent in older folders.
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
    by_bandwidth: NotRequired[list[list[float]]]


class MemoryRecord(TypedDict):
    """Peak memory of each device of a worker, as the scheme declares it.

    ``parts``: bytes by name, parameters, gradients and so on; ``left_out``: uncounted parts, as phrases;
    ``limit_bytes``: the device's memory, None where the scenario does not say it.
    """

    total_bytes: float
    parts: dict[str, float]
    left_out: list[str]
    limit_bytes: float | None


class SchemeFacts(TypedDict, total=False):
    """Facts about a scheme apart from its runs; absent in older folders.

    ``does``: a sentence about its purpose. ``bounds``, ``memory``: None where unknown. ``random``: whether
    the time of a step is random, where there are no bounds to say it. ``draws``: whether the scheme draws who
    exchanges with whom.
    """

    does: str
    draws: bool
    memory: MemoryRecord | None
    bounds: Bounds | None
    random: bool


class SchemeSummary(RowFacts, SchemeFacts):
    """One scheme, over its repeats.

    Attributes:
        runs, reached, diverged, partial: numbers of repeats.
        at_least_s, at_least_steps, at_least_bytes: lower bounds on the median time, steps and bytes to the
            target where these are unknown because runs ended too early; None where they are known, or where
            most repeats diverged.
        step_s: of runs, infinite where one did not complete; absent in older folders.
        step_shares, average_s: of each worker: its part of all steps, and the time between its averages;
            means over runs. Absent in older folders.
        leaves_out: costs that ``step_s`` does not count, as phrases; absent in older folders.
        ratio_to_best: time to target over the winner's: median over their common seeds. Without a target the
            same of ``step_s``.
        wins: number of the seeds common to all schemes on which this one was first; a tie is shared.
        p_win: chance to be first on one more seed (``verdict.chance_to_win``); None with few repeats.
        steps_to_target, bytes_to_target: medians of the evaluation that met the target: its step, and all
            workers' bytes by then; None like the median time.
        score_at_equal_time, score_at_equal_bytes: at the points of ``Summary.equal``; None without them.
        wall_clock_s, iterations, bytes_sent, time_s: means.
        cost: to the target, or of a step where there is none; absent without prices.
        goodput: useful steps a second over those without faults and checkpoints; absent where none are.
        time_to_target_p90_s: with faults and ``intervals.ENOUGH_DRAWS`` runs or more: the time within which 9
            of 10 reached the target; None where fewer did.
        gradients: their noise and heterogeneity along the runs; absent where they were not measured.
        bounds, random: absent where runs were measured, as are ``draws`` where it draws nothing. Keys absent
            in older folders that are no ``SchemeFacts`` are computed when they are read.
    """

    bytes_sent: float
    runs: int
    reached: int
    diverged: int
    partial: int
    time_to_target_s: Interval
    at_least_s: float | None
    at_least_steps: NotRequired[float | None]
    at_least_bytes: NotRequired[float | None]
    step_s: NotRequired[Interval]
    ratio_to_best: Interval
    wins: float
    p_win: float | None
    steps_to_target: float | None
    bytes_to_target: NotRequired[float | None]
    score_at_equal_time: Interval | None
    score_at_equal_bytes: Interval | None
    cost: NotRequired[CostInterval]
    goodput: NotRequired[float]
    time_to_target_p90_s: NotRequired[float | None]
    gradients: NotRequired[GradientSummary]


class TuningTrial(TypedDict):
    """One tuning run, before the comparison.

    ``values``: by key, as in ``tune``; ``seed``: no run of the comparison has it; ``time_to_target_s``: None
    if it did not reach the target; ``score``: final value of ``Tuned.metric``; ``levels``: values of that
    between the first and the target, each with the seconds to it, as far as they were met; of tuned learning
    rates on the seed of all points, absent in older folders.
    """

    values: dict[str, Value]
    seed: int
    time_to_target_s: float | None
    score: float | None
    levels: NotRequired[list[list[float]]]


class Tuned(TypedDict):
    """The tuning of one scheme.

    Attributes:
        label: of the scheme.
        chosen: the values with the best mean time to target over the trials' seeds; if none reaches it on
            all of them, the best mean score.
        at_edge: keys whose chosen value is the smallest or largest candidate.
        metric: the score that decides where no values reach the target on every seed.
        trials: all of them, in order.
        cut_off: trials ended as soon as they were behind; absent where all ran to the target or to their end.
    """

    label: str
    chosen: dict[str, Value]
    at_edge: list[str]
    metric: str
    trials: list[TuningTrial]
    cut_off: NotRequired[bool]


class Equal(TypedDict):
    """The moment and the amount of data at which schemes are compared, with a target or without.

    Attributes:
        metric: the target's; without a target the test accuracy, or else the training loss.
        falling: whether small scores are good ones.
        time_s: the winner's median time to target; without a winner, the end of the first run to end.
        bytes: the winner's median bytes sent by then; without a winner, the least that a run sent in all.
            None if that is nothing.
    """

    metric: str
    falling: bool
    time_s: float
    bytes: float | None


class Summary(TypedDict):
    """The JSON object of ``simulate`` and ``realrun``, and of ``summary.json``.

    If it has both simulated and measured runs, keys that are not per row are about the source of the first
    run.

    Attributes:
        winner: the label of the first (``paceline.sim.records.verdict``), by time per step if there is no
            target; None if none arrives, or if time per step alone names none. ``verdict`` says whether that
            is settled.
        paired: number of seeds that all schemes share.
        equal: points of comparison at equal time and at equal bytes; None where nothing was scored.
        tuning: the schemes' choices, where the scenario has ``tune``.
        transport: of the bytes.
        proxy: a sentence about the model that the trained one stood for; absent where it stood for itself.
        choices: target, scored model and partition, as a phrase; absent without a target.
        price: of workers and traffic, where the scenario has it.
        scope: how far the steps to the target reach; absent without a target, and in older folders.
    """

    version: int
    scenario: str
    target: Goal | None
    transport: NotRequired[TransportRecord]
    proxy: NotRequired[str]
    choices: NotRequired[str]
    price: NotRequired[PriceRecord]
    scope: NotRequired[Scope]
    runs: list[RunRow]
    summary: list[SchemeSummary]
    winner: str | None
    verdict: NotRequired[Verdict]
    paired: int
    equal: Equal | None
    tuning: NotRequired[list[Tuned]]


def main_source(summary: Summary) -> Source | None:
    """The source of the first run, which keys that are not per row are about."""
    return summary["runs"][0]["source"] if summary["runs"] else None


def verdict_of(summary: Summary, source: Source) -> Verdict:
    """Word the verdict on the runs of one source: ``summary["verdict"]`` is that of the first run's."""
    rows = [row for row in summary["summary"] if row["source"] == source]
    main, by_step = main_source(summary), is_by_step(summary)
    ranked = [row["label"] for row in ranking(rows, summary["winner"] if source == main else None)]
    by_luck = {row["label"] for row in rows if row.get("draws") and _averages(row) < FEWEST_ROUNDS}

    def at_least_s(run: RunRow) -> float:
        ended = not (by_step or run["reached_target"] or run["status"] == "diverged")
        down = run["time_s"].get("down", 0.0) / (run["wall_clock_s"] or 1.0)  # of others, perhaps none
        sure = 0.0 if by_luck & {run["label"], ranked[0]} else 1 - down
        return sure * (run["wall_clock_s"] if ended else race_s(run, by_step))

    times, at_least = race_times(summary, source), _by_seed(summary, source, at_least_s)
    slices = _by_seed(summary, source, lambda run: run.get("slices"))
    exact = by_step and source == "simulated" and not any(map(_is_random, rows))
    uneven = {row["label"]: unevenness(row.get("step_shares", [])) for row in rows if is_uneven(row)}
    # Trials were simulated, and are about times to the target.
    tuned = [] if by_step or source != "simulated" else summary.get("tuning", [])
    tried = {each["label"]: _tried(each) for each in tuned}
    of_first = slices.get(next(iter(ranked), ""), {})  # nobody: a folder without runs
    errors = {label: error_of_ratio(slices.get(label, {}), of_first) for label in ranked}
    verdict = find_verdict(ranked, times, by_step, exact, uneven, at_least, tried, errors)
    verdict = _with_orders(verdict, rows, tuned)
    if verdict["settled"] and not by_step and summary.get("proxy", "").startswith(OF_RECIPE):
        # Of such orders too many were wrong where others have measured them: docs/learning-board.md.
        text = f"{verdict['text']}; open for the model itself, whose curves would tell"
        verdict |= Verdict(**verdict | {"settled": False, "text": text})
    if of_runs := [each for own in slices.values() for each in own.values()]:
        verdict["score_error"] = score_error(of_runs, errors.get(verdict["second"] or "", 0.0))
    if not by_step and (known := _break_even(summary, source, verdict)) is not None:
        verdict["break_even"] = known
    if "scope" in summary and not by_step:
        # Some worker has the average that meets it before all have published the last step up to there.
        ends = {row["label"]: (row["steps_to_target"], row["iterations"]) for row in rows}
        steps = {label: most if met is None else met + 1 for label, (met, most) in ends.items()}
        if text := too_few_rounds(steps, summary["scope"]):
            verdict["few_rounds"] = text
    costs = _by_seed(summary, source, lambda run: race_cost(run, by_step) if "cost" in run else None)
    if (cheapest := find_winner(costs)) is not None:
        verdict["cheapest"] = cheapest
    return verdict


def _is_random(row: SchemeSummary) -> bool:
    bounds = row.get("bounds")
    return row.get("random", True) if bounds is None else bounds["random"]


def _averages(row: SchemeSummary) -> float:
    """How often the worker with the most averages has averaged."""
    return max((row["wall_clock_s"] / each for each in row.get("average_s", []) if each), default=0.0)


def _break_even(summary: Summary, source: Source, verdict: Verdict) -> BreakEven | None:
    def taken_s(run: RunRow) -> float | None:
        met, time_s = run.get("steps_to_target"), run["time_to_target_s"]
        return (time_s / met if met and time_s else _step_s(run)) or None

    steps = _by_seed(summary, source, lambda run: run.get("steps_to_target") or math.inf)
    step_s = _by_seed(summary, source, taken_s)
    ends = _by_seed(summary, source, lambda run: run.get("steps_between"))
    between = (0.0, 0.0)
    spoken = {None: "these runs say", CURVES: "these curves say"}
    whose = spoken.get(summary.get("proxy"), PROXY_SAYS)
    rates = [key for each in summary.get("tuning", []) for key in each["chosen"] if key.endswith("lr")]
    under = [*filter(None, [summary.get("choices")]), *(["rates tuned here"] if rates else [])]
    if whose == spoken[CURVES] and len(set().union(*steps.values())) == 1:
        under.append("one seed: no interval")
    doubtful = {run["label"]: None for run in summary["runs"] if OTHER_CLOCK in run.get("message", "")}
    under += [f"{label}'s curve is of another clock" for label in doubtful]
    pair = (verdict["first"] or "", verdict["second"] or "")
    if ends.keys() >= {*pair}:
        two = (zip(*ends[label].values(), strict=True) for label in pair)
        (low, high), (least, most) = ([median(each) for each in own] for own in two)
        between = (low / max(most, 1.0), high / max(least, 1.0))
    return find_break_even(verdict, steps, step_s, whose, ", ".join(under), summary.get("scope"), between)


def to_target(trial: TuningTrial) -> float:
    """Seconds of a trial to the target; infinite where it did not arrive."""
    return or_inf(trial["time_to_target_s"])


def rate_times(tuned: Tuned, seconds: Callable[[TuningTrial], float] = to_target) -> dict[float, float]:
    """Learning rate -> ``seconds`` of its best trial on the seed that all points have."""
    times: dict[float, float] = {}
    for trial in tuned["trials"]:
        if trial["seed"] == tuned["trials"][0]["seed"]:
            rate = float(trial["values"][RATE])
            times[rate] = min(times.get(rate, math.inf), seconds(trial))
    return times


def _with_orders(verdict: Verdict, rows: Sequence[SchemeSummary], tuned: Sequence[Tuned]) -> Verdict:
    """The verdict with the orders by learning rate, where rates were tuned and there are two schemes."""
    first, by_repeats = verdict["first"], verdict["settled"]
    orders = orders_of_trials(tuned, rows, {first, verdict["second"]}, first)
    if orders is None:
        return verdict
    return Verdict(
        **verdict | {
            "text": verdict["text"] + ("; open by learning rate" if by_repeats > orders["settled"] else ""),
            "settled": by_repeats and orders["settled"], "settled_by_repeats": by_repeats,
            "settled_by_rates": orders["settled"], "rates": orders,
        }
    )  # fmt: skip


def orders_of_trials(
    tuned: Sequence[Tuned],
    rows: Sequence[SchemeSummary],
    among: Set[str | None],
    first: str | None,
    seconds: Callable[[TuningTrial], float] = to_target,
) -> RateOrders | None:
    """Orders at three learning rates (``find_orders``); None unless trials of all ``among`` tell them.

    Args:
        rows: the schemes, one of which may be all-reduce.
        among: labels that the order is about.
        first: label of the first of the repeats, one of these.
        seconds: time of a trial, to the target or to another level; infinite where it did not arrive.
    """
    whole = [each for each in tuned if RATE in each["chosen"] and not each.get("cut_off", False)]
    times = {each["label"]: rate_times(each, seconds) for each in whole}
    if first is None or not among <= times.keys():
        return None
    best = {each["label"]: float(each["chosen"][RATE]) for each in tuned}
    held = next((row["label"] for row in rows if row["scheme"] == "all_reduce"), None)
    return find_orders(times, first, best[held or first], held)


def _tried(tuned: Tuned) -> list[Tried]:
    trials: dict[str, list[TuningTrial]] = {}
    for trial in tuned["trials"]:
        if trial["values"] != tuned["chosen"]:
            trials.setdefault(repr(trial["values"]), []).append(trial)
    return [Tried(each[0]["values"], mean_time_s(each), len(each)) for each in trials.values()]


def mean_time_s(trials: Iterable[TuningTrial]) -> float:
    """The mean time to the target, infinite where a trial did not reach it."""
    return fmean(or_inf(trial["time_to_target_s"]) for trial in trials)


def unevenness(shares: Sequence[float | None]) -> float:
    """Ratio of the fastest worker's steps to the slowest one's, 1 if unknown."""
    there = [share for share in shares if share is not None]
    return 1.0 if not there else max(there) / min(there) if min(there) > 0 else float("inf")


def is_uneven(row: SchemeSummary) -> bool:
    """Whether its workers' numbers of steps differ too much for time per step alone to name it the winner."""
    return unevenness(row.get("step_shares", [])) > UNEVEN


def is_by_step(summary: Summary) -> bool:
    """Whether schemes are compared by their time per step: there was no target."""
    return summary["target"] is None and not any(run["reached_target"] for run in summary["runs"])


def race_s(run: RunRow, by_step: bool) -> float:
    """The time that decides between schemes, infinite for a run that did not get there."""
    if by_step:
        step_s = _step_s(run)
        return math.inf if step_s is None or run["status"] != "completed" else step_s
    return or_inf(run["time_to_target_s"])


def race_times(summary: Summary, source: Source | None) -> dict[str, dict[int, float]]:
    """Label -> seed -> ``race_s`` of the runs of a source."""
    by_step = is_by_step(summary)
    return _by_seed(summary, source, lambda run: race_s(run, by_step))


def _by_seed(
    summary: Summary, source: Source | None, of: Callable[[RunRow], _T | None]
) -> dict[str, dict[int, _T]]:
    """Label -> seed -> what ``of`` finds in the runs of a source, where it finds anything."""
    columns: dict[str, dict[int, _T]] = {}
    for run in summary["runs"]:
        if run["source"] == source and (value := of(run)) is not None:
            columns.setdefault(run["label"], {})[run["seed"]] = value
    return columns


def _step_s(run: RunRow) -> float | None:
    older_s = run["wall_clock_s"] / run["iterations"] if run["iterations"] else None
    return run.get("step_s", older_s)


def num_paired(summary: Summary, source: Source) -> int:
    """Number of seeds common to all schemes of a source."""
    return len(set.intersection(*map(set, race_times(summary, source).values())))


def chance_known(summary: Summary, source: Source | None) -> bool:
    """Whether it is known how much of an order is chance: from repeats, or since nothing is random."""
    if source is None or num_paired(summary, source) > 1:
        return True
    return source == main_source(summary) and summary["verdict"]["interval"] is not None


def is_settled(summary: Summary) -> bool:
    """Whether the order of a summary, of two or more, is settled and how much of it is chance is known."""
    verdict = summary["verdict"]
    known = chance_known(summary, main_source(summary)) or verdict["second"] is None
    return verdict["settled"] and known


def ranking(rows: Iterable[SchemeSummary], winner: str | None = None) -> list[SchemeSummary]:
    """Rows of one source, best first: the winner, then by ratio to it; those without a time come last.

    Equal ratios are in the order of median times; those without a time in that of how often they got there.
    Without a target, times are those of a step. ``winner``, a label, may have a larger median time than a
    scheme that ties with it, if a third beats that one.
    """

    rows = list(rows)
    by_step = all(row["time_to_target_s"]["median"] is None for row in rows)

    def place(row: SchemeSummary) -> tuple[bool, bool, float, float, int, int, float]:
        ratio = row["ratio_to_best"]["median"]
        median = row["time_to_target_s"]["median"]
        if by_step and ratio is not None:
            median = row["step_s"]["median"]
        # A ratio below 1 occurs in a circle of wins, decided by the smallest median time.
        behind = math.inf if ratio is None else max(ratio, 1.0)
        time_s = math.inf if median is None else median
        late = 0.0 if median is None else behind
        tied = -row["reached"], row["diverged"], row["wall_clock_s"]
        return median is None, row["label"] != winner, late, time_s, *tied

    return sorted(rows, key=place)
