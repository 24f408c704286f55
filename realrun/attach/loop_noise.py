"""Gradient noise in a user's own loop: of DDP's ranks before their average, or of a step's half batches."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.sim.errors import InputError, RunError
from paceline.sim.records.gradients.noise import NoisePoint
from paceline.sim.training.gradient_noise import moments, norm2

from .replica_group import ReplicaGroup


class LoopPoint(NamedTuple):
    """A worker's S2_i and |g_i|^2 on its batch in one step, with the loss and the learning rate."""

    step: int
    noise: float
    norm2: float
    loss: float | None
    lr: float


class LoopNoise:
    """Measures a worker's noise in every step that ``every`` divides, but for the first.

    ``batch_size``: examples of the worker's batch, of equal shares where it has several ranks joined by DDP.
    """

    def __init__(self, model: nn.Module, replicas: ReplicaGroup, every: int, batch_size: int) -> None:
        self._replicas, self._every, self._batch_size = replicas, every, batch_size
        joined = [each for each in model.modules() if isinstance(each, DistributedDataParallel)]
        self._shares = len(replicas.members) if joined else 1
        self._done = 0
        self._local2 = torch.zeros(())
        self.half: Tensor | None = None
        self.points: list[LoopPoint] = []
        for each in joined if self._shares > 1 else ():
            try:  # torch refuses annotations that are text
                each.register_comm_hook(
                    each.process_group, lambda group, bucket: self._average(group, bucket)
                )
            except RuntimeError:
                raise InputError(
                    "attach: gradient_noise: this DDP has a communication hook already"
                ) from None

    @property
    def due(self) -> bool:
        """Whether the present step is measured."""
        return self._done > 0 and self._done % self._every == 0

    def _average(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if self.due:
            self._local2 = self._local2.to(bucket.buffer().device) + norm2(bucket.buffer())
        return allreduce_hook(group, bucket)

    def note(self, gradient: Tensor, loss: Tensor | None, lr: float) -> None:
        """Note a step's gradient [d], without buffers; ``RunError`` where its half is missing."""
        if self.due:
            shares, own = self._shares, float(norm2(gradient))
            if shares > 1:
                total = shares * float(self._replicas.mean(self._local2))
                noise = self._batch_size / shares * (total - shares * own) / (shares - 1)
            elif self.half is None:
                raise RunError("attach: gradient_noise: call worker.half() between a batch's two halves")
            else:
                noise = self._batch_size * float(norm2(2 * self.half - gradient))
            known = None if loss is None else float(loss)
            self.points.append(LoopPoint(self._done, noise, own, known, lr))
            self._local2, self.half = torch.zeros(()), None
        self._done += 1


def join_points(
    of_workers: Sequence[Sequence[Any]], means2: Mapping[int, float], examples: int
) -> tuple[NoisePoint, ...]:
    """Points of all workers' ``LoopPoint``s; ``means2``: |g|^2 by step, where all gradients are averaged.

    Nothing is known of shards: they count as infinite, so H2 is that of their sources.
    """
    joined = []
    for each in zip(*(map(LoopPoint._make, points) for points in of_workers), strict=False):
        losses = [point.loss for point in each if point.loss is not None]
        own = np.array([(point.noise, point.norm2) for point in each])
        mean2 = means2.get(each[0].step)
        found = moments(own[:, 0], own[:, 1], mean2 or 0.0, np.full(len(each), examples / len(each)), np.inf)
        joined.append(
            NoisePoint(
                step=each[0].step, examples=examples, lr=each[0].lr,
                loss=math.fsum(losses) / len(losses) if losses else None,
                noise=found.noise, heterogeneity=mean2 and found.heterogeneity,
                norm2=mean2 and found.norm2,
            )
        )  # fmt: skip
    return tuple(joined)
