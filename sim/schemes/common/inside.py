"""Units of workers that act as one: those of a host, or of a site, average gradients at every step.

    units = Units(worker, options.inside)
    gradient = await units.gradient(x)             the mean over this worker's unit
    shard = units.shard(value)                     this worker's message to other units
    value = await units.gather(shard, length)      the unit's value again, from its members' shards

A unit has one model, the same bits on all members, and its batch is those of all members together. Between
units each member exchanges the shard of the model that it owns with the members in its place in other units:
so a unit sends no more than one worker would, and all its GPUs' links have an equal part in it. The mean over
units is the exact mean over workers, as all units have one size. Without ``inside`` every worker is its own
unit.
"""

from __future__ import annotations

from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor

from ...errors import InputError
from ...network.network import Network
from ...program.groups import Groups
from ...program.pattern import Pattern
from ...program.worker import Worker
from .buckets import Buckets

Inside = Annotated[
    Literal["hosts", "sites"] | None,
    Field(
        description="workers of a host, or of a site, act as one: average gradients at every step, and "
        "share the traffic to others (default: each alone)"
    ),
]


@lru_cache(maxsize=64)
def unit_groups(places: tuple[int, ...]) -> Groups:
    """The workers of each place, given every worker's number of host or site, in the order of places."""
    ranks: dict[int, list[int]] = {}
    for rank, place in enumerate(places):
        ranks.setdefault(place, []).append(rank)
    return tuple(tuple(ranks[place]) for place in sorted(ranks))


def possible_units(network: Network) -> tuple[str, ...]:
    """Kinds of places that can act as one, as ``count_units`` accepts them."""
    fitting = []
    for inside in ("hosts", "sites"):
        with suppress(InputError):
            count_units(inside, network)
            fitting.append(inside)
    return tuple(fitting)


def count_units(inside: str | None, network: Network) -> int:
    """Number of units: workers, or groups that act as one; ``InputError`` where these differ in size."""
    if inside is None:
        return network.num_hosts
    sizes = [len(group) for group in unit_groups(network.nodes if inside == "hosts" else network.site_of)]
    one = inside.removesuffix("s")
    if len(sizes) < 2:
        raise InputError(f"inside: all workers are in one {one}, so that there are no others; leave it out")
    if len(set(sizes)) > 1:
        raise InputError(
            f"inside: one {one} has {min(sizes)} workers, another {max(sizes)}; it needs {inside} of "
            "equal size"
        )
    if sizes[0] == 1:
        raise InputError(
            f"inside: every {one} is one worker, which acts alone anyway; leave it out, or write for example "
            "'host: {gpus: 8}' in cluster.network"
        )
    return len(sizes)


class Units:
    """The units as seen by one worker, or by all workers at once; ``inside``: a scheme's option.

    With ``bucket_bytes`` gradients are averaged during the backward pass, in buckets of that size.

    Attributes:
        number: of units.
        members: workers of each.
        groups: the workers of each; None: every worker is one.
        across: groups of averages between units: the workers in the same place of each; None: all workers.
    """

    def __init__(self, worker: Worker, inside: str | None, bucket_bytes: float | None = None) -> None:
        places = worker.hosts if inside == "hosts" else worker.sites
        groups = unit_groups(places) if inside is not None else ()
        together = bool(groups) and len(groups) < worker.size
        self._worker = worker
        self.groups: Groups | None = groups if together else None
        self.number = len(groups) if together else worker.size
        self.members = len(groups[0]) if together else 1
        self.across: Groups | None = tuple(zip(*groups, strict=True)) if together else None
        self._buckets = None
        if self.groups and bucket_bytes:
            self._buckets = Buckets(worker, bucket_bytes, bucket_bytes, None, self.groups)

    async def gradient(self, x: Tensor) -> Tensor:
        """The mean gradient at x [..., d] over the batches of all members."""
        if self._buckets is not None:
            await self._buckets.send(x)
            return await self._buckets.mean(next_forward=False)
        gradient = await self._worker.gradient(x)
        return gradient if self.groups is None else await self._worker.all_reduce(gradient, self.groups)

    async def scatter(self, value: Tensor) -> Tensor:
        """This worker's shard of the mean of all members' values [..., d]: [..., ceil(d / members)]."""
        return await self._worker.reduce_scatter(value, self.groups)

    def shard(self, value: Tensor) -> Tensor:
        """This worker's message, a shard of its unit's ``value`` [..., d]: [..., ceil(d / members)]."""
        return value if self.groups is None else self._worker.shard(value, self.groups)

    async def gather(self, shard: Tensor, length: int) -> Tensor:
        """Join the shards of all members to a value [..., length]."""
        if self.groups is None:
            return shard
        return await self._worker.all_gather_shards(shard, length, self.groups)

    def pattern(self, pattern: Pattern) -> Pattern:
        """Expand a pattern among units to workers: each member hears those in its own place."""
        return pattern if self.groups is None else _spread(pattern, self.groups)


@lru_cache(maxsize=64)
def _spread(pattern: Pattern, groups: Groups) -> Pattern:
    place_of = {rank: (unit, place) for unit, group in enumerate(groups) for place, rank in enumerate(group)}
    own: list[float] = []
    rows: list[list[tuple[int, float]]] = []
    for rank in sorted(place_of):
        unit, place = place_of[rank]
        weighted = zip(pattern.sources[unit], pattern.weights[unit], strict=True)
        own.append(pattern.own[unit])
        rows.append(sorted((groups[other][place], weight) for other, weight in weighted))
    return Pattern(
        own=tuple(own),
        sources=tuple(tuple(source for source, _ in row) for row in rows),
        weights=tuple(tuple(weight for _, weight in row) for row in rows),
    )
