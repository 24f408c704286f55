"""A group of processes, one per worker, joined over gloo, for one job after another.

Another backend may carry the pattern operations; gloo carries the rest.
"""

from __future__ import annotations

import ctypes
import resource
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from queue import Empty
from typing import Any, Final, TypeVar

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import Store

from paceline.sim.errors import InputError, RunError

from ..transport.backend import Backend, Gloo, LazyGroup, OrderedBackend, lazy_group
from ..transport.connections import ThreadPool, connect
from .store import Control, SignsOfLife

_T = TypeVar("_T")

_PR_SET_TIMERSLACK = 29

SWITCH_S: Final = 0.0005
"""The interpreter's switch interval: a gradient's thread must not hold up the driver."""

_FILES: Final = 64
"""Open files of any process of a run: its streams, gloo's devices, files being read."""
_FILES_OF_A_WORKER: Final = 4
"""Open files for each worker: pipes to its process, or connections to it in a few groups."""


@dataclass
class Group:
    """This process within its group.

    Attributes:
        runs: number of jobs run so far.
        broken: a run has failed; nothing more can be run.
        lazy_group: the process group of some ranks; connects when first needed.
        ordered_backends: by name, the backends used by jobs.
        shown: lines printed by rank 0.
        standing: what this process resumes from in its next group, where a run is not over with this one.
    """

    rank: int
    size: int
    store: Store
    gloo: dist.ProcessGroupGloo
    life: SignsOfLife
    lazy_group: Callable[[tuple[int, ...]], LazyGroup]
    threads: ThreadPool = field(default_factory=ThreadPool)
    runs: int = 0
    broken: bool = False
    ordered_backends: dict[str, OrderedBackend] = field(default_factory=dict)
    shown: set[str] = field(default_factory=set)
    standing: Any = None

    def backend(self, name: str, device: torch.device, timeout_s: float) -> Backend:
        """Connect, once, torch's backend ``name`` for mixes and collectives; a collective call.

        Raises ``RunError`` if the backend refuses, or a rank does not come within ``timeout_s``.
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
        """Print a line on standard error, on rank 0 only and once."""
        if self.rank == 0 and text not in self.shown:
            self.shown.add(text)
            sys.stderr.write(f"{text}\n")

    def next_run(self) -> Control:
        """The control store of one more run."""
        self.runs += 1
        return Control(self.store, self.rank, self.size, f"run {self.runs}", self.life)


def allow_open_files(workers: int) -> None:
    """Raise the limit of open files, also for children; ``InputError``: the hard limit is lower."""
    needed = _FILES + _FILES_OF_A_WORKER * workers
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= needed:
        return
    if most != resource.RLIM_INFINITY and most < needed:
        raise InputError(
            f"a run of {workers} workers needs up to {needed} open files in a process, and {most} are "
            f"allowed; raise that (ulimit -n {needed}), or take fewer workers"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))


def meet(store: Store, rank: int, size: int, timeout_s: float) -> Group:
    """Connect to all other ranks; gloo waits end by the driver's watchdog only. ``InputError``: the limit of
    open files is too low; ``RunError``: a rank is missing or unreachable.
    """
    allow_open_files(size)
    Control(store, rank, size).meet("join", 0, timeout_s)
    gloo = _in_time("gloo", partial(connect, store, "gloo", rank, size), timeout_s)
    life = SignsOfLife(store, rank, timeout_s, "worker")
    return Group(rank, size, store, gloo, life, cache(partial(lazy_group, store, rank)))


def _in_time(backend: str, connecting: Callable[[], _T], timeout_s: float) -> _T:
    """Connect in another thread: a backend may wait for ever for an unreachable rank."""
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
    """``meet`` in a process dedicated to this: one compute thread, and prompt wake-ups by the kernel."""
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
