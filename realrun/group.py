"""A group of processes, one per worker, joined over gloo; it can run one job after another.

Where another backend carries the pattern operations, gloo carries the rest.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from queue import Empty

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from realrun.lane import Lane
from realrun.store import Control
from realrun.subgroups import Subgroup
from realrun.threads import Threads
from sim.errors import RunError

_PR_SET_TIMERSLACK = 29
_FOREVER = timedelta(days=1)


@dataclass
class Group:
    """This process among the others.

    Attributes:
        rank, size: this process's rank, and how many there are.
        store: where they meet.
        threads: helper threads.
        runs: how many jobs have been run.
        broken: a run has failed; nothing more can be run.
        subgroups: by their members, those that have carried out a collective.
        lanes: by backend, those that a job has asked for.
        said: what has been told.
    """

    rank: int
    size: int
    store: Store
    threads: Threads = field(default_factory=Threads)
    runs: int = 0
    broken: bool = False
    subgroups: dict[tuple[int, ...], Subgroup] = field(default_factory=dict)
    lanes: dict[str, Lane] = field(default_factory=dict)
    said: set[str] = field(default_factory=set)

    def subgroup(self, members: tuple[int, ...]) -> Subgroup:
        """The group of some ranks; they connect when they first need it."""
        if members not in self.subgroups:
            self.subgroups[members] = Subgroup(self.store, members, self.rank)
        return self.subgroups[members]

    def lane(self, backend: str, device: torch.device, timeout_s: float) -> Lane:
        """This rank's lane over ``backend``; all ranks ask for it at the same time.

        Raises:
            RunError: the backend refuses, or a rank did not come.
        """
        if backend in self.lanes:
            return self.lanes[backend]
        lane = Lane(backend, device, self.size)
        threads = Threads()
        threads.run(lane, lane.connect())
        self.broken = True
        try:
            error = threads.finished.get(timeout=timeout_s).error
        except Empty:
            raise RunError(f"the ranks did not connect over {backend} within {timeout_s:g} s") from None
        threads.close()
        if error is not None:
            raise RunError(f"{backend} does not connect the ranks: {error.__cause__ or error}") from error
        self.broken = False
        return self.lanes.setdefault(backend, lane)

    def say(self, text: str) -> None:
        """Tell people something, on rank 0 alone and once."""
        if self.rank == 0 and text not in self.said:
            self.said.add(text)
            sys.stderr.write(f"{text}\n")

    def next_run(self) -> Control:
        """The control store of one more run."""
        self.runs += 1
        return Control(self.store, self.rank, self.size, f"run {self.runs}")


def join(store: Store, rank: int, size: int, timeout_s: float) -> Group:
    """Meet the other processes and connect to each of them.

    Afterwards no gloo wait has a time-out of its own: one would close every connection. The
    driver watches over them.

    Raises:
        RunError: a rank did not come.
    """
    torch.set_num_threads(1)
    sys.setswitchinterval(0.0005)  # a gradient's thread must not hold up the loop
    ctypes.CDLL(None).prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)  # ns; 50 us otherwise
    Control(store, rank, size).meet("join", 0, timeout_s)
    dist.init_process_group(
        "gloo", store=PrefixStore("gloo", store), rank=rank, world_size=size, timeout=_FOREVER
    )
    return Group(rank, size, store)


def leave(group: Group) -> None:
    """Disconnect."""
    group.threads.close()
    dist.destroy_process_group()
