"""Steps until a sequence of mixing matrices has averaged, and until that costs decentralised SGD nothing."""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from paceline.sim.topology.matrix import Matrix
from paceline.sim.topology.spectra import fixed_start, product_norm

EXACT: Final = 1e-10
"""A norm below this is rounding: averaging is exact."""
_NORM_ROUNDING: Final = 1e-13
"""Disagreement below this share of its start is rounding."""


def exact_after(matrices: list[Matrix]) -> int | None:
    """Number of steps of a periodic sequence until all have the mean, to rounding; None: never.

    Searched within one period, or log2 n steps if longer, on random starts: exactness for
    them is exactness for all with probability 1.
    """
    n = matrices[0].shape[0]
    x = np.stack([fixed_start(n), np.roll(fixed_start(n), n // 3)], axis=1)
    begun = np.linalg.norm(x)
    for step in range(max(len(matrices), (n - 1).bit_length())):
        x = np.asarray(matrices[step % len(matrices)] @ x)
        if np.linalg.norm(x - x.mean(axis=0)) <= _NORM_ROUNDING * begun:
            return step + 1
    return None


def steps_until(matrices: list[Matrix], epsilon: float) -> int:
    """Number of steps of a periodic sequence that shrink any disagreement to ``epsilon`` of itself.

    Within the first period this is counted step by step, later bounded by whole periods: T ln(epsilon) /
    ln(norm of the period's product).
    """
    norm = product_norm(matrices)
    if norm <= epsilon or norm < EXACT:
        return next(
            k for k in range(1, len(matrices) + 1) if product_norm(matrices[:k]) <= max(epsilon, EXACT)
        )
    return len(matrices) * math.ceil(math.log(epsilon) / math.log(norm) - 1e-12)


def transient_iterations(workers: int, modulus: float) -> dict[str, float]:
    """Steps, up to a constant, until decentralised SGD is as fast as with exact averages: n^3 rho^4 / (1 -
    rho)^2 for equal data on all workers, (1 - rho)^4 for unequal data (after Ying et al., NeurIPS 2021).
    """
    gap = max(1.0 - modulus, np.finfo(np.float64).tiny ** 0.25)
    top = workers**3 * modulus**4
    return {"same_data": top / gap**2, "different_data": top / gap**4}
