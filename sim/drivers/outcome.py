"""What a driver hands back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

from ..records.accounting import TimeBreakdown, mean_share
from ..records.run import Event, Run, Source, Status
from ..training.scoring import Scorer, digest
from .job import Job

_ALONE: Final = frozenset({"gradient", "sleep"})
"""Operations of one worker, in which nothing is exchanged."""


@dataclass(frozen=True)
class Outcome:
    """A run as its driver saw it.

    Attributes:
        wall_s: seconds on the driver's clock.
        breakdowns: one per worker.
        finals: the last published value of each worker that is still there.
        leader: the model that the scheme published as standing for all, the last one, if any.
        events: all workers' events, each worker's in the order in which it resumed.
        status, message: how it ended.
    """

    wall_s: float
    breakdowns: list[TimeBreakdown]
    finals: list[torch.Tensor]
    leader: torch.Tensor | None
    events: list[Event]
    status: Status
    message: str = ""


def run_record(job: Job, outcome: Outcome, scorer: Scorer, source: Source) -> Run:
    """Score the end of a run and write down what happened."""
    iterations = sum(a.steps for a in outcome.breakdowns) / job.workers
    bytes_sent = sum(a.bytes_sent for a in outcome.breakdowns)
    scorer.finish(round(iterations), outcome.wall_s, bytes_sent, outcome.finals, outcome.leader)
    status: Status = "diverged" if scorer.diverged and outcome.status == "completed" else outcome.status
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
        bytes_sent=bytes_sent,
        time_s=mean_share(outcome.breakdowns, outcome.wall_s),
        evaluations=tuple(scorer.evaluations),
        digest=digest(outcome.finals),
        events=tuple(outcome.events),
        exchanges=tuple(sorted(set[str]().union(*(a.operations for a in outcome.breakdowns)) - _ALONE)),
        message=outcome.message or ("the loss is not finite" if scorer.diverged else ""),
    )
