"""Gradient noise in a user's own loop: of DDP's ranks before their average, or of a batch's two halves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.sim.errors import InputError, RunError
from paceline.sim.records.carry.noise import NoisePoint
from paceline.sim.records.run import Run
from paceline.sim.training.gradient_noise import moments, norm2

from ..group.store import Control
from .replica_group import ReplicaGroup
from .torch_rule import TorchRule


class LoopNoise:
    """A worker's S2_i and |g_i|^2 at every multiple of ``every`` steps, for ``batch_size`` examples.

    Nothing is known of shards: they count as infinite, so H2 is that of their sources.
    """

    def __init__(
        self, model: nn.Module, replicas: ReplicaGroup, rule: TorchRule, every: int, batch_size: int
    ) -> None:
        self._replicas, self._rule, self._every, self._batch_size = replicas, rule, every, batch_size
        joined = [each for each in model.modules() if isinstance(each, DistributedDataParallel)]
        self._shares = len(replicas.members) if joined else 1
        self._done, self._local2 = 0, torch.zeros(())
        self._points: list[tuple[float, ...]] = []
        self.half: Tensor | None = None
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

    def note(self, gradient: Tensor, loss: Tensor | None) -> None:
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
            known = np.nan if loss is None else float(loss)
            self._points.append((self._done, self._rule.lr_at(0), known, noise, own))
            self._local2, self.half = torch.zeros(()), None
        self._done += 1

    def finish(self, control: Control, timeout_s: float, run: Run | None) -> Run | None:
        """Give the joined points of all workers to ``run``; all ranks call this after the last step."""
        lists = control.meet("noise", self._points if self._replicas.leads else None, timeout_s)
        joined: list[NoisePoint] = []
        for each in zip(*(points for points in lists if points is not None), strict=False):
            (step, *_), lr, losses, noise, norms2 = np.array(each).T
            mean2 = self._rule.norms2.get(int(step))
            batches = np.full(len(each), float(self._batch_size))
            joint = moments(noise, norms2, mean2 or 0.0, batches, np.inf)
            joined.append(
                NoisePoint(
                    step=int(step), examples=len(each) * self._batch_size, lr=float(lr[0]),
                    loss=float(losses.mean()) if np.isfinite(losses).all() else None, noise=joint.noise,
                    heterogeneity=mean2 and joint.heterogeneity, norm2=mean2 and joint.norm2,
                )
            )  # fmt: skip
        return run and replace(run, gradients=tuple(joined))
