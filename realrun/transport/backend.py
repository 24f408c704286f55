"""The backends ``gloo`` and ``nccl``, which carry mixes and collectives.

Over gloo, tags and process groups separate concurrent operations. Another one carries them one at a time, in
the same order on all ranks: NCCL matches sends and receives by order alone, each operation holds up those
behind it, and groups used concurrently in different orders deadlock. So each rank has one queue. All workers
begin these operations in the same order, so the earliest incomplete one is first in the queues of all its
members: nothing hangs while they live. The messages of one exchange are a single batch (ncclGroupStart and
-End).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, BarrierOptions, PrefixStore, Store

from paceline.sim.program import operations as ops

from . import connections
from .connections import FOREVER, CollectiveWait, Turns, begin, connect, finish, receive, send
from .device import SideStream

WaitFunction = Callable[[], object]
"""Blocks until an operation is complete; for a helper thread. Raises ``connections.PeerGone``."""


class TransferInFlight(NamedTuple):
    """A transfer that has begun.

    Attributes:
        wait: blocks until it is complete.
        result: called once after that, in the driver's thread: this worker's reply; frees staging buffers.
    """

    wait: WaitFunction
    result: Callable[[], Any]


Routes = Sequence[tuple[torch.Tensor, int]]
"""Tensors, each with its source or destination rank."""

BatchedSendReceive = Callable[[Routes, Routes], object]
"""Receive some tensors, send others, and wait for all of them."""


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


class Gloo:
    """Lets operations run concurrently, and begin at once where they can.

    Each raises ``connections.PeerGone`` if it begins at once and a connection is closed already.

    Their process group is that of ``everybody``, or the ``lazy_group`` of some members.
    """

    concurrent = True
    """Whether operations run concurrently, told apart by tags: then it carries messages too, and the
    remaining ranks can continue after the death of a member.
    """

    def __init__(
        self, everybody: dist.ProcessGroupGloo, lazy_group: Callable[[tuple[int, ...]], LazyGroup]
    ) -> None:
        self._everybody = everybody
        self._lazy_group = lazy_group

    def collective(self, members: tuple[int, ...], begin: Callable[[Any], dist.Work]) -> WaitFunction:
        """Begin a torch collective: ``begin`` is called with the process group of ``members``."""
        if len(members) == self._everybody.size():
            return CollectiveWait(connections.begin(lambda: begin(self._everybody)))
        # Other members may not have come yet, so it begins in the helper thread that waits for it.
        begin_in_turn = self._lazy_group(members)(begin)
        return lambda: finish(connections.begin(begin_in_turn), ops.ANY)

    def barrier(self, members: tuple[int, ...]) -> WaitFunction:
        """Begin a barrier among ``members``."""
        return self.collective(members, lambda group: group.barrier(BarrierOptions()))

    def exchange(self, receives: Routes, make_sends: Callable[[], Routes], tag: int) -> WaitFunction:
        """Post the receives, then make and send messages: a gloo sender learns of the receive meanwhile.
        ``tag`` separates operations.
        """
        gloo = self._everybody
        works = [(receive(gloo, buffer, peer, tag), peer) for buffer, peer in receives]
        works += [(send(gloo, buffer, peer, tag), peer) for buffer, peer in make_sends()]

        def wait() -> None:
            for work, peer in works:
                finish(work, peer)

        return wait

    def rounds(self, run: Callable[[BatchedSendReceive], None], tag: int) -> WaitFunction:
        """Begin several exchanges, one after another; ``run`` is called in the helper thread."""
        return partial(run, lambda receives, sends: self.exchange(receives, lambda: sends, tag)())


class OrderedBackend:
    """One rank's queue of all mixes and collectives over torch's ``backend``."""

    concurrent = False

    def __init__(self, backend: str, device: torch.device, store: Store, rank: int, size: int) -> None:
        if backend == "nccl":
            # Leave hangs to the driver's watchdog, as torch would end the process; and use gloo's interface.
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
            if "GLOO_SOCKET_IFNAME" in os.environ:
                os.environ.setdefault("NCCL_SOCKET_IFNAME", os.environ["GLOO_SOCKET_IFNAME"])
        self._backend = backend
        self._device = device
        self._store, self._rank = store, rank
        self._everybody = tuple(range(size))
        self._groups: dict[tuple[int, ...], Any] = {}
        self._owns_default_group = False
        self._side_stream = SideStream(device)
        self._turns = Turns()

    def connect(self) -> WaitFunction:
        """Connect all ranks; subsets of them can exchange messages only after that."""
        return self._in_turn(self._everybody, lambda group: None)

    def collective(self, members: tuple[int, ...], begin: Callable[[Any], dist.Work]) -> WaitFunction:
        """As ``Gloo.collective``."""
        return self._in_turn(members, lambda group: begin(group).wait())

    def barrier(self, members: tuple[int, ...]) -> WaitFunction:
        """As ``Gloo.barrier``."""
        return self._in_turn(members, self._sum_of_nothing)  # as NCCL's own

    def exchange(self, receives: Routes, make_sends: Callable[[], Routes], tag: int) -> WaitFunction:
        """As ``Gloo.exchange``; the order separates operations."""
        sends = make_sends()
        return self._in_turn(self._everybody, lambda group: _send_receive(group, receives, sends))

    def rounds(self, run: Callable[[BatchedSendReceive], None], tag: int) -> WaitFunction:
        """As ``Gloo.rounds``."""
        return self._in_turn(self._everybody, lambda group: run(partial(_send_receive, group)))

    def _in_turn(self, members: tuple[int, ...], operation: Callable[[Any], object]) -> WaitFunction:
        run = self._turns.take(lambda: self._side_stream.run(lambda: operation(self._group(members))))
        return partial(begin, run)

    def _group(self, members: tuple[int, ...]) -> Any:
        """Communicator of some ranks; connects when first needed, on all of them at once."""
        if members not in self._groups:
            if not dist.is_initialized():  # torch derives groups from a default one
                dist.init_process_group(
                    "gloo",
                    store=PrefixStore("default", self._store),
                    rank=self._rank,
                    world_size=len(self._everybody),
                    timeout=FOREVER,
                )
                self._owns_default_group = True
            group: Any
            if members == self._everybody:
                group = dist.new_group(backend=self._backend, timeout=FOREVER)
            else:  # torch would name it by this rank's number of groups, which differs between ranks
                store = PrefixStore(f"ordered group {' '.join(map(str, members))}", self._store)
                group = _connect(self._backend, store, members.index(self._rank), len(members))
            self._sum_of_nothing(group)
            self._groups[members] = group
        return self._groups[members]

    def close(self) -> None:
        """Disconnect; call when nothing is in flight."""
        for members, group in self._groups.items():
            if members == self._everybody:
                dist.destroy_process_group(group)
            else:
                group.shutdown()
        if self._owns_default_group:
            dist.destroy_process_group()

    def _sum_of_nothing(self, group: Any) -> None:
        group.allreduce([torch.zeros(1, device=self._device)], AllreduceOptions()).wait()


Backend = Gloo | OrderedBackend
"""Carries out operations that all workers begin in the same order."""


def _connect(backend: str, store: Store, rank: int, size: int) -> Any:
    """Connect a group outside torch's own registers; ``store`` is for this group alone."""
    if backend == "nccl":
        create: Any = dist.ProcessGroupNCCL  # torch's stubs know one of its two forms
    else:
        create = dist.Backend._plugins[backend.upper()].creator_fn
    return create(store, rank, size, FOREVER)


def _send_receive(group: Any, receives: Routes, sends: Routes) -> None:
    operations = [
        *(dist.P2POp(dist.irecv, buffer, source, group) for buffer, source in receives),
        *(dist.P2POp(dist.isend, buffer, destination, group) for buffer, destination in sends),
    ]
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
