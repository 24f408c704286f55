"""How long a computation lasts, as the user writes it."""

from __future__ import annotations

from pydantic import Field, model_validator

from sim.settings import Settings
from sim.units import Seconds


class Lognormal(Settings):
    """Lognormal with the given mean."""

    cv: float = Field(ge=0, allow_inf_nan=False, description="standard deviation over mean")


class ShiftedExponential(Settings):
    """A constant part and an exponential one: ``time * ((1 - cv) + cv * Exp(1))``."""

    cv: float = Field(
        ge=0, le=1, description="standard deviation over mean; the exponential part of the mean"
    )


class Jitter(Settings):
    """The distribution of a computation around its mean; one of them."""

    lognormal: Lognormal | None = Field(default=None, description="lognormal")
    shifted_exponential: ShiftedExponential | None = Field(default=None, description="shifted exponential")

    @model_validator(mode="after")
    def _one(self) -> Jitter:
        if (self.lognormal is None) == (self.shifted_exponential is None):
            raise ValueError("give exactly one of lognormal, shifted_exponential")
        return self


class Compute(Settings):
    """Duration of one gradient."""

    time: Seconds = Field(description="mean duration of one gradient")
    jitter: Jitter | None = Field(default=None, description="how it varies; absent: constant")


class Straggler(Settings):
    """Slow workers: always (``workers``) or now and then, anybody (``probability``)."""

    workers: tuple[int, ...] | None = Field(default=None, description="ranks that are always slow")
    probability: float | None = Field(
        default=None, ge=0, le=1, description="chance that a computation is slow"
    )
    slowdown: float = Field(ge=1, allow_inf_nan=False, description="factor on the duration")

    @model_validator(mode="after")
    def _one(self) -> Straggler:
        if (self.workers is None) == (self.probability is None):
            raise ValueError("give exactly one of workers, probability")
        return self
