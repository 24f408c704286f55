"""What a training loop brings, as a scheme sees it: a model, an optimiser, and the ranks of one worker.

The model is one vector, also under DDP or FSDP. In a replica group several ranks form one worker, and the
first of them runs the scheme. Shared values go through the loop's own group of these ranks, in the loop's own
thread, and so never meet transfers of DDP or FSDP.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from typing_extensions import override

from paceline.sim.config.limits import MAX_STEPS
from paceline.sim.errors import InputError, RunError
from paceline.sim.program.worker import Optimizer, State
from paceline.sim.training.gradient_noise import norm2
from paceline.sim.training.optimizer import Adam, AdamSettings, AdamWSettings, Sgd

from ..group.store import Control


class ModelVector:
    """The values of a module as one vector [d], running buffers last.

    Reading gathers parameters sharded by FSDP: all ranks of a worker must call the same methods in the same
    order. Raises ``InputError`` where nothing is trained, or values differ in type or place.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        self._buffers = [b for b in model.buffers() if b.is_floating_point()]
        self._sharding = [m for m in model.modules() if isinstance(m, FSDPModule)]
        if not self._parameters:
            raise InputError("attach: the model has no parameter that is trained")
        kinds = {(str(t.dtype), str(t.device)) for t in (*self._parameters, *self._buffers)}
        if len(kinds) > 1:
            raise InputError(f"attach: parameters and buffers must be alike, not {sorted(kinds)}")
        if self._parameters[0].dtype not in (torch.float32, torch.float64):
            raise InputError(f"attach: schemes average float32 or float64, not {sorted(kinds)}")
        self.num_buffers = sum(b.numel() for b in self._buffers)

    def without_buffers(self, value: Tensor) -> Tensor:
        """The parameters' part of a vector [d]."""
        return value[: len(value) - self.num_buffers]

    def value(self) -> Tensor:
        """Parameters and buffers as one vector [d]."""
        return torch.cat([_whole(t.detach()).reshape(-1) for t in (*self._parameters, *self._buffers)])

    def load(self, x: Tensor) -> None:
        """Set the model to ``x`` [d]."""
        for module in self._sharding:
            module.reshard()  # else a forward pass would use parameters gathered earlier
        offset = 0
        with torch.no_grad():
            for tensor in (*self._parameters, *self._buffers):
                part = x[offset : offset + tensor.numel()].view(tensor.shape)
                offset += tensor.numel()
                if isinstance(tensor, DTensor):
                    part = distribute_tensor(part, tensor.device_mesh, tensor.placements, src_data_rank=None)
                tensor.copy_(part)

    def gradient(self, point: Tensor) -> Tensor:
        """The gradient [d] left by ``backward`` at ``point`` [d]; for the buffers, old value minus new."""
        parts = [
            point.new_zeros(p.numel()) if p.grad is None else _whole(p.grad).reshape(-1)
            for p in self._parameters
        ]
        if self._buffers:
            new = torch.cat([b.detach().reshape(-1) for b in self._buffers])
            parts.append(point[-self.num_buffers :] - new)
        return torch.cat(parts)


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


def check_wrappers(model: torch.nn.Module, ranks: Collection[int]) -> None:
    """Raise ``InputError`` unless DDP and FSDP average over exactly these ranks, with readable parameters."""
    for module in model.modules():
        if isinstance(module, FullyShardedDataParallel):
            raise InputError(
                "attach: FullyShardedDataParallel keeps parameters in flat pieces that nobody else can put "
                "together: use torch.distributed.fsdp.fully_shard"
            )
        if isinstance(module, DistributedDataParallel):
            _check_ranks("DDP", dist.get_process_group_ranks(module.process_group), ranks)
    for parameter in model.parameters():
        if isinstance(parameter, DTensor):
            _check_ranks("fully_shard", parameter.device_mesh.mesh.flatten().tolist(), ranks)


def _check_ranks(what: str, joined: Collection[int], ranks: Collection[int]) -> None:
    if set(joined) != set(ranks):
        there, here = (", ".join(map(str, sorted(each))) for each in (joined, ranks))
        raise InputError(
            f"attach: {what} joins ranks {there}, but this worker is {here}: give the group of its ranks to "
            "both, here as 'inside'"
        )


class TorchRule(Optimizer):
    """An update rule with the current learning rate of a torch optimiser.

    ``norms2``: |gradient|^2 by update, of those that ``watched[0]`` divides, of ``watched[1]`` elements.
    The scheme keeps the moments, since it may average them; those of the torch optimiser stay empty.
    Raises ``InputError`` for others than SGD, Adam and AdamW, or unsupported options.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.watched = MAX_STEPS, 0
        self.norms2: dict[int, float] = {}
        if len(optimizer.param_groups) != 1:
            raise InputError(
                f"attach: the optimizer has {len(optimizer.param_groups)} parameter groups; give it one"
            )
        self._rule()

    def _rule(self) -> Optimizer:
        (group,) = self._optimizer.param_groups
        kind = type(self._optimizer)
        if group.get("maximize") or group.get("amsgrad") or group.get("dampening"):
            raise InputError("attach: maximize, amsgrad and dampening are not supported")
        if kind is torch.optim.SGD:
            return Sgd(float(group["lr"]), group["momentum"], group["nesterov"], group["weight_decay"])
        if kind in (torch.optim.Adam, torch.optim.AdamW):
            settings = (AdamWSettings if kind is torch.optim.AdamW else AdamSettings)(
                lr=float(group["lr"]), beta1=group["betas"][0], beta2=group["betas"][1],
                eps=group["eps"], weight_decay=group["weight_decay"],
            )  # fmt: skip
            return Adam(settings)
        raise InputError(f"attach: torch.optim.{kind.__name__} is not supported; use SGD, Adam or AdamW")

    @override
    def init(self, x: Tensor) -> State:
        return self._rule().init(x)

    @override
    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        every, elements = self.watched
        if state.updates and state.updates % every == 0 and gradient.numel() == elements:
            self.norms2[state.updates] = float(norm2(gradient))
        return self._rule().update(x, gradient, state)

    @override
    def lr_at(self, k: int) -> float:
        return self._rule().lr_at(k)  # the same for every k


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
