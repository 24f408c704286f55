"""How long a computation lasts: a pure function of (seed, worker, index)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sim import seeds
from sim.compute.settings import Compute, Straggler


@dataclass(frozen=True)
class ComputeModel:
    """Durations of gradients.

    Attributes:
        compute: mean and jitter.
        stragglers: persistent and transient slowdowns; they multiply.
        seed: of the run.
    """

    compute: Compute
    stragglers: Sequence[Straggler]
    seed: int
    _blocks: dict[int, tuple[int, list[float]]] = field(default_factory=dict, repr=False)

    def duration_s(self, worker: int, index: int) -> float:
        """Seconds that gradient ``index`` of ``worker`` takes."""
        number, offset = divmod(index, seeds.BLOCK)
        known = self._blocks.get(worker)
        if known is None or known[0] != number:
            known = self._blocks[worker] = (number, self.block_s(worker, number).tolist())
        return known[1][offset]

    def block_s(self, worker: int, block: int) -> NDArray[np.float64]:
        """Durations of the gradients ``block * BLOCK ...`` of a worker, [BLOCK]."""
        durations = np.full(seeds.BLOCK, self.compute.time)
        jitter = self.compute.jitter
        if jitter is not None and jitter.lognormal is not None:
            variance = math.log1p(jitter.lognormal.cv**2)
            normal = seeds.normals(self.seed, worker, "compute", block)
            durations = durations * np.exp(math.sqrt(variance) * normal - variance / 2)
        elif jitter is not None and jitter.shifted_exponential is not None:
            cv = jitter.shifted_exponential.cv
            durations = durations * ((1 - cv) + cv * seeds.exponentials(self.seed, worker, "compute", block))
        for number, straggler in enumerate(self.stragglers):
            if straggler.workers is not None:
                if worker in straggler.workers:
                    durations = durations * straggler.slowdown
            elif straggler.probability is not None:
                draws = seeds.uniforms(self.seed, worker, f"straggler {number}", block)
                durations = np.where(draws < straggler.probability, durations * straggler.slowdown, durations)
        return durations
