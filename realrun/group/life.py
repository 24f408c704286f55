"""Signs of life between runs: they distinguish a stopped or hung rank from a slow one.

Ranks prepare and score a run for as long as they need, while the others wait. So a thread of each rank
increments a count in the store, and waiting ranks look at it: a process stopped by a signal, or a dead
machine, counts no more. In a run the watchdog does this (``paceline.realrun.driver.watchdog``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from torch._C._distributed_c10d import Store

_SIGNS: Final = 8
"""Signs of life within the time after which a rank counts as silent."""


class SignsOfLife:
    """This process's signs of life, given by a thread until ``close``, and those seen of others.

    ``number`` is this process's among those that share ``name``, as one process may have several;
    ``patience_s`` is the longest silence of a rank.
    """

    def __init__(self, store: Store, number: int, patience_s: float, name: str) -> None:
        self.patience_s = patience_s
        self._store = store
        self._own = number
        self._name = name
        self._period_s = patience_s / _SIGNS
        self._looked_s = time.monotonic()
        self._seen: dict[int, tuple[bytes, float]] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._give, name="signs of life", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Give no more signs."""
        self._over.set()
        self._thread.join()

    def silent(self, ranks: Iterable[int]) -> list[int]:
        """Those of ``ranks`` silent for too long while this process watched; polls the store once per period.

        Raises ``RuntimeError`` if the store is lost.
        """
        now_s = time.monotonic()
        since_s = now_s - self._looked_s
        if since_s < self._period_s:
            return []
        if since_s > 2 * self._period_s:  # this rank was busy or stopped, as all may have been
            self._seen.clear()
        self._looked_s = now_s
        silent = []
        for rank in ranks:
            key = self._key(rank)
            count = self._store.get(key) if self._store.check([key]) else b""
            if rank not in self._seen or self._seen[rank][0] != count:
                self._seen[rank] = (count, now_s)
            elif now_s > self._seen[rank][1] + self.patience_s:
                silent.append(rank)
        return silent

    def _give(self) -> None:
        count = 0
        with suppress(RuntimeError):  # a lost store also ends this rank's own waits
            while True:
                count += 1
                self._store.set(self._key(self._own), str(count))
                if self._over.wait(self._period_s):
                    return

    def _key(self, rank: int) -> str:
        return f"alive as {self._name} {rank}"
