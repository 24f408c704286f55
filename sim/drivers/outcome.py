"""Outcomes of drivers, and run records made from them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from ..errors import RunError
from ..faults.outages import with_faults
from ..network.network import bytes_carried
from ..records.accounting import SMALL_WEIGHT_NOTE, TimeBreakdown, mean_share
from ..records.run import (
    COMPUTING,
    HALF_SUM,
    OTHER_CLOCK,
    Event,
    FaultCost,
    Pace,
    Run,
    Source,
    Status,
    exact_exchanges,
)
from ..training.scoring import Scorer, digest
from .job import Job

_ALONE: Final = COMPUTING | {"sleep", "await_signal"}
"""Operations of one worker that exchange nothing."""


@dataclass(frozen=True)
class Outcome:
    """A run as its driver saw it.

    Attributes:
        wall_s: seconds on the driver's clock.
        breakdowns: one per worker.
        finals: the last published value of each surviving worker, in rank order.
        leader: the last model published as standing for all, if any.
        events: all workers' events, each worker's in the order in which it resumed.
        status: ``completed`` also where only the living workers have brought the run to its end.
        message: why it is partial, or which workers died.
        lost: ranks of the workers that died, unless all did.
        pace: the steps that count.
        counted: the breakdowns at its end, where an idle end follows it; else empty.
        step_ends_s: when all workers were through with each step.
        faults: what they cost, where the workers went on without those that failed.
    """

    wall_s: float
    breakdowns: list[TimeBreakdown]
    finals: list[torch.Tensor]
    leader: torch.Tensor | None
    events: list[Event]
    status: Status
    pace: Pace
    message: str = ""
    lost: Collection[int] = ()
    counted: Sequence[TimeBreakdown] = ()
    step_ends_s: Sequence[float] = ()
    faults: FaultCost | None = None

    @property
    def exchanges(self) -> tuple[str, ...]:
        """Sorted names of the operations by which workers exchanged anything."""
        return tuple(sorted(set[str]().union(*(a.operations for a in self.breakdowns)) - _ALONE))


def describe_deaths(dead: Collection[int]) -> str:
    """Name the workers that died; "" if none did."""
    return f"worker {', '.join(map(str, sorted(dead)))} died" if dead else ""


def run_record(job: Job, outcome: Outcome, scorer: Scorer[torch.Tensor], source: Source) -> Run:
    """Score the end of a simulated run and make its record.

    Raises ``CutOff`` where faults make it longer than it may be.
    """
    ranks = (rank for rank in range(job.workers) if rank not in outcome.lost)
    finals = dict(zip(ranks, outcome.finals, strict=True))
    scorer.finish(outcome.wall_s, finals, outcome.leader)
    run = scored_record(job, outcome, scorer, source)
    if job.churn is None or not job.stops_for_faults:
        return replace(run, faults=outcome.faults)
    try:
        return with_faults(run, job.churn, outcome.step_ends_s, job.max_time_s)
    except RunError as error:
        return replace(run, status="partial", message=str(error))


def scored_record(job: Job, outcome: Outcome, scorer: Scorer[Any], source: Source) -> Run:
    """The record of a run whose end has been scored."""
    scorer.put_notes()
    iterations = sum(a.steps for a in outcome.breakdowns) / job.workers
    between, on_links = bytes_carried(job.transfer.network, [a.sent_to for a in outcome.breakdowns])
    until_s = outcome.pace.time_s if outcome.counted else outcome.wall_s
    by_then, _ = bytes_carried(job.transfer.network, [a.sent_to for a in outcome.counted])
    status, message, curve = outcome.status, outcome.message, job.scoring.curve
    if status == "completed" and scorer.diverged:
        status, message = "diverged", "the loss is not finite" if curve is None else curve.divergence
    elif status == "completed" and "averaged" in scorer.scored_on and (missing := scorer.without_average()):
        status, message = "partial", f"evaluate.on is 'averaged', but {missing}"
    elif status == "completed":
        clock = [OTHER_CLOCK] if curve is not None and not job.synchronous else []
        message = "; ".join(filter(None, [message, *clock, *_warnings(scorer)]))
    return Run(
        scheme=job.scheme.name,
        label=job.label,
        seed=job.seed,
        source=source,
        status=status,
        reached_target=scorer.reached_s is not None,
        time_to_target_s=scorer.reached_s,
        wall_clock_s=outcome.wall_s,
        iterations=iterations,
        bytes_sent=sum(each.bytes_sent for each in outcome.breakdowns),
        time_s=mean_share(outcome.counted or outcome.breakdowns, until_s, outcome.wall_s),
        evaluations=tuple(scorer.evaluations),
        digest=digest(outcome.finals),
        events=tuple(outcome.events),
        exchanges=_exchanges(job, outcome),
        message=message,
        bracket_s=scorer.bracket_s,
        slices=scorer.slices,
        steps_between=None if curve is None or scorer.reached_s is None else curve.between,
        left_out=tuple((a.left_out, a.averages) for a in outcome.breakdowns)
        if any(a.averages for a in outcome.breakdowns)
        else (),
        pace=replace(outcome.pace, between=by_then if outcome.counted else {}),
        gradients=tuple(scorer.noise.points) if scorer.noise is not None else (),
        between=between,
        on_links=on_links,
    )


def _exchanges(job: Job, outcome: Outcome) -> tuple[str, ...] | None:
    """Of the outcome; a coarse optimiser makes of a library's sums what 16 bits would."""
    if not job.optimizer.coarse or outcome.exchanges is None or exact_exchanges(outcome.exchanges):
        return outcome.exchanges
    return tuple(sorted({*outcome.exchanges, HALF_SUM}))


def _warnings(scorer: Scorer[Any]) -> list[str]:
    texts = []
    if missing := scorer.without_average():
        texts.append(f"{missing}: the first models were scored")
    if scorer.reached_s == 0.0:
        texts.append("the first models meet the target, so that it tells nothing of the scheme")
    if any(SMALL_WEIGHT_NOTE in evaluation.metrics for evaluation in scorer.evaluations):
        texts.append("push-sum weights fell below 0.001, so that models are magnified sums of little")
    return texts
