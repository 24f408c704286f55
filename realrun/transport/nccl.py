"""Pattern operations over a backend such as NCCL: one after another, in the same order on all ranks.

NCCL matches what it sends and receives by order alone, each operation holds up those behind it, and groups
that are used at once in different orders wait for each other for ever. So a rank has one lane: whatever it
begins waits for its turn there. All workers begin their pattern operations in the same order, hence the
earliest one that is not complete always has all of its members at its head, and nothing can hang that a
living member would not end. The messages of one exchange are a single batch (ncclGroupStart and -End).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, PrefixStore, Store

from paceline.sim.program import operations as ops

from .backend import Routes, Swap, WaitFunction
from .connections import FOREVER, PeerGone
from .device import SideStream, connected, set_up_nccl


class OrderedBackend:
    """One rank's place in the order of all pattern operations; a ``realrun.transport.backend.Backend``.

    Args:
        backend: torch's name of it.
        device: where the values are.
        store: where all ranks meet.
        rank, size: this rank, and how many there are: all processes of the job.
    """

    survives = False

    def __init__(self, backend: str, device: torch.device, store: Store, rank: int, size: int) -> None:
        if backend == "nccl":
            set_up_nccl()
        self._backend = backend
        self._device = device
        self._store, self._rank = store, rank
        self._everybody = tuple(range(size))
        self._groups: dict[tuple[int, ...], Any] = {}
        self._made_default = False
        self._aside = SideStream(device)
        self._last = threading.Event()
        self._last.set()

    def connect(self) -> WaitFunction:
        """Connect all ranks: some of them can exchange messages only after that."""
        return self._in_turn(self._everybody, lambda group: None)

    def collective(self, members: tuple[int, ...], begin: Callable[[Any], dist.Work]) -> WaitFunction:
        """One of the backend's own collectives among ``members``."""
        return self._in_turn(members, lambda group: begin(group).wait())

    def barrier(self, members: tuple[int, ...]) -> WaitFunction:
        """As NCCL's: a sum of one element."""
        return self._in_turn(members, self._sum_of_nothing)

    def exchange(self, receives: Routes, sends: Routes, number: int) -> WaitFunction:
        """Messages between this rank and others, in one batch."""
        return self._in_turn(self._everybody, lambda group: _exchange(group, receives, sends))

    def rounds(self, run: Callable[[Swap], None], number: int) -> WaitFunction:
        """Several exchanges of one operation."""
        return self._in_turn(self._everybody, lambda group: run(partial(_exchange, group)))

    def _in_turn(self, members: tuple[int, ...], operation: Callable[[Any], object]) -> WaitFunction:
        before, after = self._last, threading.Event()
        self._last = after

        def wait() -> None:
            before.wait()
            try:
                self._aside.run(lambda: operation(self._group(members)))
            except RuntimeError as error:
                raise PeerGone(ops.ANY) from error
            finally:
                after.set()

        return wait

    def _group(self, members: tuple[int, ...]) -> Any:
        """The communicator of some ranks; they connect when they first need it, all of them at once."""
        if members not in self._groups:
            if not dist.is_initialized():  # torch makes groups out of a default one
                dist.init_process_group(
                    "gloo",
                    store=PrefixStore("default", self._store),
                    rank=self._rank,
                    world_size=len(self._everybody),
                    timeout=FOREVER,
                )
                self._made_default = True
            group: Any
            if members == self._everybody:
                group = dist.new_group(backend=self._backend, timeout=FOREVER)
            else:  # torch would name it by how many groups this rank has, which others may have more of
                store = PrefixStore(f"lane {' '.join(map(str, members))}", self._store)
                group = connected(self._backend, store, members.index(self._rank), len(members))
            self._sum_of_nothing(group)
            self._groups[members] = group
        return self._groups[members]

    def close(self) -> None:
        """Disconnect; nothing is under way."""
        for members, group in self._groups.items():
            if members == self._everybody:
                dist.destroy_process_group(group)
            else:
                group.shutdown()
        if self._made_default:
            dist.destroy_process_group()

    def _sum_of_nothing(self, group: Any) -> None:
        group.allreduce([torch.zeros(1, device=self._device)], AllreduceOptions()).wait()


def _exchange(group: Any, receives: Routes, sends: Routes) -> None:
    operations = [
        *(dist.P2POp(dist.irecv, buffer, source, group) for buffer, source in receives),
        *(dist.P2POp(dist.isend, buffer, destination, group) for buffer, destination in sends),
    ]
    for work in dist.batch_isend_irecv(operations) if operations else ():
        work.wait()
