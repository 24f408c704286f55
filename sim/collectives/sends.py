"""Bytes that hosts send to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from ..seeds import Integers
from .collective import Collective


@dataclass(frozen=True, eq=False)
class Sends:
    """Messages, or sums of messages: source, destination and bytes of each [m]."""

    source: Integers
    destination: Integers
    num_bytes: Integers

    @cached_property
    def of_hosts(self) -> dict[int, list[tuple[int, int]]]:
        """Source -> destination and bytes of each message that is not empty."""
        hosts = dict[int, list[tuple[int, int]]]()
        columns = self.source.tolist(), self.destination.tolist(), self.num_bytes.tolist()
        for source, destination, num_bytes in zip(*columns, strict=True):
            if num_bytes:
                hosts.setdefault(source, []).append((destination, num_bytes))
        return hosts


@lru_cache(maxsize=64)
def sends_of(collectives: tuple[tuple[Collective, tuple[int, ...]], ...]) -> Sends:
    """Sends of simultaneous collectives, each with the hosts of its ranks."""
    columns = []
    for collective, members in collectives:
        source, destination, num_bytes = collective.sent
        hosts = np.array(members)
        columns.append((hosts[source], hosts[destination], num_bytes))
    return Sends(*map(np.concatenate, zip(*columns, strict=True)))


def add_up(times: Mapping[Sends, int | Integers], hosts: int) -> Sends:
    """Sums by source and destination of sends that happened this many times: one number, or one per host."""
    keys, sizes = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for sends, number in times.items():
        keys.append(sends.source * hosts + sends.destination)
        sizes.append(sends.num_bytes * (number if isinstance(number, int) else number[sends.source]))
    pairs, place = np.unique(np.concatenate(keys), return_inverse=True)
    sums = np.zeros(len(pairs), np.int64)
    np.add.at(sums, place, np.concatenate(sizes))
    return Sends(*np.divmod(pairs, hosts), sums)
