"""A group of processes, one per worker, joined over gloo; it can run one job after another.

Where another backend carries the pattern operations, gloo carries the rest.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from queue import Empty
from typing import Final, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from paceline.sim.errors import RunError

from ..transport.backend import Backend
from ..transport.connections import connect
from ..transport.gloo import Gloo, LazyGroup
from ..transport.nccl import OrderedBackend
from ..transport.threads import ThreadPool
from .life import SignsOfLife
from .open_files import allow_open_files
from .store import Control

_T = TypeVar("_T")

_PR_SET_TIMERSLACK = 29

SWITCH_S: Final = 0.0005
"""How long a thread keeps the interpreter while others want it: a gradient's must not hold up the driver."""


@dataclass
class Group:
    """This process among the others.

    Attributes:
        rank, size: this process's rank, and how many there are.
        store: where they meet.
        gloo: connects each of them to all others.
        life: their signs of life.
        threads: helper threads.
        runs: how many jobs have been run.
        broken: a run has failed; nothing more can be run.
        lazy_groups: by their members, those that have carried out a collective.
        ordered_backends: by name, those that a job has used.
        shown: what rank 0 has printed.
    """

    rank: int
    size: int
    store: Store
    gloo: dist.ProcessGroupGloo
    life: SignsOfLife
    threads: ThreadPool = field(default_factory=ThreadPool)
    runs: int = 0
    broken: bool = False
    lazy_groups: dict[tuple[int, ...], LazyGroup] = field(default_factory=dict)
    ordered_backends: dict[str, OrderedBackend] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)

    def lazy_group(self, members: tuple[int, ...]) -> LazyGroup:
        """The process group of some ranks; they connect when they first need it."""
        if members not in self.lazy_groups:
            self.lazy_groups[members] = LazyGroup(self.store, members, self.rank)
        return self.lazy_groups[members]

    def backend(self, name: str, device: torch.device, timeout_s: float) -> Backend:
        """What carries mixes and collectives; all ranks call this at the same time.

        Args:
            name: torch's name of it, ``gloo`` or ``nccl``.
            device: where the values are.
            timeout_s: how long the ranks may take to connect.

        Raises:
            RunError: the backend refuses, or a rank did not come.
        """
        if name == "gloo":
            return Gloo(self.gloo, self.lazy_group)
        if name not in self.ordered_backends:
            ordered = OrderedBackend(name, device, self.store, self.rank, self.size)
            self.broken = True
            _in_time(name, ordered.connect(), timeout_s)
            self.broken = False
            self.ordered_backends[name] = ordered
        return self.ordered_backends[name]

    def say(self, text: str) -> None:
        """Print a line on standard error, on rank 0 alone and once."""
        if self.rank == 0 and text not in self.shown:
            self.shown.add(text)
            sys.stderr.write(f"{text}\n")

    def next_run(self) -> Control:
        """The control store of one more run."""
        self.runs += 1
        return Control(self.store, self.rank, self.size, f"run {self.runs}", self.life)


def meet(store: Store, rank: int, size: int, timeout_s: float) -> Group:
    """Wait for the other processes and connect to each of them.

    No gloo wait has a time-out of its own: the driver watches over them.

    Raises:
        InputError: this process may not open as many files as there would be connections.
        RunError: a rank did not come, or cannot be reached.
    """
    allow_open_files(size)
    Control(store, rank, size).meet("join", 0, timeout_s)
    gloo = _in_time("gloo", partial(connect, store, "gloo", rank, size), timeout_s)
    return Group(rank, size, store, gloo, SignsOfLife(store, rank, timeout_s, "worker"))


def _in_time(backend: str, connecting: Callable[[], _T], timeout_s: float) -> _T:
    """Connect in another thread: a backend may wait for ever for a rank that it cannot reach."""
    threads = ThreadPool()
    threads.run(None, connecting)
    try:
        done = threads.finished.get(timeout=timeout_s)
    except Empty:
        raise RunError(f"the ranks did not connect over {backend} within {timeout_s:g} s") from None
    threads.close()
    if done.error is not None:
        why = done.error.__cause__ or done.error
        raise RunError(f"{backend} does not connect the ranks: {why}") from done.error
    connected: _T = done.result
    return connected


def join(store: Store, rank: int, size: int, timeout_s: float) -> Group:
    """Wait for the other processes and connect, in a process that is there for nothing else.

    It computes with one thread, and its threads wake up as soon as the kernel can.

    Raises:
        RunError: a rank did not come.
    """
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_S)
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # ns; 50 us otherwise
    return meet(store, rank, size, timeout_s)


def leave(group: Group) -> None:
    """Disconnect from the others and end the helper threads; the group is of no more use."""
    group.life.close()
    group.threads.close()
    for ordered in reversed(group.ordered_backends.values()):  # the first may own torch's default group
        ordered.close()
    # gloo closes its connections with the last reference to the group
