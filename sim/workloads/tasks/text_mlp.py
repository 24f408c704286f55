"""A perceptron that predicts the next byte of a text (``texts``) from the last ones.

It is the cheapest model of a text whose long runs are affordable: 8,000 steps of eight workers in about a
minute (docs/proxies.md).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn

from ... import seeds
from ...config.limits import MAX_WIDTH
from ...errors import InputError
from ..supervised import initial_weights, supervised
from ..workload import Examples, Facts, Task, Workload
from .texts import TEXT_METRICS, TextOptions, read_text

_EMBEDDED: Final = 16
"""Numbers that stand for a byte."""
_BLOCK: Final = 4096
"""Bytes of a stretch of text, of which one in ``_HELD_OUT`` is for the test."""
_HELD_OUT: Final = 20
_MOST: Final = 2**22
"""Most examples; of a longer text every second place is one, or every third, and so on."""
SCORED_PLACES: Final = 4096
"""Scored places of the text, in the test and in training."""


class TextMlpOptions(TextOptions):
    """Options of ``text-mlp``."""

    context: int = Field(default=8, ge=1, le=MAX_WIDTH, description="bytes before the predicted one")
    hidden: int = Field(default=64, ge=1, le=MAX_WIDTH, description="width of the hidden layer")


class TextPlaces(NamedTuple):
    """Places of a text for training and test, in a drawn order; sources [N] of the former, if several.

    Bytes are numbers below ``symbols``, the most frequent form of a text: inputs [N, context], targets [N].
    """

    train: Examples
    test: Examples
    sources: Tensor | None
    symbols: int


@lru_cache(maxsize=2)
def _places(file: str | None, name: str, context: int) -> TextPlaces:
    text, starts = read_text(file, name)
    raw = np.frombuffer(text, np.uint8)
    used, values = np.unique(raw, return_inverse=True)
    values = values.astype(np.uint8)
    first = np.arange(0, len(values) - context, 1 + len(values) // _MOST)
    held_out = (first + context) // _BLOCK % _HELD_OUT == _HELD_OUT // 2
    if held_out.all() or not held_out.any():
        least = (_HELD_OUT // 2 + 1) * _BLOCK
        raise InputError(f"the text has {len(text):,} bytes; this task needs {least:,}")
    draws = seeds.generator(0, seeds.SHARED, "places of a text")
    train, test = (draws.permutation(first[of]) for of in (~held_out, held_out))
    windows = np.lib.stride_tricks.sliding_window_view(values, context + 1)
    source = np.searchsorted(starts, train + context, side="right") if starts else None
    of_train, of_test = (torch.from_numpy(windows[of]) for of in (train, test[:SCORED_PLACES]))
    return TextPlaces(
        (of_train[:, :-1].contiguous(), of_train[:, -1].long()),
        (of_test[:, :-1].contiguous(), of_test[:, -1].long()),
        None if source is None else torch.from_numpy(source),
        len(used),
    )


class TextMlp(nn.Sequential):
    """An embedding of each byte, a hidden layer of rectified units, a linear layer.

    Source: Bengio et al., A neural probabilistic language model, JMLR 3 (2003), without its direct links.
    """

    def __init__(self, options: TextMlpOptions, symbols: int) -> None:
        super().__init__(
            nn.Embedding(symbols, _EMBEDDED),
            nn.Flatten(),
            nn.Linear(options.context * _EMBEDDED, options.hidden),
            nn.ReLU(),
            nn.Linear(options.hidden, symbols),
        )


def _cross_entropy(scores: Tensor, targets: Tensor) -> Tensor:
    # That of torch, in a batch of models, goes through a decomposition in Python: a fifth of a step.
    return -scores.log_softmax(dim=-1).gather(-1, targets.unsqueeze(-1)).mean()


def facts(options: TextMlpOptions, seed: int) -> Facts:
    """Facts about the places of a text; its classes are bytes."""
    places = _places(options.file, options.text, options.context)
    numbers = options.context * _EMBEDDED
    return Facts(
        len(places.train[0]),
        False,
        TEXT_METRICS,
        num_parameters=places.symbols * (_EMBEDDED + options.hidden + 1) + options.hidden * (numbers + 1),
        example_numbers=2 * options.context,
        activations=numbers + 2 * options.hidden + 2 * places.symbols,
        sources=0 if places.sources is None else len(np.unique(places.sources.numpy())),
    )


def build(options: TextMlpOptions, seed: int) -> Workload:
    """A perceptron on the last bytes of help texts, the Bible or a file; cross-entropy of the next one."""
    places = _places(options.file, options.text, options.context)
    with initial_weights(seed):
        module = TextMlp(options, places.symbols)
    workload = supervised(
        "text-mlp", module, _cross_entropy, places.train, places.test, TEXT_METRICS,
        prepare=Tensor.long, scored=SCORED_PLACES,
    )  # fmt: skip
    return replace(workload, labels=None, sources=places.sources)


TEXT_MLP = Task("text-mlp", TextMlpOptions, TEXT_METRICS, facts, build)
