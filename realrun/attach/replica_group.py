"""Replica groups: several ranks that form one worker. The first of them runs the scheme.

Shared values go through the loop's own group of these ranks, in the loop's own thread, and so never meet
transfers of DDP or FSDP.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from paceline.sim.errors import InputError, RunError

from ..group.store import Control

WANTED, ENDED, FAILED = 1.0, 0.0, -1.0
"""Another gradient is wanted; the worker has done its steps; the run has failed."""


@dataclass(frozen=True)
class ReplicaGroup:
    """The ranks of one worker, as seen by the one that is ``rank`` among all.

    Attributes:
        members: all ranks of the worker; the first of them leads.
        worker, workers: number of this worker, and number of workers.
        group: torch's group of the members; None: this rank is a worker alone.
    """

    rank: int
    members: tuple[int, ...]
    worker: int
    workers: int
    group: dist.ProcessGroup | None

    @property
    def leads(self) -> bool:
        """Whether this rank runs the scheme."""
        return self.rank == self.members[0]

    def share(self, word: float, x: Tensor) -> float:
        """Broadcast the leader's ``word`` (``WANTED``, ``ENDED`` or ``FAILED``) and, in place, its ``x`` [d].

        Raises ``RunError`` if a member is gone.
        """
        if self.group is None:
            return word
        shared = x.new_full((1,), word)
        with self._lost_ranks():
            for each in (shared, x):
                dist.broadcast(each, self.members[0], group=self.group)
        return shared.item()

    def mean(self, value: Tensor) -> Tensor:
        """Average a value over the members; raises ``RunError`` if one is gone."""
        if self.group is None:
            return value
        total = value.clone()
        with self._lost_ranks():
            dist.all_reduce(total, group=self.group)
        return total / len(self.members)

    @contextmanager
    def _lost_ranks(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RunError(f"worker {self.worker}: one of its ranks was lost") from error


def find_replica_group(control: Control, inside: dist.ProcessGroup | None, timeout_s: float) -> ReplicaGroup:
    """Find the ranks of this worker (``inside``, None: one rank); workers are numbered by their lowest ranks.

    Raises ``InputError`` if a rank is in two workers, ``RunError`` if one did not come.
    """
    members = [control.rank]
    if inside is not None:
        if not isinstance(inside, dist.ProcessGroup):
            raise InputError(f"attach: rank {control.rank} is not in the group given as 'inside'")
        members = dist.get_process_group_ranks(inside)
    groups = sorted({tuple(ranks) for ranks in control.meet("inside", members, timeout_s)}, key=min)
    if sum(map(len, groups)) != control.size:
        raise InputError(f"attach: a rank can be in one worker only, but 'inside' says {groups}")
    return ReplicaGroup(control.rank, tuple(members), groups.index(tuple(members)), len(groups), inside)
