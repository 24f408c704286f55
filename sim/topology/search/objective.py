"""The objective of the search: the time in which averaging shrinks disagreement by a factor of e."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Protocol

import numpy as np

from ...errors import InputError, did_you_mean
from ...seeds import Floats
from .search_graph import EdgeArray

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
