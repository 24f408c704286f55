"""Whether the lockstep driver has exactly the event driver's results, and why not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from ...errors import RunError
from ...records.run import Evaluation
from ...schemes import SCHEMES
from ..job import UNRECORDED, Job
from ..outcome import Outcome, run_record
from .lockstep_driver import LockstepDriver

TRIED_STEPS: Final = 3
"""Steps of the trial that a user's scheme must pass: it must agree on both drivers."""

CLOCK_TOLERANCE: Final = 1e-9
"""Relative difference allowed between times of both drivers: rounding."""
VALUE_TOLERANCE: Final = 1e-5
SCORE_TOLERANCE: Final = 1e-3
"""Relative differences allowed between parameters, and between scores: a worker's gradients may be rounded
otherwise in a batch of other shape, and a score may count examples."""


def why_not(job: Job) -> str:
    """Why a job needs the event driver, in a sentence without a full stop; "" if it does not.

    Objections to a scheme's operations appear only when it runs: ``LockstepDriver`` then raises
    ``NotInLockstep``. A scheme that is not Paceline's own has to pass a trial on both drivers.
    """
    transfer = job.transfer
    if not job.synchronous:
        return "the scheme is not synchronous: what its workers do depends on the clock"
    if job.shrinks or any(straggler.crash for straggler in job.compute.stragglers):
        return "a worker fails and the others go on"
    if transfer.network.varies:
        return "latencies or bandwidths vary (network.jitter, network.variation)"
    if transfer.resume_s or transfer.late_s or transfer.wake_up_delays_s or transfer.resume_jitter_s:
        return "the profile has delays of workers that wake up"
    if transfer.tcp is not None:
        return "stock hosts have TCP windows, which last from message to message"
    if transfer.queue != "fair":
        return "links serve what comes first, whoever sends it (network.queue)"
    if transfer.uneven:
        return "the profile draws the shares of messages that meet on a link"
    if job.scheme.name in SCHEMES:
        return ""
    try:
        return _trial(job)
    except RunError as error:
        return str(error)


def _trial(job: Job) -> str:
    """Difference of a job's first steps between the drivers; "" for none."""
    short = replace(
        job, max_iterations=TRIED_STEPS, max_time_s=math.inf, recording=UNRECORDED,
        scoring=replace(job.scoring, curve=None, target=None, every=1, keep=1),
    )  # fmt: skip
    differs = _difference(*_tried(short, lockstep=False), *_tried(short, lockstep=True))
    return (
        f"{differs} of its first {TRIED_STEPS} steps differ where all workers are one value"
        if differs
        else ""
    )


def _tried(job: Job, *, lockstep: bool) -> tuple[Outcome, Sequence[Evaluation]]:
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    if lockstep:
        outcome = LockstepDriver(job, scorer).run()
    else:
        from ..event import EventDriver

        outcome = EventDriver(job, [job.program(rank) for rank in range(job.workers)], scorer).run()
    return outcome, run_record(job, outcome, scorer, "simulated").evaluations


def _difference(
    ours: Outcome, our_scores: Sequence[Evaluation], theirs: Outcome, their_scores: Sequence[Evaluation]
) -> str:
    """First difference beyond rounding; "" if there is none."""
    if not _close(ours.wall_s, theirs.wall_s, CLOCK_TOLERANCE):
        return "the times"
    for a, b in zip(ours.breakdowns, theirs.breakdowns, strict=True):
        spent = zip((a.wait_s, a.communicate_s), (b.wait_s, b.communicate_s), strict=True)
        if any(abs(u - v) > CLOCK_TOLERANCE * ours.wall_s for u, v in spent):
            return "the times"
        if (a.steps, a.bytes_sent) != (b.steps, b.bytes_sent):
            return "the messages"
    for x, y in zip(ours.finals, theirs.finals, strict=True):
        if not same_values(x, y):
            return "the models"
    return "" if _same_scores(our_scores, their_scores) else "the scores"


def same_values(x: Tensor, y: Tensor) -> bool:
    """Whether two models are equal up to the rounding of gradients in a batch."""
    return x.shape == y.shape and torch.allclose(x, y, rtol=VALUE_TOLERANCE, atol=_small(x))


def _small(value: Tensor) -> float:
    """Absolute tolerance for values of the size of ``value``."""
    largest = float(value.abs().max()) if value.numel() else 0.0
    return VALUE_TOLERANCE * largest if math.isfinite(largest) else 0.0  # torch refuses NaN as a tolerance


def _close(a: float | None, b: float | None, tolerance: float) -> bool:
    return a == b if a is None or b is None else math.isclose(a, b, rel_tol=tolerance)


def _same_scores(ours: Sequence[Evaluation], theirs: Sequence[Evaluation]) -> bool:
    return len(ours) == len(theirs) and all(
        a.steps == b.steps
        and a.bytes_sent == b.bytes_sent
        and _close(a.time_s, b.time_s, CLOCK_TOLERANCE)
        and a.metrics.keys() == b.metrics.keys()
        and all(
            _close(value, b.metrics[name], SCORE_TOLERANCE) or name == "consensus_distance"
            for name, value in a.metrics.items()
        )
        for a, b in zip(ours, theirs, strict=True)
    )
