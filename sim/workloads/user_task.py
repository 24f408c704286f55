"""The user's own task: a function that returns a model, a loss and data.

::

    def build(width: int = 32):
        model = torch.nn.Sequential(torch.nn.Linear(20, width), torch.nn.ReLU(), torch.nn.Linear(width, 2))
        loss = torch.nn.functional.cross_entropy           # loss(outputs, targets) -> mean over the batch
        data = {"train": (inputs, targets), "test": (more_inputs, more_targets)}
        return model, loss, data

Several inputs are a tuple of tensors, or a mapping by the names of the model's parameters; a mapping with the
targets as "labels" stands for a pair. A model may return an object with ``logits``. Beside "train" and "test"
there may be "sources", the number of each training example's source.

Its parameters are options of the task, which a scenario gives beside ``task``; one called ``seed`` gets the
run's seed instead. It is called with torch's random numbers seeded, so that all processes of a real run build
the same model.
"""

from __future__ import annotations

import copy
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..config.limits import MAX_EXAMPLES
from ..config.settings import Settings
from ..config.user_code import call as user_code
from ..config.user_code.call import options_of
from ..devices import torch_random
from ..errors import InputError, RunError, quote, shorten
from .modules import Inputs, arguments, run_module
from .supervised import TRIED, initial_weights, supervised
from .workload import Examples, Facts, Score, Slices, Task, Workload

Build = Callable[..., Any]
USER_METRICS = ("train_loss", "test_loss", "test_accuracy")
_EXPECTED = "(model, loss, data): a torch.nn.Module, a function loss(outputs, targets), and the examples"
_EXAMPLES = (
    "a pair (inputs, targets) of tensors or arrays, a torch Dataset, or {'train': ..., 'test': ...} of these"
)
_LABELS = "labels"
_MOST_READ = 1_000_000
"""Examples of an ``IterableDataset``, which says no length."""
_SETS = ("train", "test", "sources")


class _Set(NamedTuple):
    """Examples, whose inputs are in one tensor, with (name or "", shape, type) of each part of these."""

    examples: Examples
    parts: tuple[tuple[str, torch.Size, torch.dtype], ...]

    def unpack(self, inputs: Tensor) -> Inputs:
        """The inputs of a batch as the model takes them."""
        pieces = torch.split(inputs, [shape.numel() for _, shape, _ in self.parts], dim=1)
        whole = [
            piece.reshape(-1, *shape).to(kind)
            for piece, (_, shape, kind) in zip(pieces, self.parts, strict=True)
        ]
        names = [name for name, _, _ in self.parts]
        return dict(zip(names, whole, strict=True)) if names[0] else tuple(whole)


def user_task(path: str) -> Task:
    """Load the task at ``package.module:build``; ``InputError`` unless that is a function of options."""
    build = user_code.load_object(path)
    if not callable(build) or isinstance(build, torch.nn.Module):
        raise InputError(f"{quote(path)} is {_kind(build)}; it must be a function that returns {_EXPECTED}")
    return _task(path, build)


@lru_cache(maxsize=64)
def _task(path: str, build: Build) -> Task:
    options = options_of(path, build, without=("seed",))
    seeded, place = "seed" in inspect.signature(build).parameters, user_code.format_place(build)

    @lru_cache(maxsize=2)
    def call(options: Settings, seed: int) -> tuple[Workload, tuple[str, ...]]:
        with user_code.report_errors(quote(path)), initial_weights(seed):
            returned = build(**dict(options), **({"seed": seed} if seeded else {}))
        try:
            return _workload(path, returned)
        except InputError as error:
            raise InputError(f"{quote(path)}: {error}{place}") from error.__cause__
        except user_code.RAISED as error:  # for example a module that cannot be copied
            why = user_code.format_error(error)
            raise InputError(f"{quote(path)}: what it returned cannot be used: {why}{place}") from error

    def facts(options: Settings, seed: int) -> Facts:
        workload, metrics = call(options, seed)
        sources = 0 if workload.sources is None else len(torch.unique(workload.sources))
        return Facts(len(workload.inputs), workload.labels is not None, metrics, sources=sources)

    def build_workload(options: Settings, seed: int) -> Workload:
        return call(options, seed)[0]

    losses = frozenset({"train_loss", "test_loss"})  # a log density's may be negative
    return Task(path, options, USER_METRICS, facts, build_workload, signed=losses)


def _workload(path: str, returned: Any) -> tuple[Workload, tuple[str, ...]]:
    if not (isinstance(returned, tuple) and len(returned) == 3):
        what = f"{len(returned)} values" if isinstance(returned, tuple) else _kind(returned)
        raise InputError(f"returned {what}; it must return {_EXPECTED}")
    model, loss, data = returned
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"its model is {_kind(model)}; it must return {_EXPECTED}")
    if not callable(loss):
        raise InputError(f"its loss is {_kind(loss)}; it must be a function loss(outputs, targets)")
    train, test, sources = _split(data)
    prepare = train.unpack if train.parts else None
    classes = _try_out(model, loss, train)
    metrics = USER_METRICS[: 1 if test is None else 3 if classes else 2]
    workload = supervised(path, model, loss, train.examples, test and test.examples, metrics, prepare)
    with_buffers, gradient_on, parts = workload.loss_and_buffers, workload.gradient_on, workload.parts
    scored = workload.scored
    assert scored is not None  # of examples
    # As a decorator it turns errors of each call into RunError with the user's file and line.
    naming_user = user_code.report_errors(quote(path), RunError)

    def naming_both(sets: Sequence[Examples]) -> tuple[Score, Slices]:
        score, slices = scored.score_on(sets)
        return naming_user(score), naming_user(slices)

    workload = replace(
        workload,
        sources=sources,
        loss=naming_user(workload.loss),
        loss_and_buffers=None if with_buffers is None else naming_user(with_buffers),
        gradient_on=None if gradient_on is None else lambda device: naming_user(gradient_on(device)),
        parts=None if parts is None else replace(parts, loss=naming_user(parts.loss)),
        score=naming_user(workload.score),
        slices=workload.slices and naming_user(workload.slices),
        scored=replace(scored, score_on=naming_both),
    )
    return workload, metrics


def _split(data: Any) -> tuple[_Set, _Set | None, Tensor | None]:
    """Training and test examples, and the sources of the former."""
    if not isinstance(data, Mapping) or ("train" not in data and _LABELS in data):
        return _examples(data, "its data"), None, None
    if "train" not in data or not data.keys() <= set(_SETS):
        keys = shorten(", ".join(map(repr, data)))
        raise InputError(
            f"its data has the keys {keys}; they must be 'train' and perhaps 'test' and 'sources'"
        )
    train = _examples(data["train"], "its data['train']")
    test = _examples(data["test"], "its data['test']") if "test" in data else None
    if test is not None and test.parts != train.parts:
        raise InputError("its data['test'] has other inputs than its data['train']: names, shapes or types")
    if "sources" not in data:
        return train, test, None
    named, number = np.asarray(data["sources"]), len(train.examples[0])
    if named.shape != (number,) or named.dtype.kind not in "biuU":
        raise InputError(
            f"its data['sources'] must be a whole number or a name for each of {number} training examples"
        )
    return train, test, torch.from_numpy(np.unique(named, return_inverse=True)[1])


def _examples(data: Any, name: str) -> _Set:
    if isinstance(data, torch.utils.data.DataLoader):
        raise InputError(f"{name} is a DataLoader; give its dataset, of which batches are drawn here")
    if isinstance(data, torch.utils.data.Dataset):
        with user_code.report_errors(f"reading {name}"):
            if isinstance(data, torch.utils.data.IterableDataset):
                read = list(itertools.islice(data, _MOST_READ + 1))  # it may never end
                _refuse_too_many(len(read), name, _MOST_READ)
            else:
                length = len(data)  # type: ignore[arg-type]
                _refuse_too_many(length, name)
                read = [data[number] for number in range(length)]
            data = torch.utils.data.default_collate(read)
    if isinstance(data, Mapping):
        if _LABELS not in data:
            keys = shorten(", ".join(map(repr, data)))
            raise InputError(f"{name} has the keys {keys}; a mapping must have the targets as '{_LABELS}'")
        data = ({key: value for key, value in data.items() if key != _LABELS}, data[_LABELS])
    if not (isinstance(data, tuple | list) and len(data) == 2):
        raise InputError(f"{name} is {_kind(data)}; it must be {_EXAMPLES}")
    given, targets = data[0], _tensor(data[1], name)
    named = given if isinstance(given, Mapping) else {"": given}
    several = [
        (key, part)
        for key, value in named.items()
        for part in (value if isinstance(value, tuple) else [value])
    ]
    columns = [_tensor(part, name) for _, part in several]
    counts = {len(part) if part.dim() else 0 for part in [*columns, targets]}
    if len(counts) != 1 or 0 in counts:
        shapes = f"{', '.join(str(list(part.shape)) for part in columns)} and targets of shape"
        shapes += f" {list(targets.shape)}"
        raise InputError(f"{name} has inputs of shape {shapes}; the first axis of both counts the examples")
    _refuse_too_many(len(targets), name)
    if not isinstance(given, Mapping | tuple):
        return _Set((columns[0], targets), ())
    # In double precision: whole numbers below 2^53 stay what they are.
    packed = torch.cat([part.reshape(len(part), -1).double() for part in columns], dim=1)
    parts = tuple((key, part.shape[1:], part.dtype) for (key, _), part in zip(several, columns, strict=True))
    return _Set((packed, targets), parts)


def _refuse_too_many(examples: int, name: str, most: int = MAX_EXAMPLES) -> None:
    if examples > most:
        raise InputError(f"{name} has {examples} examples or more; the most is {most}")


def _tensor(part: Any, name: str) -> Tensor:
    if isinstance(part, np.ndarray):
        try:
            part = torch.from_numpy(np.ascontiguousarray(part))
        except TypeError as error:
            raise InputError(f"{name} holds an array of {part.dtype}: {error}") from None
    if not isinstance(part, Tensor):
        raise InputError(f"{name} holds {_kind(part)}; it must be {_EXAMPLES}")
    # Models are float32; arrays are often not.
    return part.float() if part.dtype in (torch.float64, torch.float16, torch.bfloat16) else part


def _try_out(model: torch.nn.Module, loss: Callable[..., Any], train: _Set) -> bool:
    """Run model, loss and backward pass once; whether outputs and targets are those of classes."""
    stored, targets = (each[:TRIED] for each in train.examples)
    inputs = train.unpack(stored) if train.parts else stored
    with torch_random(), torch.enable_grad():
        in_order, by_name = arguments(inputs)
        shown = [*(("", part) for part in in_order), *by_name.items()]
        shapes = " and ".join(f"{key} {list(each.shape)} ({each.dtype})".strip() for key, each in shown)
        with user_code.report_errors(f"its model, called with inputs of shape {shapes},"):
            outputs = run_module(copy.deepcopy(model).train(), inputs)
        if not isinstance(outputs, Tensor):
            raise InputError(f"its model returned {_kind(outputs)}; it must return one tensor")
        given = f"outputs {list(outputs.shape)} ({outputs.dtype})"
        given += f" and targets {list(targets.shape)} ({targets.dtype})"
        with user_code.report_errors(f"its loss, called with {given},"):
            value = loss(outputs, targets)
        if not isinstance(value, Tensor) or value.dim() != 0:
            what = f"a tensor of shape {list(value.shape)}" if isinstance(value, Tensor) else _kind(value)
            raise InputError(
                f"its loss returned {what}; it must return one number, the mean over the batch, as a tensor"
            )
        if not value.is_floating_point():
            raise InputError(f"its loss returned a tensor of {value.dtype}; it must be of real numbers")
        if not value.requires_grad:
            raise InputError(
                "its loss does not depend on the model's parameters (detached, or under no_grad?)"
            )
    return not targets.is_floating_point() and (
        outputs.dim() > 1 and outputs.shape[:1] + outputs.shape[2:] == targets.shape
    )


def _kind(value: Any) -> str:
    name = shorten(type(value).__name__)
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
