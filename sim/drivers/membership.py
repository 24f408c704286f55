"""Who takes part when workers fail and the others go on (``on_fault: shrink``), and who heals whom."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from ..errors import InputError
from ..network.network import rate_of
from ..program import operations as ops
from ..program.averaging import COLLECTIVES
from .job import Job

EXCHANGES: Final = frozenset({ops.Mix, *COLLECTIVES})
"""Operations by which workers average."""

NOBODY: Final = (
    "all workers have failed, so that nobody can heal those that return; write a checkpoint, "
    "with 'on_fault: restart'"
)


@dataclass(frozen=True)
class Resumed:
    """What a worker goes on from.

    Attributes:
        step: number of its next step.
        kept: as it published it; () before the first step.
        gradients: that it had computed.
        at_s: when.
    """

    step: int = 0
    kept: tuple[Any, ...] = ()
    gradients: int = 0
    at_s: float = 0.0


def members_of(job: Job, away: Collection[int]) -> tuple[int, ...]:
    """The workers of the next view, ascending: those present, but for incomplete units.

    () where the scheme is not for that few: all wait.
    """
    network, inside = job.transfer.network, job.scheme.inside(job.options)
    here = [rank for rank in range(job.workers) if rank not in away]
    places = network.nodes if inside == "hosts" else network.site_of if inside else range(job.workers)
    whole, there = Counter(places), Counter(places[rank] for rank in here)
    units = [place for place in there if there[place] == whole[place]]
    options = job.options.model_copy(update={"inside": None}) if inside else job.options
    try:
        job.scheme.check(options, len(units))
    except InputError:
        return ()
    return tuple(rank for rank in here if places[rank] in units)


def healers_of(job: Job, members: Sequence[int], able: Collection[int]) -> dict[int, int]:
    """Who is healed -> the closest of the ``able`` members; of equals the one that heals fewest."""
    network, busy = job.transfer.network, Counter[int]()
    healers = {}
    for rank in members:
        if rank in able:
            continue
        routes = {each: network.route(each, rank) for each in members if each in able}
        healers[rank] = min(
            routes,
            key=lambda each: (routes[each].latency_s, -rate_of(network, routes[each]), busy[each], each),
        )
        busy[healers[rank]] += 1
    return healers


def tensors_of(kept: Iterable[Any]) -> Iterator[Tensor]:
    """All tensors of what a worker goes on from: what heals another one."""
    for each in kept:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, tuple):
            yield from tensors_of(each)
