"""Mixes and collectives over gloo; tags and process groups separate concurrent ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import BarrierOptions, Store
from typing_extensions import override

from paceline.sim.program import operations as ops

from . import connections
from .backend import Backend, BatchedSendReceive, Routes, WaitFunction
from .buffers import StagingBuffers
from .connections import CollectiveWait, connect, finish, receive, send
from .device import CPU
from .threads import Turns


class LazyGroup:
    """A process group that connects when its first collective begins.

    Connecting needs all members (ascending), so the helper thread of the first operation does it. Operations
    begin in the order of their turns, which must be the same on all members.
    """

    def __init__(self, store: Store, members: tuple[int, ...], rank: int) -> None:
        self._connect = cache(
            partial(connect, store, f"group {' '.join(map(str, members))}", members.index(rank), len(members))
        )
        self._turns = Turns()

    def take_turn(self, begin: Callable[[dist.ProcessGroupGloo], dist.Work]) -> Callable[[], dist.Work]:
        """Take the group's next turn; the returned call begins the operation in a helper thread, and raises
        RuntimeError if a member is missing or a connection is closed.
        """
        return self._turns.take(lambda: begin(self._connect()))


class Gloo(Backend):
    """Lets operations run concurrently, and begin at once where they can.

    Their process group is that of ``everybody``, or the ``lazy_group`` of some members.
    """

    survives = True
    carries_messages = True

    def __init__(
        self, everybody: dist.ProcessGroupGloo, lazy_group: Callable[[tuple[int, ...]], LazyGroup]
    ) -> None:
        self._everybody = everybody
        self._lazy_group = lazy_group

    @override
    def staging_buffers(self, element_bytes: float, device: torch.device) -> StagingBuffers:
        return StagingBuffers(element_bytes, staging=device != CPU)  # gloo reaches only host memory

    @override
    def collective(self, members: tuple[int, ...], begin: Callable[[Any], dist.Work]) -> WaitFunction:
        if len(members) == self._everybody.size():
            return CollectiveWait(connections.begin(lambda: begin(self._everybody)))
        # Other members may not have come yet, so it begins in the helper thread that waits for it.
        begin_in_turn = self._lazy_group(members).take_turn(begin)
        return lambda: finish(connections.begin(begin_in_turn), ops.ANY)

    @override
    def barrier(self, members: tuple[int, ...]) -> WaitFunction:
        return self.collective(members, lambda group: group.barrier(BarrierOptions()))

    @override
    def exchange(self, receives: Routes, make_sends: Callable[[], Routes], tag: int) -> WaitFunction:
        gloo = self._everybody
        works = [(receive(gloo, buffer, peer, tag), peer) for buffer, peer in receives]
        works += [(send(gloo, buffer, peer, tag), peer) for buffer, peer in make_sends()]

        def wait() -> None:
            for work, peer in works:
                finish(work, peer)

        return wait

    @override
    def rounds(self, run: Callable[[BatchedSendReceive], None], tag: int) -> WaitFunction:
        return partial(run, lambda receives, sends: self.exchange(receives, lambda: sends, tag)())
