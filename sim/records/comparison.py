"""A prediction beside a measurement: errors, the decision, and whether both did the same."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal

import numpy as np
from scipy import stats
from typing_extensions import TypedDict

from .run import Run
from .summary import SchemeSummary, summarise

Metric = Literal["iteration_time_s", "time_to_target_s", "wall_clock_s"]

SUM_TOLERANCE: Final = 1e-5
"""How far the scores of library collectives may be from ours, relative: they sum in another order."""


class ErrorRow(TypedDict):
    """One number, predicted and measured; ``error_pct`` is 100 (predicted / measured - 1)."""

    scheme: str
    label: str
    seed: int
    metric: Metric
    predicted: float
    measured: float
    error_pct: float


class Decision(TypedDict):
    """Would the prediction have picked the right scheme?

    Attributes:
        winner_predicted, winner_measured: labels of who is first (``ranking``), by wall clock where neither
            side has a time to target; None where no scheme got there.
        tie: the predicted lead lies inside its interval (None with few repeats).
        regret_pct: by how much the predicted winner is slower than the measured one, as measured: the median
            of their paired ratio, less 1.
        kendall_tau: of the two rankings by median ratio to the winner, 1 the same, -1 reversed; None with
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
    """Whether one scheme went through the same models on both sides.

    ``same``: None where it need not, because the order of arrival decides.
    """

    label: str
    seed: int
    same: bool | None
    says: str


class Comparison(TypedDict):
    """The JSON object of ``paceline validate``."""

    cells: list[ErrorRow]
    mean_abs_error_pct: float | None
    max_abs_error_pct: float | None
    decision: Decision
    trajectories: list[Trajectory]
    warnings: list[str]


@dataclass(frozen=True)
class Pair:
    """The same scheme under the same seed, predicted and measured.

    ``asynchronous``: the order of arrival decides which models there are.
    """

    predicted: Run
    measured: Run
    asynchronous: bool = False

    def cells(self) -> list[ErrorRow]:
        """Errors of everything that both have."""
        p, m = self.predicted, self.measured
        found: list[tuple[Metric, float, float]] = []
        if p.time_to_target_s is not None and m.time_to_target_s is not None:
            found.append(("time_to_target_s", p.time_to_target_s, m.time_to_target_s))
        common = self._common_end()
        if common is not None:
            steps, p_s, m_s = common
            found += [("wall_clock_s", p_s, m_s), ("iteration_time_s", p_s / steps, m_s / steps)]
        return [
            ErrorRow(
                scheme=p.scheme, label=p.label, seed=p.seed, metric=metric,
                predicted=a, measured=b, error_pct=100 * (a / b - 1),
            )
            for metric, a, b in found
            if b > 0
        ]  # fmt: skip

    def _common_end(self) -> tuple[float, float, float] | None:
        """The last number of steps that both have done, and when each had."""
        p, m = self.predicted, self.measured
        if p.iterations == m.iterations and p.status == m.status == "completed":
            return (p.iterations, p.wall_clock_s, m.wall_clock_s) if p.iterations else None
        times = {e.step: e.time_s for e in m.evaluations}
        both = [(e.step, e.time_s, times[e.step]) for e in p.evaluations if e.step in times and e.step > 0]
        return both[-1] if both else None

    def trajectory(self) -> Trajectory:
        """Compare what was computed on both sides."""
        p, m = self.predicted, self.measured
        says, same = _same(p, m, self.asynchronous)
        return Trajectory(label=p.label, seed=p.seed, same=same, says=says)


def _same(p: Run, m: Run, asynchronous: bool) -> tuple[str, bool | None]:
    if asynchronous:
        return "asynchronous: the order of arrival decides, so the models differ", None
    if p.iterations == m.iterations and p.digest == m.digest:
        return f"the same bits after {p.iterations:g} steps", True
    scores = {e.step: e.metrics for e in m.evaluations}
    worst, common = 0.0, 0
    for evaluation in p.evaluations:
        if evaluation.step in scores:
            common += 1
            for name, value in evaluation.metrics.items():
                if name != "consensus_distance":
                    worst = max(worst, _apart(value, scores[evaluation.step].get(name)))
    if not common:
        return "no step was scored on both sides", None
    exact = p.scheme == "gossip"  # messages only: the same sums in the same order
    if exact:
        if worst == 0.0 and p.iterations != m.iterations:
            return f"the same scores at all {common} common steps", True
        return f"scores differ by up to {worst:.1e}, they should not at all", False
    return f"scores agree to {worst:.1e} at {common} common steps", worst <= SUM_TOLERANCE


def _apart(a: float | None, b: float | None) -> float:
    if a is None or b is None:
        return 0.0 if a is b else math.inf
    return abs(a - b) / max(abs(a), abs(b), 1e-12)


def pairs(
    predicted: Sequence[Run], measured: Sequence[Run], asynchronous: Collection[str] = ()
) -> list[Pair]:
    """Join runs by label and seed; ``asynchronous`` are the labels of schemes that run so."""
    known = {(run.label, run.seed): run for run in measured}
    return [
        Pair(run, known[run.label, run.seed], run.label in asynchronous)
        for run in predicted
        if (run.label, run.seed) in known
    ]


def compare(
    scenario_name: str,
    predicted: Sequence[Run],
    measured: Sequence[Run],
    warnings: Sequence[str] = (),
    asynchronous: Collection[str] = (),
) -> Comparison:
    """Everything that can be said about a prediction and its measurement; see ``pairs``."""
    joined = pairs(predicted, measured, asynchronous)
    cells = [cell for pair in joined for cell in pair.cells()]
    errors = [abs(cell["error_pct"]) for cell in cells]
    return Comparison(
        cells=cells,
        mean_abs_error_pct=math.fsum(errors) / len(errors) if errors else None,
        max_abs_error_pct=max(errors, default=None),
        decision=decide(scenario_name, predicted, measured),
        trajectories=[pair.trajectory() for pair in joined],
        warnings=list(warnings),
    )


def decide(scenario_name: str, predicted: Sequence[Run], measured: Sequence[Run]) -> Decision:
    """Compare who is first (``sim.records.ranking``), and how far behind the others are, on both sides.

    By wall clock where neither side got to a target. Schemes that one side lacks take no part.
    """
    shared = {run.label for run in predicted} & {run.label for run in measured}
    p, m = (
        summarise(scenario_name, [run for run in runs if run.label in shared])
        for runs in (predicted, measured)
    )
    by_clock = p["winner"] is None and m["winner"] is None
    p_behind, m_behind = (
        {row["label"]: row["wall_clock_s"] if by_clock else _ratio(row) for row in side["summary"]}
        for side in (p, m)
    )
    winner_p, winner_m = p["winner"], m["winner"]
    if by_clock:
        winner_p, winner_m = (min(side, key=side.__getitem__, default=None) for side in (p_behind, m_behind))
    regret = None
    if winner_p is not None and winner_m is not None and math.isfinite(m_behind[winner_p]):
        regret = 100 * (m_behind[winner_p] / m_behind[winner_m] - 1)
    low = p["lead"]["factor"]["low"] if p["lead"] is not None else None
    return Decision(
        winner_predicted=winner_p,
        winner_measured=winner_m,
        tie=None if low is None else low <= 1,
        regret_pct=regret,
        kendall_tau=kendall_tau([p_behind[x] for x in m_behind], list(m_behind.values())),
        interval_coverage=coverage(p["summary"], m["summary"]),
    )


def _ratio(row: SchemeSummary) -> float:
    """Median ratio to the winner, infinite where there is none."""
    return _or_inf(row["ratio_to_best"]["median"])


def _or_inf(value: float | None) -> float:
    return math.inf if value is None else value


def kendall_tau(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Kendall's tau-b of two rankings; infinite values tie with each other. None where one does not rank."""
    if len(a) < 2:
        return None
    tau = float(stats.kendalltau(stats.rankdata(a), stats.rankdata(b)).statistic)
    return None if math.isnan(tau) else tau


def coverage(predicted: Sequence[SchemeSummary], measured: Sequence[SchemeSummary]) -> float | None:
    """Share of the schemes whose measured median lies in the predicted 95 % interval."""
    medians = {row["label"]: _or_inf(row["time_to_target_s"]["median"]) for row in measured}
    inside = []
    for row in predicted:
        interval = row["time_to_target_s"]
        if interval["low"] is not None:
            inside.append(interval["low"] <= medians[row["label"]] <= _or_inf(interval["high"]))
    return float(np.mean(inside)) if inside else None
