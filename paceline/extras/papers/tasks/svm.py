"""A linear support vector machine, on scikit-learn's data sets or a file in LIBSVM's format.

    F(w) = l2/2 |w|^2 + (1/N) sum_j max(0, 1 - y_j w . a_j),   y_j = -1 or 1

There is no bias; the initial w is 0. SGD with one example a batch and the learning rate 1 / (l2 i) in epoch i
(``lr: 1 / l2`` and ``schedule: {inverse_time: {half: <steps of an epoch>, stairs: true}}``) is Pegasos;
averaging the models of parallel workers after a period of steps is ``local_sgd``.

Source: Shalev-Shwartz et al., ICML 2007 (Pegasos); Abeykoon, Fox and Kim, arXiv 1905.01219 (the period).
"""

from __future__ import annotations

import io
import math
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor

from paceline.sim import seeds
from paceline.sim.config.limits import MAX_FACTOR
from paceline.sim.config.problems import mistake, refuse_foreign
from paceline.sim.config.settings import Settings
from paceline.sim.config.yaml_file import expand_home, read_bytes
from paceline.sim.errors import InputError
from paceline.sim.seeds import Floats
from paceline.sim.workloads.supervised import scaled_table
from paceline.sim.workloads.workload import Examples, Facts, Task, Workload

SVM_METRICS = ("train_loss", "test_accuracy")
HELD_OUT: Final = 5
"""One of this many examples is for the test, the same ones for every seed."""
MAX_SVM_BYTES: Final = 512 * 2**20
MAX_SVM_NUMBERS: Final = 2**28
"""Largest product of examples and features, a full matrix of single precision."""


class SvmOptions(Settings):
    """Options of ``svm``."""

    data: Literal["breast_cancer", "digits", "iris", "wine"] = Field(
        default="breast_cancer",
        description="data set of scikit-learn; features are scaled to mean 0 and variance 1",
    )
    file: str | None = Field(default=None, description="instead: a file in LIBSVM's format, unscaled")
    positive: float | None = Field(
        default=None,
        description="positive class (default: the larger of two, the first of more)",
    )
    l2: float = Field(default=1e-3, gt=0, le=MAX_FACTOR, description="weight of the penalty l2/2 |w|^2")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.file is not None and "data" in self.model_fields_set and self.data != "breast_cancer":
            raise mistake("there is a file already; leave one of them out", "data")
        return self


def read_libsvm(path: Path) -> tuple[Floats, Floats]:
    """Features [N, d] and labels [N] of a file in LIBSVM's format, ``label index:value ...`` in each line.

    Raises ``InputError`` where it cannot be read, has another form (with the line), or is too large.
    """
    content = read_bytes(path, MAX_SVM_BYTES)
    try:
        features, labels = _load_lines(content)
    except (ValueError, OverflowError) as error:
        refuse_foreign(path)
        lines = content.splitlines(keepends=True)
        line, why = _first_wrong_line(lines, str(error))
        raise InputError(f"{path}:{line}: is not 'label index:value ...' of LIBSVM's format: {why}") from None
    examples, width = features.shape
    if not features.nnz:
        raise InputError(f"{path}: has no example with a feature that is not 0")
    if examples < HELD_OUT:
        raise InputError(
            f"{path}: has {examples} examples of {width} features; at least {HELD_OUT} are needed"
        )
    if examples * width > MAX_SVM_NUMBERS:
        raise InputError(
            f"{path}: {examples} examples of {width} features are {examples * width} numbers; the most is "
            f"{MAX_SVM_NUMBERS}"
        )
    if not (np.isfinite(features.data).all() and np.isfinite(labels).all()):
        rows = np.repeat(np.arange(examples), np.diff(features.indptr))[~np.isfinite(features.data)]
        first = min([*rows.tolist(), *np.flatnonzero(~np.isfinite(labels)).tolist()])
        raise InputError(f"{path}: example {first + 1} has a number that is not finite")
    return features.toarray(), labels


def _load_lines(content: bytes) -> tuple[Any, Floats]:
    from sklearn.datasets import load_svmlight_file  # slow to import

    features, labels = load_svmlight_file(io.BytesIO(content), zero_based="auto")
    return features, labels


def _first_wrong_line(lines: list[bytes], why: str) -> tuple[int, str]:
    """The first unreadable line, from 1, and the reason, by bisection: each line is read by itself."""
    first, last = 0, len(lines)
    while last - first > 1:
        middle = (first + last) // 2
        try:
            _load_lines(b"".join(lines[first:middle]))
        except (ValueError, OverflowError) as error:
            last, why = middle, str(error)
        else:
            first = middle
    return first + 1, " ".join(why.split())[:120]


@lru_cache(maxsize=2)
def _read_table(data: str, file: str | None) -> tuple[Floats, Floats]:
    return scaled_table(data) if file is None else read_libsvm(expand_home(file))


@lru_cache(maxsize=2)
def _examples(data: str, file: str | None, positive: float | None) -> tuple[Examples, Examples]:
    """Features [N, d] and labels -1 or 1 [N]: for training, and for the test."""
    features, labels = _read_table(data, file)
    classes = np.unique(labels)
    name = file or data
    if len(classes) < 2:
        raise InputError(f"{name}: all examples are of class {classes[0]:g}; two are needed")
    chosen = positive if positive is not None else classes[-1 if len(classes) == 2 else 0]
    if chosen not in classes:
        known = ", ".join(f"{each:g}" for each in classes[:20])
        raise InputError(f"{name}: there is no class {chosen:g}; choose from: {known}")
    order = seeds.generator(0, seeds.SHARED, "svm split").permutation(len(labels))
    inputs = torch.from_numpy(features[order].astype(np.float32))
    targets = torch.from_numpy(np.where(labels[order] == chosen, 1.0, -1.0).astype(np.float32))
    cut = len(labels) - math.ceil(len(labels) / HELD_OUT)
    return (inputs[:cut], targets[:cut]), (inputs[cut:], targets[cut:])


def facts(options: SvmOptions, seed: int) -> Facts:
    """Facts about the examples, which are of two classes."""
    (inputs, _), _ = _examples(options.data, options.file, options.positive)
    d = inputs.shape[1]
    return Facts(len(inputs), True, SVM_METRICS, d, example_numbers=4 * d, activations=d)


def build(options: SvmOptions, seed: int) -> Workload:
    """A linear support vector machine without bias: hinge loss and an L2 penalty; starts at 0."""
    train, test = _examples(options.data, options.file, options.positive)
    d = train[0].shape[1]

    def loss(w: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        hinge = torch.relu(1 - targets * (inputs @ w)).mean()
        return hinge + 0.5 * options.l2 * w.square().sum()

    @torch.no_grad()
    def score(w: Tensor) -> Mapping[str, float]:
        inputs, targets = (each.to(w) for each in train)
        test_inputs, test_targets = (each.to(w) for each in test)
        right = (test_inputs @ w > 0) == (test_targets > 0)
        return {"train_loss": loss(w, inputs, targets).item(), "test_accuracy": right.double().mean().item()}

    return Workload(
        task="svm",
        start=torch.zeros(d),
        loss=loss,
        inputs=train[0],
        targets=train[1],
        labels=(train[1] > 0).long(),
        segments=(("weight", 0, d),),
        score=score,
    )


SVM = Task("svm", SvmOptions, SVM_METRICS, facts, build)
