"""A control variate for a followed step: how much slower its computing was than in the mean.

Workers that keep step wait for the slowest. How long that one computes is known for far more cycles than are
followed, at the cost of drawing the durations; so chance in the few is told from the mean step.

Source: control variates, Law and Kelton, Simulation Modeling and Analysis, section 11.4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ... import seeds
from ...drivers.job import Job
from ...seeds import Floats

DRAWN_BLOCKS: Final = 64
"""Blocks of durations of each worker behind the mean."""
DRAWN: Final = 2**20
"""Durations of all workers in them, at most, but for one block of each."""
PARTS: Final = 32
"""Parts of them by whose means the error of their mean is known."""


@dataclass(frozen=True, eq=False)
class ControlVariate:
    """Computing of the slowest worker in each cycle, in seconds a step.

    Attributes:
        beyond_s: beside its mean over all [cycles].
        error_s: standard error of this mean.
    """

    beyond_s: Floats
    error_s: float

    def corrected(self, first: int, steps_s: Sequence[float], ends: Sequence[int]) -> tuple[float, float]:
        """Seconds of a step that are chance, and the standard error of a mean step without them.

        Args:
            first: cycle from whose end on the mean is taken, up to the last part's end.
            steps_s: mean steps of parts of a run, of like lengths.
            ends: of these parts, in cycles; more by one.
        """
        if ends[-1] > len(self.beyond_s):
            return 0.0, math.inf
        known = np.array(steps_s)
        sums_s = np.concatenate([[0.0], np.cumsum(self.beyond_s)])[list(ends)]
        beyond_s = np.diff(sums_s) / np.diff(ends)
        apart_s = beyond_s - beyond_s.mean()
        slope = float(apart_s @ known / (apart_s @ apart_s or 1.0))
        left_s = known - known.mean() - slope * apart_s
        error_s = math.sqrt(float(left_s @ left_s) / (len(known) - 2) / len(known))
        chance_s = slope * float(self.beyond_s[first : ends[-1]].mean())
        return chance_s, math.hypot(error_s, slope * self.error_s)


def control_of(job: Job) -> ControlVariate | None:
    """The control of a job whose workers keep step; None where durations are not drawn, or unlike later."""
    compute = job.compute.compute
    if not (job.synchronous and job.computing.varies) or compute.trace or compute.model:
        return None
    workers, cycle = range(job.workers), job.cycle
    blocks = max(1, min(DRAWN_BLOCKS, DRAWN // (job.workers * seeds.BLOCK)))
    drawn_s = np.concatenate([job.computing.blocks_s(workers, each) for each in range(blocks)], axis=1)
    cycles = drawn_s.shape[1] // cycle
    if cycles < PARTS:
        return None
    slowest_s = drawn_s[:, : cycles * cycle].reshape(job.workers, cycles, cycle).mean(axis=2).max(axis=0)
    means_s = [float(each.mean()) for each in np.array_split(slowest_s, PARTS)]
    error_s = float(np.std(means_s, ddof=1)) / math.sqrt(PARTS)
    return ControlVariate(slowest_s - slowest_s.mean(), error_s)
