"""Random factors around 1: how a duration or a latency varies around its mean."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from pydantic import Field, field_validator

from . import seeds
from .config.limits import MAX_CV, MAX_FACTOR
from .config.problems import mistake
from .config.settings import OneOf, Settings
from .seeds import Floats

MIN_CV = 1e-6
"""Of a gamma distribution: its shape is one over the square."""


class Lognormal(Settings):
    """Lognormal: the product of many small influences."""

    cv: float = Field(ge=0, le=MAX_CV, description="standard deviation over mean")


class Gamma(Settings):
    """Gamma, with shape ``1 / cv**2``: exponential at ``cv: 1``, a lighter tail than lognormal."""

    cv: float = Field(gt=0, le=MAX_CV, description="standard deviation over mean")

    @field_validator("cv")
    @classmethod
    def _check(cls, cv: float) -> float:
        if cv < MIN_CV:
            raise mistake(f"must be at least {MIN_CV:g}, not {cv:g}; leave the jitter out instead")
        return cv


class ShiftedExponential(Settings):
    """A constant part and an exponential one: ``(1 - cv) + cv * Exp(1)``."""

    cv: float = Field(
        ge=0, le=1, description="standard deviation over mean; the exponential part of the mean"
    )


class Pareto(Settings):
    """Pareto: a power law, ``P(X > x) = (x_min / x)**shape`` with ``x_min = (shape - 1) / shape``.

    Its standard deviation over its mean is ``1 / sqrt(shape (shape - 2))``, and infinite for a shape up to 2.
    """

    shape: float = Field(
        gt=1, le=MAX_FACTOR, description="tail index; small is heavy, up to 2 the variance is infinite"
    )


class Jitter(OneOf):
    """A distribution with mean 1; one of these."""

    lognormal: Lognormal | None = Field(default=None, description="lognormal")
    gamma: Gamma | None = Field(default=None, description="gamma")
    shifted_exponential: ShiftedExponential | None = Field(default=None, description="shifted exponential")
    pareto: Pareto | None = Field(default=None, description="Pareto, a heavy tail")

    def factors(self, seed: int, worker: int, purpose: str, block: int) -> Floats:
        """``BLOCK`` independent factors of mean 1: those with the indices from ``block * BLOCK`` on."""
        factors: Floats = self.factors_of(seed, range(worker, worker + 1), purpose, block)[0]
        return factors

    def factors_of(self, seed: int, workers: range, purpose: str, block: int) -> Floats:
        """Each worker's ``factors``, [len(workers), BLOCK]."""
        block_of = partial(seeds.block_rows, seed, workers, purpose, block)
        if self.lognormal is not None:
            variance = math.log1p(self.lognormal.cv**2)
            drawn = block_of(lambda numbers, row: numbers.standard_normal(out=row))
            drawn *= math.sqrt(variance)
            drawn -= variance / 2
            np.exp(drawn, out=drawn)
            return drawn
        if self.gamma is not None:
            scale = self.gamma.cv**2
            return scale * block_of(lambda numbers, row: numbers.standard_gamma(1 / scale, out=row))
        if self.shifted_exponential is not None:
            cv = self.shifted_exponential.cv
            return (1 - cv) + cv * block_of(lambda numbers, row: numbers.standard_exponential(out=row))
        assert self.pareto is not None
        shape = self.pareto.shape
        above = 1 - block_of(lambda numbers, row: numbers.random(out=row))
        return (shape - 1) / shape * above ** (-1 / shape)
