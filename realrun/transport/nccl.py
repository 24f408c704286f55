"""Mixes and collectives over a backend such as NCCL: one at a time, in the same order on all ranks.

NCCL matches sends and receives by order alone, each operation holds up those behind it, and groups used
concurrently in different orders deadlock. So each rank has one queue. All workers begin these operations in
the same order, so the earliest incomplete one is first in the queues of all its members: nothing hangs while
they live. The messages of one exchange are a single batch (ncclGroupStart and -End).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, PrefixStore, Store
from typing_extensions import override

from .backend import Backend, BatchedSendReceive, Routes, WaitFunction
from .connections import FOREVER, begin
from .device import SideStream
from .threads import Turns


class OrderedBackend(Backend):
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

    @override
    def collective(self, members: tuple[int, ...], begin: Callable[[Any], dist.Work]) -> WaitFunction:
        return self._in_turn(members, lambda group: begin(group).wait())

    @override
    def barrier(self, members: tuple[int, ...]) -> WaitFunction:
        return self._in_turn(members, self._sum_of_nothing)  # as NCCL's own

    @override
    def exchange(self, receives: Routes, make_sends: Callable[[], Routes], tag: int) -> WaitFunction:
        sends = make_sends()
        return self._in_turn(self._everybody, lambda group: _send_receive(group, receives, sends))

    @override
    def rounds(self, run: Callable[[BatchedSendReceive], None], tag: int) -> WaitFunction:
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
