"""The control store: a few small facts that all ranks of a run share, off the measured network.

On one machine it is a file in a private folder, so that nothing is bound; under torchrun it is the
agent's store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from torch._C._distributed_c10d import FileStore, PrefixStore, Store, TCPStore

from paceline.sim.errors import InputError, RunError

POLL_S = 0.01
"""How often a rank looks for a fact that it waits for."""


class Stopped(Exception):
    """Another rank's failure has ended the run."""


def file_store(path: Path, size: int) -> Store:
    """The store of ``size`` processes on this machine; ``path`` is in a folder of their own."""
    return FileStore(str(path), size)


_TORCHRUN: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def torchrun_store(
    environment: MutableMapping[str, str], timeout_s: float, how: str
) -> tuple[Store, int, int]:
    """The store that torchrun's environment names, this process's rank, and how many there are.

    On one machine gloo gets the loopback to use, unless the environment names another interface.

    Args:
        environment: of this process.
        timeout_s: how long the store may take to answer.
        how: to start the processes, for whoever did not.

    Raises:
        InputError: torchrun has not started this process.
    """
    if missing := [name for name in _TORCHRUN if name not in environment]:
        raise InputError(f"{', '.join(missing)} not set: {how}")
    if environment["MASTER_ADDR"] in ("127.0.0.1", "localhost"):
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    rank, size = int(environment["RANK"]), int(environment["WORLD_SIZE"])
    held_by_agent = environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = TCPStore(
        environment["MASTER_ADDR"],
        int(environment["MASTER_PORT"]),
        size,
        is_master=rank == 0 and not held_by_agent,
        timeout=timedelta(seconds=timeout_s),
        multi_tenant=True,
    )
    return store, rank, size


class Control:
    """Facts that the ranks share outside their transfers.

    Args:
        store: shared by all ranks.
        rank, size: of this process.
        name: of the run; facts of different runs do not meet. Deaths are known to all runs.
    """

    def __init__(self, store: Store, rank: int, size: int, name: str = "") -> None:
        self.rank = rank
        self.size = size
        self._all = store
        self._store = PrefixStore(name, store) if name else store

    def put(self, key: str, value: Any) -> None:
        """Share ``value`` (anything that JSON can hold) under ``key``."""
        self._store.set(key, json.dumps(value))

    def has(self, *keys: str) -> bool:
        """Whether there is a value under all of ``keys``."""
        return bool(self._store.check(list(keys)))

    def get(self, key: str) -> Any:
        """The value under a key that is there."""
        return json.loads(self._store.get(key))

    def first(self, key: str) -> bool:
        """Whether this call is the first of all ranks' for ``key``."""
        return bool(self._store.add(f"{key} count", 1) == 1)

    def failed(self) -> bool:
        """Whether some rank has shared why it failed."""
        return self.has("failed")

    # --- deaths ---------------------------------------------------------------------------------

    def note_death(self, rank: int) -> None:
        """Let all ranks know that one is dead."""
        self._all.set(f"dead/{rank}", "1")

    def dead(self) -> frozenset[int]:
        """The ranks that are known to be dead."""
        return frozenset(r for r in range(self.size) if self._all.check([f"dead/{r}"]))

    # --- meeting --------------------------------------------------------------------------------

    def meet(self, what: str, value: Any, timeout_s: float) -> list[Any]:
        """Share ``value`` and wait for that of every rank; returns them in rank order.

        Raises:
            Stopped: a rank has failed.
            RunError: a rank is dead, or has not come within ``timeout_s``.
        """
        self.put(f"{what}/{self.rank}", value)
        missing = self.wait_for(
            lambda r: f"{what}/{r}", range(self.size), timeout_s, lambda: bool(self.dead()) or self.failed()
        )
        if missing:
            if self.failed():
                raise Stopped
            died = sorted(self.dead()) or missing
            names = ", ".join(f"worker {r}" for r in died)
            verb = "was lost" if self.dead() else f"did not come within {timeout_s:g} s"
            raise RunError(f"{names} {verb} ({what})")
        return [self.get(f"{what}/{r}") for r in range(self.size)]

    def wait_for(
        self, key: Callable[[int], str], ranks: Iterable[int], timeout_s: float, give_up: Callable[[], bool]
    ) -> list[int]:
        """Wait until each of ``ranks`` has shared its key; returns those that have not.

        Args:
            key: of each rank.
            ranks: to wait for.
            timeout_s: at most.
            give_up: whether to stop waiting; called again and again.
        """
        missing = list(ranks)
        end_s = time.monotonic() + timeout_s
        while True:
            missing = [r for r in missing if not self.has(key(r))]
            if not missing or time.monotonic() > end_s or give_up():
                return missing
            time.sleep(POLL_S)

    def agree(self, what: str, facts: Mapping[str, Any], timeout_s: float) -> None:
        """Check that every rank was given the same facts.

        Raises:
            InputError: a rank's fact differs from that of most ranks; names the rank and the fact.
            RunError: a rank did not come.
        """
        shared: list[dict[str, Any]] = self.meet(what, dict(facts), timeout_s)
        for name in facts:
            values = [each.get(name) for each in shared]
            usual = max(values, key=values.count)
            for rank, value in enumerate(values):
                if value != usual:
                    raise InputError(
                        f"rank {rank} has {name} {value}, the others have {usual}; start all ranks alike"
                    )
