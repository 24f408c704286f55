"""A lower bound on the modulus of regular graphs, for any search and for finite n.

Let F_0, F_1, ... be the polynomials for which F_i(A) counts the walks of length i that never turn back, in a
k-regular graph: F_1 = x, F_2 = x^2 - k, F_{i+1} = x F_i - (k - 1) F_{i-1}. So trace F_i(A) >= 0, and in a
simple graph 0 for i = 1 and 2. If f = 1 + sum_i f_i F_i with f_i >= 0 for i >= 3, and f <= e on an interval
that holds all eigenvalues of the adjacency matrix but k, then

    n <= n + sum_i f_i trace F_i(A) = trace f(A) <= f(k) + (n - 1) e.

An f that breaks this rules the interval out; the best f for an interval is a linear programme.

Sources: Nozaki, Linear Algebra Appl. 486 (2015), for the linear programming bound; Nilli, Discrete Math. 91
(1991), for the Alon-Boppana theorem. The use for both ends of the spectrum at once is ours.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray
from scipy.optimize import linprog

MAX_POLYNOMIAL_DEGREE: Final = 9

POINTS: Final = 60
"""Points at which the programme demands f <= 0; between them f is checked afterwards."""

EIGENVALUE_RESOLUTION: Final = 5e-3
"""Smallest cells of the smallest eigenvalue."""

BOUND_RESOLUTION: Final = 1e-4
"""The bound lies this near below the largest modulus that can be ruled out."""


def alon_boppana(degree: int) -> float:
    """2 sqrt(k - 1) / k: the modulus that large k-regular graphs cannot beat by much (finite ones:
    ``modulus_bound``); both ends of the adjacency spectrum are taken at +-2 sqrt(k - 1).
    """
    return float(2.0 * np.sqrt(degree - 1) / degree)


@lru_cache(maxsize=64)
def modulus_bound(workers: int, degree: int) -> float:
    """Lower bound on the modulus of k-regular graphs, n > k >= 2, with the best constant weight."""
    impossible, unknown = 0.0, 1.0
    while unknown - impossible > BOUND_RESOLUTION:
        modulus = (impossible + unknown) / 2
        if ruled_out(modulus, workers, degree):
            impossible = modulus
        else:
            unknown = modulus
    return impossible


def ruled_out(modulus: float, workers: int, degree: int) -> bool:
    """Whether no regular graph has this modulus or a smaller one; False: one may exist or not."""
    walks = _walks(degree)
    cells = [(-float(degree), -1.0)]  # an edge alone has the eigenvalue -1, so it is -1 at most (interlacing)
    while cells:
        low, high = cells.pop()
        second = (2 * degree * modulus + high * (1 - modulus)) / (1 + modulus)
        if not _interval_ruled_out(low, second, workers, degree, walks):
            if high - low < EIGENVALUE_RESOLUTION:
                return False
            middle = (low + high) / 2
            cells += [(low, middle), (middle, high)]
    return True


def _interval_ruled_out(low: float, high: float, workers: int, degree: int, walks: list[Polynomial]) -> bool:
    """Whether no graph has all eigenvalues of its adjacency matrix but the largest in [low, high]."""
    if high <= low:
        return high < low
    if (degree - low) * (degree - high) < workers * (degree + low * high):
        return True  # by f = (x - low)(x - high), without solving a programme
    angles = np.cos(np.linspace(0.0, np.pi, POINTS))
    points = (low + high) / 2 + (high - low) / 2 * angles
    # Each F_i in units of its size on the interval keeps the numbers of the programme near 1.
    values = np.stack([walk(points) for walk in walks[1:]], axis=1)
    scale = np.abs(values).max(axis=0)
    at_degree = np.array([float(walk(degree)) for walk in walks[1:]])
    solved = linprog(
        at_degree / scale,
        A_ub=values / scale,
        b_ub=np.full(POINTS, -1.0),
        bounds=[(None, None)] * 2 + [(0.0, None)] * (len(walks) - 3),
    )
    if solved.x is None:
        return False
    weights = solved.x / scale
    weights[2:] = np.maximum(weights[2:], 0.0)
    f = 1.0 + sum((w * walk for w, walk in zip(weights.tolist(), walks[1:], strict=True)), Polynomial([0.0]))
    excess = max(_largest(f, low, high), 0.0)
    return bool(f(degree) + (workers - 1) * excess < workers * (1 - 1e-9))


def _largest(f: Polynomial, low: float, high: float) -> float:
    roots: NDArray[np.complex128] = np.asarray(f.convert(domain=[low, high]).deriv().roots())
    flat = np.clip(roots.real, low, high)
    return float(np.max(f(np.concatenate([flat, [low, high]]))))


def _walks(degree: int) -> list[Polynomial]:
    x = Polynomial([0.0, 1.0])
    out = [Polynomial([1.0]), x, x**2 - degree]
    while len(out) <= MAX_POLYNOMIAL_DEGREE:
        out.append(x * out[-1] - (degree - 1) * out[-2])
    return out
