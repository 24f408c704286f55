"""Sizes of the workers' batches: one for all, one of each worker or site, or shares by speed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from ..config.limits import MAX_BATCH
from ..config.problems import Mistake
from ..config.settings import Settings
from ..errors import did_you_mean
from ..network.forms.sites import DEFAULT

Size = Annotated[int, Field(ge=1, le=MAX_BATCH)]


class BySpeed(Settings):
    """Batches in proportion to the speeds of the workers' computing."""

    by: Literal["speed"] = Field(description="what a worker's share is in proportion to")
    mean: Size = Field(description="examples per worker's batch, the mean over all workers")


# No keys that somebody may write: errors leave them out of the place that they name.
_ONE, _EACH, _SHARES, _SITES = "one size", "a size each", "shares by speed", "sizes by site"


def _form(value: Any) -> str:
    if isinstance(value, Mapping):
        return _SHARES if value.keys() & BySpeed.model_fields.keys() else _SITES
    return _SHARES if isinstance(value, BySpeed) else _EACH if isinstance(value, list | tuple) else _ONE


BatchSize = Annotated[
    Annotated[Size, Tag(_ONE)]
    | Annotated[tuple[Size, ...], Tag(_EACH)]
    | Annotated[BySpeed, Tag(_SHARES)]
    | Annotated[dict[str, Size], Tag(_SITES)],
    Discriminator(_form),
]


def wrong_sizes(batch_size: BatchSize, workers: int, sites: Mapping[str, int]) -> Iterator[Mistake]:
    """Mistakes in the number of sizes, and in the names of sites."""
    at = ("workload", "batch_size")
    if isinstance(batch_size, tuple) and len(batch_size) != workers:
        yield Mistake(at, f"{len(batch_size)} sizes for {workers} workers; give one for each")
    if not isinstance(batch_size, dict):
        return
    if not sites:
        text = "is by site, and the network has no sites; write a number, a list or {by: speed, mean: 32}"
        yield Mistake(at, text)
        return
    for name in sorted(batch_size.keys() - sites.keys() - {DEFAULT}):
        yield Mistake((*at, name), f"no such site; {did_you_mean(name, sites)}")
    if silent := [name for name in sites if not batch_size.keys() & {name, DEFAULT}]:
        yield Mistake(at, f"says nothing of {', '.join(silent)}; add a 'default'")


def of_sites(batch_size: Mapping[str, int], sites: Mapping[str, int]) -> tuple[int, ...]:
    """Each worker's size, given that of its site; 1 where nothing is."""
    sizes = [batch_size.get(name, batch_size.get(DEFAULT, 1)) for name in sites]
    return tuple(size for size, n in zip(sizes, sites.values(), strict=True) for _ in range(n))


def mean_size(batch_size: Any, sites: Mapping[str, int]) -> float:
    """The mean over all workers of what a scenario writes, as plain data."""
    if isinstance(batch_size, Mapping) and "mean" not in batch_size:
        batch_size = of_sites(batch_size, sites)
    if isinstance(batch_size, Sequence):
        return sum(batch_size) / len(batch_size)
    mean: float = batch_size["mean"] if isinstance(batch_size, Mapping) else batch_size
    return mean


def apportion(total: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Whole numbers in proportion to ``shares``, at least 1 each, with exactly this sum.

    By largest remainders, the first of equal ones: Hamilton's method.

    >>> apportion(1024, [2.2, 1.0])
    (704, 320)
    """
    whole = math.fsum(shares)
    exact = [total * each / whole for each in shares]
    sizes = [max(1, math.floor(each)) for each in exact]
    while rest := total - sum(sizes):
        one = 1 if rest > 0 else -1
        most = sorted(range(len(sizes)), key=lambda rank: round(one * (sizes[rank] - exact[rank]), 9))
        for rank in [each for each in most if sizes[each] + one][: abs(rest)]:
            sizes[rank] += one
    return tuple(sizes)


@dataclass(frozen=True)
class Weights:
    """What a worker's values count by in means of equal weights: its share of the examples times the workers.

    Attributes:
        gradients: of each worker; (): all count alike.
        models: of the changes that its own steps make in its model; (): all count alike.
    """

    gradients: tuple[float, ...] = ()
    models: tuple[float, ...] = ()


EVEN = Weights()
