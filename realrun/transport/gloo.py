"""Mixes and collectives over gloo; tags and process groups separate concurrent ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import BarrierOptions, Store
from typing_extensions import override

from paceline.sim.program import operations as ops

from . import connections
from .backend import Backend, BatchedSendReceive, Routes, WaitFunction
from .connections import CollectiveWait, connect, finish, receive, send
from .threads import Turns

LazyGroup = Callable[[Callable[[dist.ProcessGroupGloo], dist.Work]], Callable[[], dist.Work]]
"""Takes the group's next turn for an operation; the returned call begins it in a helper thread, and raises
RuntimeError if a member is missing or a connection is closed.
"""


def lazy_group(store: Store, rank: int, members: tuple[int, ...]) -> LazyGroup:
    """A process group of ``members`` (ascending) that connects when its first collective begins.

    Connecting needs all members, so the helper thread of the first operation does it. Operations begin in the
    order of their turns, which must be the same on all members.
    """
    name = f"group {' '.join(map(str, members))}"
    connected = cache(partial(connect, store, name, members.index(rank), len(members)))
    turns = Turns()
    return lambda begin: turns.take(lambda: begin(connected()))


class Gloo(Backend):
    """Lets operations run concurrently, and begin at once where they can.

    Their process group is that of ``everybody``, or the ``lazy_group`` of some members.
    """

    concurrent = True

    def __init__(
        self, everybody: dist.ProcessGroupGloo, lazy_group: Callable[[tuple[int, ...]], LazyGroup]
    ) -> None:
        self._everybody = everybody
        self._lazy_group = lazy_group

    @override
    def collective(self, members: tuple[int, ...], begin: Callable[[Any], dist.Work]) -> WaitFunction:
        if len(members) == self._everybody.size():
            return CollectiveWait(connections.begin(lambda: begin(self._everybody)))
        # Other members may not have come yet, so it begins in the helper thread that waits for it.
        begin_in_turn = self._lazy_group(members)(begin)
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
