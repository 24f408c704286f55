"""gloo's collectives among some of the ranks: a process group of their own, made at its first use."""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch.distributed as dist
from torch._C._distributed_c10d import Store

from .connections import connect


class Subgroup:
    """Some ranks that carry out collectives among themselves.

    Connecting takes the presence of all members, so that it is left to the helper thread of the first
    operation. Operations are issued in the order of their tickets: that has to be the same on all members.

    Args:
        store: where all ranks meet.
        members: ascending, this rank among them.
        rank: this rank, among all.
    """

    def __init__(self, store: Store, members: tuple[int, ...], rank: int) -> None:
        self._store, self._name = store, f"group {' '.join(map(str, members))}"
        self._position, self._size = members.index(rank), len(members)
        self._connected: dist.ProcessGroupGloo | None = None
        self._last = threading.Event()
        self._last.set()

    def ticket(self) -> tuple[threading.Event, threading.Event]:
        """A place in the order: what to wait for, and what to set when the operation is under way."""
        before, self._last = self._last, threading.Event()
        return before, self._last

    def issue(
        self,
        ticket: tuple[threading.Event, threading.Event],
        begin: Callable[[dist.ProcessGroupGloo], dist.Work],
    ) -> dist.Work:
        """In a helper thread: let an operation begin when its turn has come.

        Raises:
            RuntimeError: a member did not come, or a connection is closed.
        """
        before, after = ticket
        before.wait()
        try:
            if self._connected is None:
                self._connected = connect(self._store, self._name, self._position, self._size)
            return begin(self._connected)
        finally:
            after.set()
