"""Sizes of the workers' batches: one for all, one of each worker or site, or shares by speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from ..config.limits import MAX_BATCH
from ..config.settings import Settings

Size = Annotated[int, Field(ge=1, le=MAX_BATCH)]


class BySpeed(Settings):
    """Batches in proportion to the speeds of the workers' computing."""

    by: Literal["speed"] = Field(description="what a worker's share is in proportion to")
    mean: Size = Field(description="examples per worker's batch, the mean over all workers")


def _form(value: Any) -> str:
    """Tag of a form, which is no key that somebody may write: errors leave it out of their place."""
    if isinstance(value, BySpeed) or (isinstance(value, Mapping) and {"by", "mean"} & value.keys()):
        return "shares by speed"
    kinds = {"list": "a size each", "tuple": "a size each", "dict": "sizes by site"}
    return kinds.get(type(value).__name__, "one size")


BatchSize = Annotated[
    Annotated[Size, Tag("one size")]
    | Annotated[tuple[Size, ...], Field(min_length=1), Tag("a size each")]
    | Annotated[BySpeed, Tag("shares by speed")]
    | Annotated[dict[str, Size], Field(min_length=1), Tag("sizes by site")],
    Discriminator(_form),
]


def apportion(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportion to ``shares``, at least 1 each, with exactly this sum.

    By largest remainders, the first of equal ones: Hamilton's method.

    >>> apportion(1024, [2.2, 1.0])
    (704, 320)
    """
    exact = [total * each / math.fsum(shares) for each in shares]
    sizes = [max(1, math.floor(each)) for each in exact]
    while rest := total - sum(sizes):
        one = 1 if rest > 0 else -1
        most = sorted(range(len(sizes)), key=lambda rank: round(one * (sizes[rank] - exact[rank]), 9))
        for rank in [each for each in most if sizes[each] + one][: abs(rest)]:
            sizes[rank] += one
    return tuple(sizes)
