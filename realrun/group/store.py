"""The control store: a few small facts shared by all ranks, off the measured network; and signs of life.

Between processes started by Paceline it is a file in a private folder, so that nothing is bound to a port;
otherwise it is ``paceline.realrun.group.job_store``.

Signs of life distinguish a stopped or hung rank from a slow one. Ranks prepare and score a run for as long as
they need, while the others wait. So a thread of each rank increments a count in the store, and waiting ranks
look at it: a process stopped by a signal, or a dead machine, counts no more. In a run the watchdog does this
(``paceline.realrun.driver.watchdog``).
"""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from paceline.sim.errors import InputError, RunError, quote

from .job_store import POLL_S, JobStore, open_job_store

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


MIN_TIMEOUT_S: Final = 1.0
"""Seconds. Within less, a rank that only waits for a processor would count as lost."""
MAX_TIMEOUT_S: Final = 1e6
"""Longest wait in seconds, some eleven days."""


def check_timeout(name: str, seconds: float) -> None:
    """Refuse a time-out out of range; ``name`` is its name in the error."""
    if not MIN_TIMEOUT_S <= seconds <= MAX_TIMEOUT_S:
        raise InputError(
            f"{name} {seconds:g}: must be at least {MIN_TIMEOUT_S:g} and at most {MAX_TIMEOUT_S:g} seconds"
        )


class Stopped(Exception):
    """Another rank's failure has ended the run."""


_MAX_PORT: Final = 65_535
_TORCHRUN: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def read_place(environment: Mapping[str, str], how: str) -> tuple[int, int, int]:
    """Rank, number of ranks and MASTER_PORT from a launcher's environment.

    Raises ``InputError``, with the advice ``how``, if a variable is missing or nonsense.
    """
    if missing := [name for name in _TORCHRUN if not environment.get(name)]:
        raise InputError(f"{', '.join(missing)} not set: {how}")
    for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"):
        if not re.fullmatch("[0-9]{1,9}", text := environment[name]):
            raise InputError(f"{name} is {quote(text)}, and has to be a whole number from 0 on")
    rank, size, port = (int(environment[name]) for name in ("RANK", "WORLD_SIZE", "MASTER_PORT"))
    if rank >= size or not 0 < port <= _MAX_PORT:
        raise InputError(
            f"RANK={rank}, WORLD_SIZE={size} and MASTER_PORT={port} do not fit together: ranks go from 0 to "
            f"WORLD_SIZE - 1, ports from 1 to {_MAX_PORT}"
        )
    return rank, size, port


def torchrun_store(
    environment: MutableMapping[str, str], timeout_s: float, how: str, name: str = ""
) -> tuple[JobStore, int, int]:
    """Open the store of the job in torchrun's environment; returns also the rank and number of ranks.

    Rank 0's address is in torchrun's own store; without one, as under Slurm, rank 0 listens at MASTER_PORT.
    ``how``: advice about starting the processes; ``name``: of this use of them, alike on all ranks.

    Raises:
        InputError: torchrun has not started this process, or the ranks share no secret.
        RunError: they did not find each other within ``timeout_s``.
    """
    rank, size, port = read_place(environment, how)
    torch_store = None
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        try:
            with socket.create_connection((environment["MASTER_ADDR"], port), timeout_s):
                pass  # else torch logs pages before it reports that nobody listens
            torch_store = TCPStore(
                environment["MASTER_ADDR"], port, size, is_master=False, timeout=timedelta(seconds=timeout_s)
            )
        except (OSError, RuntimeError) as error:
            raise RunError(f"torchrun's store does not answer: {error}") from None
    return open_job_store(environment, rank, size, timeout_s, torch_store, name), rank, size


@contextmanager
def _named_losses() -> Iterator[None]:
    """Raise a store's failure as ``RunError``."""
    try:
        yield
    except (RuntimeError, ValueError) as error:  # a loss; or no JSON, or one that is nested too deeply
        raise RunError(str(error)) from None


class Control:
    """Facts shared by the ranks outside their transfers.

    Facts of runs of different ``name`` do not meet; deaths are known to all runs. Without signs of ``life``
    no rank counts as silent.
    """

    def __init__(
        self, store: Store, rank: int, size: int, name: str = "", life: SignsOfLife | None = None
    ) -> None:
        self.rank = rank
        self.size = size
        self._name = name
        self._all = store
        self._life = life
        self._store = PrefixStore(name, store) if name else store

    def put(self, key: str, value: Any) -> None:
        """Share ``value`` (anything that JSON can hold) under ``key``."""
        with _named_losses():
            self._store.set(key, json.dumps(value))

    def has(self, *keys: str) -> bool:
        """Whether all of ``keys`` have a value."""
        with _named_losses():
            return bool(self._store.check(list(keys)))

    def get(self, key: str) -> Any:
        """The value of an existing key."""
        with _named_losses():
            return json.loads(self._store.get(key))

    def get_all(self, keys: Sequence[str]) -> list[Any]:
        """The values of existing keys; from a job's store in one round trip."""
        with _named_losses():
            if isinstance(self._all, JobStore):  # torch's PrefixStore has no multi_get for it
                values = self._all.multi_get([f"{self._name}/{key}" if self._name else key for key in keys])
            else:
                values = [self._store.get(key) for key in keys]
            return [json.loads(value) for value in values]

    def first(self, key: str) -> bool:
        """Whether this is the first call of any rank for ``key``."""
        with _named_losses():
            return bool(self._store.add(f"{key} count", 1) == 1)

    def failed(self) -> bool:
        """Whether some rank has reported a failure."""
        return self.has("failed")

    # --- deaths ---------------------------------------------------------------------------------

    def note_death(self, rank: int) -> None:
        """Tell all ranks that ``rank`` is dead."""
        with _named_losses():
            for key in (f"dead/{rank}", "dead"):
                self._all.set(key, "1")

    def dead(self) -> frozenset[int]:
        """The ranks known to be dead."""
        with _named_losses():
            if not self._all.check(["dead"]):
                return frozenset()
            return frozenset(r for r in range(self.size) if self._all.check([f"dead/{r}"]))

    # --- meeting --------------------------------------------------------------------------------

    def meet(self, what: str, value: Any, timeout_s: float) -> list[Any]:
        """Share ``value`` and wait for that of every rank; returns them in rank order.

        Raises:
            Stopped: a rank has failed.
            RunError: a rank is dead, has fallen silent, or has not come within ``timeout_s``.
        """
        self.put(f"{what}/{self.rank}", value)
        silent: list[int] = []

        def key(rank: int) -> str:
            return f"{what}/{rank}"

        def give_up() -> bool:
            silent.extend(self.silent(key, range(self.size)))
            return bool(silent or self.dead() or self.failed())

        missing = self.wait_for(key, range(self.size), timeout_s, give_up)
        if missing:
            if self.failed():
                raise Stopped
            died = sorted(self.dead())
            if died:
                verb = "was lost"
            elif silent and self._life is not None:
                verb = f"has not answered for {self._life.patience_s:g} s: it was stopped, or hangs"
            else:
                verb = f"did not come within {timeout_s:g} s"
            names = ", ".join(f"worker {r}" for r in died or silent or missing)
            raise RunError(f"{names} {verb} ({what})")
        return self.get_all([key(r) for r in range(self.size)])

    def silent(self, key: Callable[[int], str], ranks: Iterable[int]) -> list[int]:
        """Those of ``ranks`` that are silent for too long and have not shared their key."""
        if self._life is None:
            return []
        with _named_losses():
            silent = self._life.silent(ranks)
        return [rank for rank in silent if not self.has(key(rank))]

    def wait_for(
        self, key: Callable[[int], str], ranks: Iterable[int], timeout_s: float, give_up: Callable[[], bool]
    ) -> list[int]:
        """Wait until each of ``ranks`` has shared its ``key``; returns the missing ones.

        It ends after ``timeout_s`` or when ``give_up``, which is polled, returns True.
        """
        missing = list(ranks)
        end_s = time.monotonic() + timeout_s
        while not self.has(*map(key, missing)):
            if time.monotonic() > end_s or give_up():
                return [r for r in missing if not self.has(key(r))]
            time.sleep(POLL_S)
        return []

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
