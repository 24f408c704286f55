"""Pattern operations over gloo, which keeps concurrent ones apart by their tags."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import BarrierOptions, Store

from paceline.sim.program import operations as ops

from . import connections
from .backend import Collective, Routes, Swap, WaitFunction
from .connections import connect


class LazyGroup:
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


_STRIP_TAG = 1 << 25
_SHORTEST_S = 1e-3
"""gloo counts in these, and takes 0 for no limit."""


class Gloo:
    """A ``carrier.Carrier``: operations run beside each other, and begin at once where they can.

    Args:
        everybody: the group of all ranks.
        subgroup: the group of some members.
    """

    survives = True

    def __init__(
        self, everybody: dist.ProcessGroupGloo, subgroup: Callable[[tuple[int, ...]], LazyGroup]
    ) -> None:
        self._everybody = everybody
        self._subgroup = subgroup

    def collective(self, members: tuple[int, ...], begin: Callable[[Any], dist.Work]) -> WaitFunction:
        """Among all ranks it begins now, else when it is waited for.

        Raises:
            PeerGone: a connection is closed already.
        """
        if len(members) == self._everybody.size():
            try:
                work = begin(self._everybody)
            except RuntimeError as error:
                raise connections.PeerGone(ops.ANY) from error
            return _Collective(work)
        subgroup = self._subgroup(members)
        ticket = subgroup.ticket()

        def wait() -> None:
            try:
                work = subgroup.issue(ticket, begin)
            except RuntimeError as error:
                raise connections.PeerGone(ops.ANY) from error
            connections.finish(work, ops.ANY)

        return wait

    def barrier(self, members: tuple[int, ...]) -> WaitFunction:
        """The library's own."""
        return self.collective(members, lambda group: group.barrier(BarrierOptions()))

    def exchange(self, receives: Routes, sends: Routes, number: int) -> WaitFunction:
        """All messages begin now.

        Raises:
            PeerGone: a connection is closed already.
        """
        tag = _STRIP_TAG | number % _STRIP_TAG
        works = [(connections.receive(self._everybody, buffer, peer, tag), peer) for buffer, peer in receives]
        works += [(connections.send(self._everybody, buffer, peer, tag), peer) for buffer, peer in sends]

        def wait() -> None:
            for work, peer in works:
                connections.finish(work, peer)

        return wait

    def rounds(self, run: Callable[[Swap], None], number: int) -> WaitFunction:
        """All of them in the helper thread."""

        def swap(receives: Routes, sends: Routes) -> None:
            self.exchange(receives, sends, number)()

        return partial(run, swap)


@dataclass(frozen=True)
class _Collective(Collective):
    """These say whether they are complete, unlike messages."""

    work: dist.Work

    def __call__(self) -> None:
        connections.finish(self.work, ops.ANY)

    def within(self, limit_s: float) -> bool:
        if limit_s < _SHORTEST_S:
            return self.work.is_completed()
        try:
            return self.work.wait(timedelta(seconds=limit_s))
        except RuntimeError:  # the time is over, or it has failed
            return self.work.is_completed()
