"""What is trained: examples, a loss on a flat parameter vector, and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from sim.settings import Settings

Tensor = torch.Tensor


@dataclass(frozen=True, eq=False)
class Workload:
    """A training problem with parameters as one vector x [d], float32.

    Attributes:
        task: its name.
        start: the initial model [d], the same for all workers.
        loss: ``loss(x [d], inputs [b, ...], targets [b, ...])`` -> mean loss, a scalar; pure, so that
            ``torch.func`` can batch it over workers.
        inputs, targets: the training examples, first axis N.
        labels: class of each example [N], for partitions by label; None where there are no classes.
        segments: (name, start, stop) of the layers in the order in which a backward pass finishes them.
        score: metrics of a model [d]: ``train_loss`` and what else the task has.
    """

    task: str
    start: Tensor
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    inputs: Tensor
    targets: Tensor
    labels: Tensor | None
    segments: tuple[tuple[str, int, int], ...]
    score: Callable[[Tensor], Mapping[str, float]]

    @property
    def num_parameters(self) -> int:
        """Length d of the parameter vector."""
        return self.start.numel()

    def to(self, device: torch.device) -> Workload:
        """The same workload with its tensors on ``device``."""
        return replace(
            self,
            start=self.start.to(device),
            inputs=self.inputs.to(device),
            targets=self.targets.to(device),
        )


@dataclass(frozen=True)
class Task:
    """What the registry knows about a workload.

    Attributes:
        name: as in scenarios.
        options: the task's own settings.
        metrics: names of the scores that it has.
        falling: the metrics that get better by falling; the others rise.
        num_examples: training examples under given options.
        build: makes the workload for a seed.
    """

    name: str
    options: type[Settings]
    metrics: tuple[str, ...]
    falling: frozenset[str]
    num_examples: Callable[[Settings], int]
    build: Callable[[Settings, int], Workload]
