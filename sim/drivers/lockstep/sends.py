"""Bytes that workers send to each other, from operations of all workers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...seeds import Integers
from ...traffic.placing import Placed

MAX_KEPT: Final = 64
"""Cached sends; operations of a scheme mostly repeat fewer."""


@dataclass(frozen=True, slots=True, eq=False)
class Sends:
    """Messages of one operation [m]: sender, receiver and bytes (one number: of each)."""

    source: Integers
    destination: Integers
    num_bytes: int | Integers


@lru_cache(maxsize=MAX_KEPT)
def sends_of_collectives(placed: tuple[Placed, ...]) -> Sends:
    """Sends of simultaneous collectives."""
    columns = []
    for each in placed:
        hosts, (source, destination, num_bytes) = np.array(each.members), each.collective.sent
        columns.append((hosts[source], hosts[destination], num_bytes))
    return Sends(*map(np.concatenate, zip(*columns, strict=True)))


class SentBetween:
    """Sums of operations' sends by sender and receiver, of n ``workers``."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._times: dict[Sends, int | Integers] = {}
        self._pairs = self._bytes = np.empty(0, np.int64)  # source * n + destination, ascending

    def add(self, sends: Sends, ended: NDArray[np.bool_] | None) -> None:
        """Count an operation, of the workers that have ``ended`` it [n]; None: of all."""
        self._times[sends] = self._times.get(sends, 0) + (1 if ended is None else ended.astype(np.int64))
        if len(self._times) > MAX_KEPT:
            self._sum()

    def _sum(self) -> None:
        pairs, sizes = [self._pairs], [self._bytes]
        for sends, times in self._times.items():
            pairs.append(sends.source * self._workers + sends.destination)
            of_each = times[sends.source] if isinstance(times, np.ndarray) else times
            sizes.append(np.broadcast_to(sends.num_bytes * of_each, pairs[-1].shape))
        self._pairs, place = np.unique(np.concatenate(pairs), return_inverse=True)
        self._bytes = np.zeros(len(self._pairs), np.int64)
        np.add.at(self._bytes, place, np.concatenate(sizes))
        self._times.clear()

    def of_workers(self) -> Iterator[dict[int, int]]:
        """Receiver -> bytes, for each worker."""
        self._sum()
        source, destination = np.divmod(self._pairs, self._workers)
        ends = np.searchsorted(source, np.arange(self._workers + 1))
        for first, last in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            sent = zip(destination[first:last].tolist(), self._bytes[first:last].tolist(), strict=True)
            yield {peer: num_bytes for peer, num_bytes in sent if num_bytes}
