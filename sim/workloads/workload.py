"""Training problems: examples, a loss on a flat parameter vector, and scores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import seeds
from ..config.settings import Settings
from ..errors import KeyedError

ACCURACY: Final = "test_accuracy"
"""The metric that is a share, from 0 to 1, of the test examples."""


Examples = tuple[Tensor, Tensor]
"""Inputs [N, ...] and targets [N, ...]."""

Score = Callable[[Tensor], Mapping[str, float]]
"""Metrics of a model [d]."""

Slices = Callable[[Tensor, str], tuple[int, list[float]]]
"""The scored examples behind a metric, and its means over ``SLICES`` of them, or over each."""


class Evaluated(NamedTuple):
    """A gradient [..., d] and the loss [..., 1] on its batch, which it computes on the way."""

    value: Tensor
    loss: Tensor


SegmentCallback = Callable[[int, int, Evaluated], None]
"""``on_segment(start, stop, so_far)``: elements [start, stop) of the gradient ``so_far`` [d] are known."""

GradientFunction = Callable[[Tensor, Tensor, Tensor, SegmentCallback | None], Evaluated]


@dataclass(frozen=True, eq=False)
class LossAtTensors:
    """The shapes of the tensors of a model x [d], one after another, and the loss as a function of them.

    ``loss(tensors, inputs, targets)`` equals ``Workload.loss`` of the x that they make.
    """

    shapes: tuple[torch.Size, ...]
    loss: Callable[[Sequence[Tensor], Tensor, Tensor], Tensor]

    def of(self, x: Tensor) -> list[Tensor]:
        """Views of the tensors in x [..., d], each [..., *shape]."""
        pieces = torch.split(x, [shape.numel() for shape in self.shapes], dim=-1)
        return [piece.view(*x.shape[:-1], *shape) for piece, shape in zip(pieces, self.shapes, strict=True)]


SCORED_NUMBERS: Final = 2**28
"""Examples times parameters of a set that a score goes through by default: a second or so."""
SLICES: Final = 16
"""Slices of the scored examples whose means say how well a score is known."""
LEAST_SCORED: Final = 64
"""Examples below which a score would say too little."""


@dataclass(frozen=True, eq=False)
class ScoredSets:
    """The examples that a score may go through.

    Attributes:
        sets: of training, and of the test where there is one.
        most: the examples that a score takes of a set where none are drawn.
        score_on: the score on other sets in their places, and its slices.
    """

    sets: tuple[Examples, ...]
    most: int
    score_on: Callable[[Sequence[Examples]], tuple[Score, Slices]]

    def on_drawn(self, number: int, seed: int) -> tuple[Score, Slices]:
        """The score on ``number`` examples of each set, drawn from the seed without replacement, or all."""
        return self.score_on([_drawn(each, number, seed, f"scored, {k}") for k, each in enumerate(self.sets)])


def _drawn(examples: Examples, number: int, seed: int, purpose: str) -> Examples:
    inputs, targets = examples
    if number >= len(inputs):
        return examples
    numbers = seeds.generator(seed, seeds.SHARED, purpose).choice(len(inputs), number, replace=False)
    chosen = torch.from_numpy(np.sort(numbers))
    return inputs[chosen], targets[chosen]


@dataclass(frozen=True, eq=False)
class Workload:
    """A training problem with a model as one vector x [d], float32.

    The forward pass itself updates the last ``num_buffers`` entries of x (running means and variances of
    batch norm): they are sent, mixed and averaged with the parameters. Their "gradient" is old value minus
    new, and the optimiser subtracts it as it is.

    Attributes:
        start: the initial model [d], the same for all workers.
        loss: ``loss(x [d], inputs [b, ...], targets [b, ...])`` -> mean loss, a scalar; pure, so that
            ``torch.func`` can batch it over workers.
        inputs, targets: the training examples, first axis N.
        labels: class of each example [N], for partitions by label; None where there are no classes.
        sources: number of each example's source [N], for partitions by source; None: there is one.
        smoothness: Lipschitz constant L_i > 0 of the gradient of each example's loss [N], where known.
        parameters: (name, shape, first element) of the tensors of x, in its order; (): it is one vector.
        segments: (name, start, stop) of the layers in the order in which a backward pass finishes them, one
            after another from the end of x to its beginning.
        score: metrics of a model [d]: ``train_loss`` and the task's others.
        slices: of the examples of ``score``; None: not known.
        scored: the examples behind ``score``, where it can take fewer of them; None: it always takes all.
        num_buffers: b, 0 for most models.
        loss_and_buffers: where b > 0: the loss, and the new values [b] of the buffers.
        gradient_on: makes, for a device, ``gradient(x [d], inputs, targets, on_segment)``, where there is a
            shorter way to the gradient at one x than through ``loss``; where b > 0 always.
        stochastic: the loss draws random numbers from torch (dropout); its caller seeds them first.
        parts: the tensors of x, where it has several and b = 0; None: gradients are taken at x itself.
        state: ``x [d]`` -> the tensors of its module by name, as its ``state_dict()``; None: there is none.
    """

    task: str
    start: Tensor
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    inputs: Tensor
    targets: Tensor
    labels: Tensor | None
    segments: tuple[tuple[str, int, int], ...]
    score: Score
    num_buffers: int = 0
    loss_and_buffers: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
    gradient_on: Callable[[torch.device], GradientFunction] | None = None
    stochastic: bool = False
    sources: Tensor | None = None
    smoothness: Tensor | None = None
    parts: LossAtTensors | None = None
    slices: Slices | None = None
    scored: ScoredSets | None = None
    parameters: tuple[tuple[str, tuple[int, ...], int], ...] = ()
    state: Callable[[Tensor], dict[str, Tensor]] | None = None

    def scored_examples(self, wanted: int | None) -> int | None:
        """The examples of each set in a score, where they are drawn: as wanted, or as many as cost little.

        Raises ``KeyedError`` where a task that always takes all is given a number.
        """
        if self.scored is None:
            if wanted is not None:
                text = f"task '{self.task}' is always scored on all its examples; leave it out"
                raise KeyedError(("evaluate", "examples"), text)
            return None
        cheap = max(LEAST_SCORED, SCORED_NUMBERS // len(self.start))
        return wanted or (cheap if cheap < self.scored.most else None)

    def state_dict(self, x: Tensor) -> dict[str, Tensor]:
        """Copies of a model's tensors by name: those of its module, else a vector for each layer."""
        if self.state is not None:
            return self.state(x)
        return {name: x[start:stop].clone() for name, start, stop in reversed(self.segments)}

    def to(self, device: torch.device) -> Workload:
        """A copy of the workload with its tensors on ``device``."""
        tensors = {name: getattr(self, name).to(device) for name in ("start", "inputs", "targets")}
        return replace(self, **tensors)


@dataclass(frozen=True)
class Facts:
    """Facts about a task's data against which a scenario is checked; 0: unknown.

    Attributes:
        labelled: each example has a class.
        metrics: names of the scores.
        num_parameters: size of the model, for an estimate of memory.
        example_numbers: numbers of 32 bits per example, including those to make it.
        activations: numbers that a gradient keeps for each example of its batch.
        sources: number of sources of the examples.
    """

    num_examples: int
    labelled: bool
    metrics: tuple[str, ...]
    num_parameters: int = 0
    example_numbers: int = 0
    activations: int = 0
    sources: int = 0


@dataclass(frozen=True)
class Task:
    """The registry's record of a workload.

    Attributes:
        metrics: names of its possible scores.
        facts: the facts about its data for options and a seed; raises ``InputError``.
        build: makes the workload for options and a seed.
        signed: the metrics that may be negative: losses of unknown form.
    """

    name: str
    options: type[Settings]
    metrics: tuple[str, ...]
    facts: Callable[[Any, int], Facts]
    build: Callable[[Any, int], Workload]
    signed: frozenset[str] = frozenset()

    @property
    def falling(self) -> frozenset[str]:
        """The metrics that get better by falling; shares of right answers rise."""
        return frozenset(self.metrics) - {ACCURACY}

    def range_of(self, metric: str) -> tuple[float, float]:
        """The lowest and the highest value of a metric."""
        lowest = -math.inf if metric in self.signed else 0.0
        return lowest, 1.0 if metric == ACCURACY else math.inf
