"""What workers resume from when others fail, and who heals whom: ``on_fault: shrink``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from torch import Tensor

from ..network.network import rate_of
from ..program import operations as ops
from ..program.averaging import COLLECTIVES
from .job import Job

AVERAGING: Final = frozenset({ops.Mix, *COLLECTIVES})
"""Operations by which workers average."""


@dataclass(frozen=True)
class Resumed:
    """What a worker resumes from: its next step, what it ``kept`` (() before the first one), and when."""

    step: int = 0
    kept: tuple[Any, ...] = ()
    gradients: int = 0
    at_s: float = 0.0


def healers_of(job: Job, members: Sequence[int], able: Collection[int]) -> dict[int, int]:
    """Sender of the state for each returning worker: the closest ``able`` one, of equals the least busy."""
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
    """All tensors of what a worker resumes from: what heals another one."""
    for each in kept:
        if isinstance(each, Tensor):
            yield each
        elif isinstance(each, tuple):
            yield from tensors_of(each)
