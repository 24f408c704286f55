"""Signs of life between runs: a rank that has been stopped, or hangs, is told from one that takes its time.

Ranks prepare a run and score one for as long as they need, and the others wait. So a thread of each rank
counts up in the store meanwhile, and who waits for a rank looks at its count: what a signal has stopped, or a
dead machine, counts no more. In a run the watchdog does this (``paceline.realrun.driver.watchdog``).
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
    """Those of this process, which a thread gives until ``close``, and what is known of the others'.

    Args:
        store: shared by all ranks.
        number: of this process, among those that share ``name``.
        patience_s: for how long a rank may give no sign.
        name: of the numbers, as one process may have several.
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
        """Those of ``ranks`` that have given no sign for too long, while this process looked all the time.

        It asks the store now and then only, however often it is called.

        Raises:
            RuntimeError: the store is lost.
        """
        now_s = time.monotonic()
        since_s = now_s - self._looked_s
        if since_s < self._period_s:
            return []
        if since_s > 2 * self._period_s:  # it did something else, or was stopped itself, as all may have been
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
        with suppress(RuntimeError):  # without the store nobody looks, and this rank's own waits end
            while True:
                count += 1
                self._store.set(self._key(self._own), str(count))
                if self._over.wait(self._period_s):
                    return

    def _key(self, rank: int) -> str:
        return f"alive as {self._name} {rank}"
