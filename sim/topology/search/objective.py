"""The objective of the search, the time in which averaging shrinks disagreement by a factor of e; its bounds.

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

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final, Protocol

import numpy as np
from numpy.polynomial import Polynomial
from numpy.typing import NDArray
from scipy.optimize import linprog

from ...errors import InputError, did_you_mean
from ...seeds import Floats
from .spectrum import EdgeArray

Modulus = Callable[[Floats, Floats], Floats]
"""Second-largest eigenvalue modulus of the mixing matrix, from the Laplacian's l_2 and l_n.

It never rises with l_2 and never falls with l_n, so that bounds of the two bound it.
"""

APART: Final = 1e-9
"""A modulus this near to 1 counts as no averaging at all."""


class StepTime(Protocol):
    """Duration of an averaging step on a graph, in seconds; edges are [edges, 2]."""

    @property
    def floor_s(self) -> float:
        """A lower bound of every graph's ``least_s``."""

    def least_s(self, edges: EdgeArray) -> float:
        """A quick lower bound of ``mean_s``."""

    def mean_s(self, edges: EdgeArray) -> float:
        """The mean over many steps, estimated."""

    def checked_s(self, edges: EdgeArray) -> float:
        """The mean over many steps, by the best model there is: called at the end of a walk."""


def laplacian_modulus(second: Floats, last: Floats) -> Floats:
    """(l_n - l_2) / (l_n + l_2), of the best constant edge weight 2 / (l_2 + l_n). Source: Xiao and Boyd,
    Systems & Control Letters 53 (2004), section 4.1.
    """
    second = np.maximum(second, 0.0)
    return (last - second) / (last + second)


def metropolis_modulus(degree: int) -> Modulus:
    """max(1 - l_2 / (k + 1), l_n / (k + 1) - 1): with edge weights 1 / (k + 1) on a k-regular graph."""

    def modulus(second: Floats, last: Floats) -> Floats:
        return np.maximum(1.0 - second / (degree + 1), last / (degree + 1) - 1.0)

    return modulus


WEIGHTS: Final = ("laplacian", "metropolis")


def modulus_for(weights: str, degree: int | None) -> Modulus:
    """The modulus under one of the ``WEIGHTS``; ``degree`` None: degrees differ.

    Raises ``InputError`` for another rule, or a missing degree.
    """
    if weights not in WEIGHTS:
        raise InputError(f"--weights {weights}: {did_you_mean(weights, WEIGHTS)}")
    if weights == "laplacian":
        return laplacian_modulus
    if degree is None:
        raise InputError("--weights metropolis needs --degree; with --edges use laplacian")
    return metropolis_modulus(degree)


@dataclass(frozen=True)
class Objective:
    """Logarithm of the time per e-fold of consensus; of the number of steps, if ``step_time`` is None."""

    modulus: Modulus
    step_time: StepTime | None = None

    def log_steps(self, second: Floats, last: Floats) -> Floats:
        """ln(steps per e-fold) = -ln(-ln(modulus)); infinite where the graph is not connected."""
        rate = self.modulus(second, last)
        out = np.full(rate.shape, math.inf)
        mixes = rate < 1.0 - APART
        # 1e-300: the complete graph averages at once.
        out[mixes] = -np.log(-np.log(np.maximum(rate[mixes], 1e-300)))
        return out

    def log_steps_of(self, second: float, last: float) -> float:
        """ln(steps per e-fold) of one graph, from its Laplacian's second and last eigenvalue."""
        return float(self.log_steps(np.array([second]), np.array([last]))[0])

    @cached_property
    def log_floor_s(self) -> float:
        """A lower bound of every graph's ``least_log_step_s``."""
        if self.step_time is None:
            return 0.0
        return math.log(self.step_time.floor_s) if self.step_time.floor_s > 0.0 else -math.inf

    def least_log_step_s(self, edges: EdgeArray) -> float:
        """A quick lower bound of ``log_step_s``."""
        return 0.0 if self.step_time is None else math.log(self.step_time.least_s(edges))

    def log_step_s(self, edges: EdgeArray) -> float:
        """ln(seconds per step); 0 where steps are counted."""
        return 0.0 if self.step_time is None else math.log(self.step_time.mean_s(edges))


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
