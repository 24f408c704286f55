"""Comparison of predictions with measurements: errors, the decision, and equality of the models.

Both sides execute the same code of a scheme, so if its models do not depend on the order of arrival, both
must compute the same ones. The tolerance follows from the recorded ``Run.exchanges``: equal to the bit
where workers only mixed values and sent messages, because then they add up everything themselves, in one
order; within ``sum_tolerance`` where a library's collective added up, in an order of its own.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NotRequired

from typing_extensions import TypedDict

from ..errors import shorten
from .intervals import DRAWN_RUNS, or_inf
from .run import LOST, Evaluation, Run, exact_exchanges, score_difference, sum_tolerance
from .scenario_facts import TransportRecord
from .summarise import summarise
from .summary import SchemeSummary, is_by_step
from .verdict import TIED_WITHIN

Metric = Literal["iteration_time_s", "time_to_target_s", "wall_clock_s"]


DEFAULT_TOLERANCE_PCT: Final = 5.0
"""Allowed error of a scheme's time in per cent: the limit of the worst cell in ``docs/validation.md``."""


class MeanRow(TypedDict):
    """A mean over repeats; ``simulated_s`` are the ends of the range of ``DRAWN_RUNS`` predictions."""

    label: str
    metric: Metric
    predicted: float
    measured: float
    error_pct: float
    simulated_s: NotRequired[list[float]]


class ErrorRow(MeanRow):
    """One predicted and measured number; ``error_pct`` is 100 (predicted / measured - 1)."""

    scheme: str
    seed: int


class NoiseRow(TypedDict):
    """A number from two real runs with the same scheme, seed and computing times.

    ``difference_pct`` is 100 (second / first - 1).
    """

    scheme: str
    label: str
    seed: int
    metric: Metric
    first: float
    second: float
    difference_pct: float


class ToleranceVerdict(TypedDict):
    """Whether predictions are within a tolerance of the measurements, and a sentence with the numbers.

    ``noisy``: real runs differ from each other so much that the error may be theirs.
    """

    text: str
    outcome: Literal["pass", "fail", "noisy"]
    tolerance_pct: float


class Decision(TypedDict):
    """Whether the prediction would have picked the right scheme.

    Attributes:
        winner_predicted, winner_measured: labels of the first schemes (``verdict``), by wall clock where
            neither side has a time to target; None where no scheme reached it.
        tie: the predicted lead over another lies inside its interval; with few repeats, and by wall clock:
            it is below ``TIED_WITHIN``. None where there is no other.
        regret_pct: how much slower the predicted winner is than the measured one, as measured: the median
            of their paired ratio, less 1.
        kendall_tau: of the two rankings by median ratio to the winner, 1 equal, -1 reversed; None with
            fewer than two schemes.
        interval_coverage: share of the schemes whose measured median is inside the predicted 95 % interval;
            None with one repeat.
    """

    winner_predicted: str | None
    winner_measured: str | None
    tie: bool | None
    regret_pct: float | None
    kendall_tau: float | None
    interval_coverage: float | None


class Trajectory(TypedDict):
    """Whether one scheme computed the same models on both sides.

    ``same``: None where it need not, because the order of arrival decides. ``says``: the finding in words.
    """

    label: str
    seed: int
    same: bool | None
    says: str


class Comparison(TypedDict):
    """The JSON object of ``paceline validate``; files of older versions may lack ``NotRequired`` keys.

    Attributes:
        means: of the schemes that have ``simulated_s``.
        noise: repeated real runs of the same scheme and draws.
        noise_floor_pct: of these, as ``largest_typical_pct``; None where no run was repeated.
        verdict: see ``judge``.
        status: ``partial`` where it ended before all runs were made; ``message`` says why.
        transport: of both sides.
    """

    cells: list[ErrorRow]
    mean_abs_error_pct: float | None
    max_abs_error_pct: float | None
    decision: Decision
    trajectories: list[Trajectory]
    warnings: list[str]
    means: NotRequired[list[MeanRow]]
    noise: NotRequired[list[NoiseRow]]
    noise_floor_pct: NotRequired[float | None]
    verdict: NotRequired[ToleranceVerdict]
    status: NotRequired[Literal["completed", "partial"]]
    message: NotRequired[str]
    transport: NotRequired[TransportRecord | None]


@dataclass(frozen=True)
class Pair:
    """One scheme under one seed, predicted and measured.

    Attributes:
        asynchronous: the models depend on the order of arrival.
        same_gradients: both sides computed gradients by the same method, so that these have the same bits.
    """

    predicted: Run
    measured: Run
    asynchronous: bool = False
    same_gradients: bool = True

    def cells(self) -> list[ErrorRow]:
        """Errors of all numbers that both sides have."""
        p, m = self.predicted, self.measured
        times: list[tuple[Metric, float, float]] = []
        if p.time_to_target_s is not None and m.time_to_target_s is not None:
            times.append(("time_to_target_s", p.time_to_target_s, m.time_to_target_s))
        common = self._common_end()
        if common is not None:
            steps, p_s, m_s = common
            p_step_s, m_step_s = p_s / steps, m_s / steps
            if self._whole() and p.step_s is not None and m.step_s is not None:
                p_step_s, m_step_s = p.step_s, m.step_s
            times += [("wall_clock_s", p_s, m_s), ("iteration_time_s", p_step_s, m_step_s)]
        return [
            ErrorRow(
                scheme=p.scheme, label=p.label, seed=p.seed, metric=metric,
                predicted=a, measured=b, error_pct=error_pct(a, b),
            )
            for metric, a, b in times
            if b > 0
        ]  # fmt: skip

    def _whole(self) -> bool:
        p, m = self.predicted, self.measured
        return p.iterations == m.iterations and p.status == m.status == "completed"

    def _common_end(self) -> tuple[float, float, float] | None:
        """Last number of steps that both sides did, and when each had done them."""
        p, m = self.predicted, self.measured
        if self._whole():
            return (p.iterations, p.wall_clock_s, m.wall_clock_s) if p.iterations else None
        # Extra scorings near the target come after the one with their step: the first of each step counts.
        times = {(e.step, _lost_in(e)): e.time_s for e in reversed(m.evaluations)}
        both = [(e.step, e.time_s, times.get((e.step, _lost_in(e)))) for e in p.evaluations if e.step > 0]
        return next(((step, p_s, m_s) for step, p_s, m_s in reversed(both) if m_s is not None), None)

    def trajectory(self) -> Trajectory:
        """Compare the models of both sides."""
        says, same = self._sameness()
        return Trajectory(label=self.predicted.label, seed=self.predicted.seed, same=same, says=says)

    def _sameness(self) -> tuple[str, bool | None]:
        p, m = self.predicted, self.measured
        if self.asynchronous:
            return "asynchronous: the order of arrival decides, so the models differ", None
        if p.iterations == m.iterations and p.digest == m.digest:
            return f"the same bits after {p.iterations:g} steps", True
        scores = {_models_of(e): e.metrics for e in m.evaluations}
        common = [e for e in p.evaluations if _models_of(e) in scores]
        if not any(e.step for e in common):
            return "no combination of models was scored on both sides", None
        worst = max(score_difference(e.metrics, scores[_models_of(e)]) for e in common)
        if self.same_gradients and exact_exchanges(p.exchanges) and exact_exchanges(m.exchanges):
            if worst == 0.0 and p.iterations != m.iterations:
                return f"the same scores at all {len(common)} common steps", True
            differ = (
                f"scores differ by up to {worst:.1e}" if worst else "the final models differ in their bits"
            )
            return f"{differ}, which they should not: workers only mixed and sent messages", False
        return f"scores agree to {worst:.1e} at {len(common)} common steps", worst <= sum_tolerance(
            m.exchanges
        )


def _models_of(evaluation: Evaluation) -> tuple[int, ...]:
    """The step vector of the scored models; in older records, with one step for all, the step."""
    return evaluation.steps or (evaluation.step,)


def _lost_in(evaluation: Evaluation) -> tuple[int, ...]:
    """Workers that were gone. Steps of a rank that died with its log are unknown, and count as none."""
    return tuple(worker for worker, step in enumerate(evaluation.steps) if step == LOST)


def error_pct(predicted: float, measured: float) -> float:
    """Error of a prediction in per cent of the measurement."""
    return 100 * (predicted / measured - 1)


def off_pct(row: MeanRow) -> float:
    """Error of the prediction, or of the nearest point of its range (0 inside it)."""
    ends = [row["predicted"], *row.get("simulated_s", ())]
    return error_pct(min(max(row["measured"], min(ends)), max(ends)), row["measured"])


def mean_and_max(errors_pct: Iterable[float]) -> tuple[float, float] | None:
    """Mean and maximum of the absolute errors; None without errors."""
    sizes = [abs(error) for error in errors_pct]
    return (statistics.fmean(sizes), max(sizes)) if sizes else None


@dataclass(frozen=True)
class SchemeErrors:
    """One scheme over its repeats: its rows of both summaries, and errors in per cent.

    ``time_pct`` is that of the median time to target, ``step_pct`` that of the median time of a step; None
    where one side has none.
    """

    predicted: SchemeSummary
    measured: SchemeSummary
    time_pct: float | None
    step_pct: float | None


def scheme_errors(
    predicted: Sequence[SchemeSummary], measured: Sequence[SchemeSummary]
) -> list[SchemeErrors]:
    """Errors of the schemes on both sides, in the order of ``measured``."""

    def error(p: float | None, m: float | None) -> float | None:
        return error_pct(p, m) if p is not None and m else None

    known = {row["label"]: row for row in predicted}
    return [
        SchemeErrors(
            p,
            m,
            time_pct=error(p["time_to_target_s"]["median"], m["time_to_target_s"]["median"]),
            step_pct=error(p["step_s"]["median"], m["step_s"]["median"]),
        )
        for m in measured
        if (p := known.get(m["label"])) is not None
    ]


def compare(
    scenario_name: str,
    predicted: Sequence[Run],
    measured: Sequence[Run],
    warnings: Sequence[str] = (),
    asynchronous: Collection[str] = (),
    same_gradients: bool = True,
    trajectories: Sequence[Trajectory] = (),
) -> Comparison:
    """Compare predictions with measurements of equal label and seed.

    ``asynchronous``: labels of schemes whose models depend on the order of arrival; ``same_gradients``: see
    ``Pair``; ``trajectories``: known ones.
    """
    known = {(each["label"], each["seed"]): each for each in trajectories}
    real = {(run.label, run.seed): run for run in measured}
    pairs = [
        Pair(run, real[run.label, run.seed], run.label in asynchronous, same_gradients)
        for run in predicted
        if (run.label, run.seed) in real
    ]
    cells = [cell for pair in pairs for cell in pair.cells()]
    mean, worst = mean_and_max(cell["error_pct"] for cell in cells) or (None, None)
    return Comparison(
        cells=cells,
        mean_abs_error_pct=mean,
        max_abs_error_pct=worst,
        decision=decide(scenario_name, predicted, measured),
        trajectories=[
            known.get((pair.predicted.label, pair.predicted.seed)) or pair.trajectory() for pair in pairs
        ],
        warnings=list(warnings),
    )


def noise_rows(repeated: Iterable[tuple[Run, Run]]) -> list[NoiseRow]:
    """Differences of each second real run from the first, both of one scheme, seed and computing times."""
    return [
        NoiseRow(
            scheme=cell["scheme"], label=cell["label"], seed=cell["seed"], metric=cell["metric"],
            first=cell["measured"], second=cell["predicted"], difference_pct=cell["error_pct"],
        )
        for first, second in repeated
        for cell in Pair(second, first).cells()
    ]  # fmt: skip


def largest_typical_pct(errors: Iterable[tuple[str, Metric, float]]) -> tuple[str, float] | None:
    """Label and size of the largest error, each the median over a scheme's repeats; None without any.

    Args:
        errors: label, metric and error in per cent.

    >>> largest_typical_pct([("a", "wall_clock_s", e) for e in (-2.0, 9.0, 1.0)])
    ('a', 1.0)
    """
    repeats: dict[tuple[str, Metric], list[float]] = defaultdict(list)
    for label, metric, error in errors:
        repeats[label, metric].append(error)
    typical = [(abs(statistics.median(values)), label) for (label, _), values in repeats.items()]
    size, label = max(typical, default=(0.0, ""))
    return (label, size) if typical else None


def judge(
    comparison: Comparison,
    repeated: Sequence[tuple[Run, Run]],
    tolerance_pct: float = DEFAULT_TOLERANCE_PCT,
    failure: str = "",
) -> Comparison:
    """Add the noise floor and a verdict to a comparison.

    It passes where each scheme's error (of its time to target and of its wall clock, the median over its
    repeats) is within the tolerance and the models are the same. It is too noisy to tell where real runs
    differ from each other by more than the tolerance, and no scheme is off by more than both together. Where
    chance decides, errors are distances from the range of simulated runs.

    Args:
        repeated: pairs of real runs of one scheme, seed and computing times.
        failure: why runs are missing; "" where all were made.
    """
    noise = noise_rows(repeated)
    rows = [*comparison["cells"], *comparison.get("means", [])]
    drawn = dict.fromkeys(row["label"] for row in rows if "simulated_s" in row)
    errors = [(row["label"], row["metric"], off_pct(row)) for row in rows]
    groups = [[e for e in errors if e[0] not in drawn], *([e] for e in errors if e[0] in drawn)]
    worst = max(filter(None, map(largest_typical_pct, groups)), key=lambda each: each[1], default=None)
    apart = [(row["label"], row["metric"], row["difference_pct"]) for row in noise]
    floor, fixed = map(largest_typical_pct, (apart, [each for each in apart if each[0] not in drawn]))
    outcome, text = _verdict(comparison, worst, fixed, tolerance_pct)
    if drawn:
        text += f"; {' and '.join(map(shorten, drawn))} beside what {DRAWN_RUNS} simulated runs give"
    if failure:
        outcome, text = "fail", f"fail: not all runs were made; of those that were: {text}"
    return {
        **comparison,
        "noise": noise,
        "noise_floor_pct": None if floor is None else floor[1],
        "verdict": ToleranceVerdict(text=text, outcome=outcome, tolerance_pct=tolerance_pct),
        "status": "partial" if failure else "completed",
        "message": failure,
    }


def _verdict(
    comparison: Comparison,
    worst: tuple[str, float] | None,
    floor: tuple[str, float] | None,
    tolerance_pct: float,
) -> tuple[Literal["pass", "fail", "noisy"], str]:
    if worst is None:
        return "fail", "fail: there is nothing to compare"
    real = "" if floor is None else f"; real runs differ from each other by up to {floor[1]:.2f} %"
    error = f"predictions are off by up to {worst[1]:.2f} % ({shorten(worst[0])})"
    different = [each["label"] for each in comparison["trajectories"] if each["same"] is False]
    if different:
        return "fail", f"fail: {shorten(different[0])} computed other models than predicted; {error}{real}"
    if floor is not None and floor[1] > tolerance_pct and worst[1] <= tolerance_pct + floor[1]:
        return "noisy", f"too noisy to tell: {error}{real}, more than the tolerance of {tolerance_pct:g} %"
    if worst[1] > tolerance_pct:
        noise = " and the noise together" if floor is not None and floor[1] > tolerance_pct else ""
        return "fail", f"fail: {error}, more than the tolerance of {tolerance_pct:g} %{noise}{real}"
    return "pass", f"pass: {error}, within the tolerance of {tolerance_pct:g} %{real}"


def decide(scenario_name: str, predicted: Sequence[Run], measured: Sequence[Run]) -> Decision:
    """Compare winners (``sim.records.verdict``) and distances to them on both sides.

    By wall clock where neither side reached a target. Schemes that one side lacks take no part.
    """
    shared = {run.label for run in predicted} & {run.label for run in measured}
    p, m = (
        summarise(scenario_name, [run for run in runs if run.label in shared])
        for runs in (predicted, measured)
    )
    by_clock = is_by_step(p) and is_by_step(m)
    p_behind, m_behind = (
        {
            row["label"]: (math.inf if row["partial"] else row["wall_clock_s"])
            if by_clock
            else or_inf(None if is_by_step(side) else row["ratio_to_best"]["median"])
            for row in side["summary"]
        }
        for side in (p, m)
    )
    winner_p, winner_m = (None if is_by_step(side) else side["winner"] for side in (p, m))
    if by_clock:
        winner_p, winner_m = (min(side, key=side.__getitem__, default=None) for side in (p_behind, m_behind))
    regret = None
    if winner_p is not None and winner_m is not None and math.isfinite(m_behind[winner_p]):
        regret = 100 * (m_behind[winner_p] / m_behind[winner_m] - 1)
    lows = {row["label"]: None if by_clock else row["ratio_to_best"]["low"] for row in p["summary"]}
    ties = [
        behind <= p_behind[winner_p] * (1 + TIED_WITHIN) if (low := lows[label]) is None else low <= 1
        for label, behind in p_behind.items()
        if winner_p not in (None, label)
    ]
    return Decision(
        winner_predicted=winner_p,
        winner_measured=winner_m,
        tie=any(ties) if ties else None,
        regret_pct=regret,
        kendall_tau=kendall_tau([p_behind[x] for x in m_behind], list(m_behind.values())),
        interval_coverage=coverage(p["summary"], m["summary"]),
    )


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings; infinite values tie with each other. None where one does not rank."""
    if len(a) < 2:
        return None
    from scipy import stats  # slow to import, for this alone

    tau = float(stats.kendalltau(stats.rankdata(a), stats.rankdata(b)).statistic)
    return None if math.isnan(tau) else tau


def coverage(predicted: Sequence[SchemeSummary], measured: Sequence[SchemeSummary]) -> float | None:
    """Share of the schemes whose measured median lies in the predicted 95 % interval."""
    medians = {row["label"]: or_inf(row["time_to_target_s"]["median"]) for row in measured}
    inside = []
    for row in predicted:
        interval = row["time_to_target_s"]
        if interval["low"] is not None:
            inside.append(interval["low"] <= medians[row["label"]] <= or_inf(interval["high"]))
    return statistics.fmean(inside) if inside else None
