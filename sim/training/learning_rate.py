"""The learning rate of a step, as a factor on the nominal one: warm-up, then one way down."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Annotated, ClassVar, Self

from pydantic import Field, model_validator

from ..config.settings import OneOf, Settings
from ..config.units import Steps

Length = Annotated[Steps, Field(ge=1)]


class Drops(Settings):
    """Multiply by ``factor`` at each of the given steps."""

    at: tuple[Length, ...] = Field(min_length=1, description="steps of the drops, ascending")
    factor: float = Field(default=0.1, gt=0, le=1, description="factor of each drop")

    @model_validator(mode="after")
    def _rising(self) -> Self:
        if any(later <= earlier for earlier, later in pairwise(self.at)):
            raise ValueError("the steps in 'at' must rise")
        return self

    def at_step(self, k: int) -> float:
        """Factor of step ``k``."""
        return self.factor ** sum(k >= step for step in self.at)


class Cosine(Settings):
    """Half a cosine from 1 down to ``final`` (Loshchilov and Hutter, ICLR 2017, eq. 5, without restarts)."""

    until: Length = Field(description="last step, counted from the end of the warm-up")
    final: float = Field(default=0.0, ge=0, le=1, description="factor at the end and afterwards")

    def at_step(self, k: int) -> float:
        """Factor of step ``k``."""
        done = min(k / self.until, 1.0)
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * done))


class Linear(Settings):
    """A straight line from 1 down to ``final``."""

    until: Length = Field(description="last step, counted from the end of the warm-up")
    final: float = Field(default=0.0, ge=0, le=1, description="factor at the end and afterwards")

    def at_step(self, k: int) -> float:
        """Factor of step ``k``."""
        return 1 - (1 - self.final) * min(k / self.until, 1.0)


class InverseTime(Settings):
    """``1 / (1 + k / half)``: the rate that proofs for strongly convex functions use."""

    half: Length = Field(description="step of factor one half, counted from the end of the warm-up")
    stairs: bool = Field(
        default=False,
        description="constant between multiples of 'half': 1 / epoch, if that is an epoch's steps",
    )

    def at_step(self, k: int) -> float:
        """Factor of step ``k``."""
        return 1 / (1 + (k // self.half if self.stairs else k / self.half))


class LearningRate(OneOf):
    """The learning rate over the steps: a linear warm-up, then constant or one of four ways down.

    Step k of a warm-up of w steps has (k + 1) / w of the learning rate, so no step is lost at 0 (Goyal et
    al., arXiv 1706.02677, section 2.2). ``drops`` count from step 0, the others from the end of the warm-up.
    """

    alternatives: ClassVar[tuple[str, ...]] = ("drops", "cosine", "linear", "inverse_time")
    one_needed: ClassVar[bool] = False

    warmup: Steps = Field(default=0, description="steps of linear warm-up")
    drops: Drops | None = Field(default=None, description="multiply by a factor at given steps")
    cosine: Cosine | None = Field(default=None, description="half a cosine")
    linear: Linear | None = Field(default=None, description="a straight line")
    inverse_time: InverseTime | None = Field(default=None, description="1 / (1 + k / half)")

    @model_validator(mode="after")
    def _drops_after_warmup(self) -> Self:
        if self.drops is not None and self.drops.at[0] < self.warmup:
            raise ValueError("the first drop comes before the end of the warm-up")
        return self

    def factor(self, k: int) -> float:
        """The factor on the nominal learning rate at step ``k`` (from 0)."""
        if k < self.warmup:
            return (k + 1) / self.warmup
        if self.drops is not None:
            return self.drops.at_step(k)
        way = self.cosine or self.linear or self.inverse_time
        return way.at_step(k - self.warmup) if way is not None else 1.0
