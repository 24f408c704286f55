"""Learning from examples with a torch module: the workload of most tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from .. import seeds
from .module_gradient import ModuleGradient
from .modules import flat
from .workload import Workload

Criterion = Callable[[Tensor, Tensor], Tensor]
Examples = tuple[Tensor, Tensor]

MAX_SCORED = 2048
"""Examples that are scored at once; training examples that ``train_loss`` is the mean over, unless told."""
TRIED = 2
"""Examples on which a module is run once, to see what it does."""


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """Within it torch draws the numbers of the initial model: the same for one seed, nobody else's."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(seeds.generator(seed, seeds.SHARED, "initial model").integers(2**62)))
        yield


def supervised(
    task: str,
    module: torch.nn.Module,
    criterion: Criterion,
    train: Examples,
    test: Examples | None,
    metrics: Sequence[str],
    prepare: Callable[[Tensor], Tensor] | None = None,
    scored: int = MAX_SCORED,
) -> Workload:
    """The workload of a module.

    Args:
        task: its name.
        module: as it is initialised.
        criterion: ``(outputs, targets) -> mean loss``, a scalar.
        train, test: inputs [N, ...] and targets [N, ...].
        metrics: of ``train_loss``, ``test_loss``, ``test_accuracy``, those to score. For the accuracy,
            outputs are [N, classes, ...] and targets [N, ...].
        prepare: applied to a batch's inputs: from the form in which they are kept to that of the module.
        scored: how many training examples, the first ones, ``train_loss`` is the mean over.

    Raises:
        InputError: the module is not one that can be trained here; see ``modules.flat``.
    """
    kept = prepare or (lambda inputs: inputs)
    inputs, targets = train
    found = flat(module, kept(inputs[:TRIED]))

    def loss_and_buffers(x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        outputs, buffers = found.train(x, kept(inputs))
        return criterion(outputs, targets), buffers

    def loss(x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return criterion(found.train(x, kept(inputs))[0], targets)

    def loss_of(module: torch.nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return criterion(module(kept(inputs)), targets)

    def judged(x: Tensor, examples: Examples) -> tuple[float, float]:
        """Mean loss and share of right answers."""
        inputs, targets = (each.to(x.device) for each in examples)
        total = right = 0.0
        for first in range(0, len(inputs), MAX_SCORED):
            asked, answers = inputs[first : first + MAX_SCORED], targets[first : first + MAX_SCORED]
            outputs = found.evaluate(x, kept(asked))
            share = len(asked) / len(inputs)
            total += criterion(outputs, answers).item() * share
            if "test_accuracy" in metrics:
                right += (outputs.argmax(dim=1) == answers).double().mean().item() * share
        return total, right

    @torch.no_grad()
    def score(x: Tensor) -> Mapping[str, float]:
        scores = {"train_loss": judged(x, (inputs[:scored], targets[:scored]))[0]}
        if test is not None:
            scores["test_loss"], scores["test_accuracy"] = judged(x, test)
        return {name: scores[name] for name in metrics}

    whole = targets.dtype in (torch.int64, torch.int32, torch.uint8)
    return Workload(
        task=task,
        start=found.start,
        loss=loss,
        inputs=inputs,
        targets=targets,
        labels=targets if whole and targets.dim() == 1 else None,
        segments=found.segments,
        score=score,
        num_buffers=found.num_buffers,
        loss_and_buffers=loss_and_buffers if found.num_buffers else None,
        gradient_on=partial(ModuleGradient, found.module, found.running, loss_of),
        stochastic=found.stochastic,
    )
