"""The ranks that are one worker together: the first of them runs the scheme, the others follow it.

What all are to know goes through the loop's own group of these ranks and in the loop's own thread, so that it
never meets what DDP or FSDP sends there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch.distributed as dist
from torch import Tensor

from paceline.sim.errors import InputError, RunError

from ..group.store import Control

WANTED: Final = 1.0
"""Another gradient is wanted."""
ENDED: Final = 0.0
"""The worker has done its steps."""
FAILED: Final = -1.0
"""The run has failed."""


@dataclass(frozen=True)
class ReplicaGroup:
    """This rank among those of its worker.

    Attributes:
        rank: this one, among all ranks.
        members: all ranks of the worker; the first of them leads.
        worker, workers: which worker they are, and how many there are.
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
        """Every member gets the leader's ``word``, and its ``x`` [d] in place of its own.

        Raises:
            RunError: a member is gone.
        """
        if self.group is None:
            return word
        told = x.new_full((1,), word)
        try:
            for each in (told, x):
                dist.broadcast(each, self.members[0], group=self.group)
        except RuntimeError as error:
            raise RunError(f"worker {self.worker}: one of its ranks was lost") from error
        return told.item()

    def mean(self, value: Tensor) -> Tensor:
        """Mean of a value over the members.

        Raises:
            RunError: a member is gone.
        """
        if self.group is None:
            return value
        total = value.clone()
        try:
            dist.all_reduce(total, group=self.group)
        except RuntimeError as error:
            raise RunError(f"worker {self.worker}: one of its ranks was lost") from error
        return total / len(self.members)


def find_replica_group(control: Control, inside: dist.ProcessGroup | None, timeout_s: float) -> ReplicaGroup:
    """Learn which ranks are a worker together. Workers are numbered by the lowest of their ranks.

    Args:
        control: of all ranks.
        inside: the group of this one's worker; None: it is a worker alone.
        timeout_s: how long to wait for the others.

    Raises:
        InputError: some rank would belong to two workers.
        RunError: a rank did not come.
    """
    members = [control.rank]
    if inside is not None:
        if not isinstance(inside, dist.ProcessGroup):
            raise InputError(f"attach: rank {control.rank} is not in the group given as 'inside'")
        members = dist.get_process_group_ranks(inside)
    teams = sorted({tuple(told) for told in control.meet("inside", members, timeout_s)}, key=min)
    if sum(map(len, teams)) != control.size:
        raise InputError(f"attach: a rank can be in one worker only, but 'inside' says {teams}")
    return ReplicaGroup(control.rank, tuple(members), teams.index(tuple(members)), len(teams), inside)
