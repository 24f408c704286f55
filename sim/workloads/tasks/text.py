"""A small transformer that predicts the next byte of a text (``texts``)."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import NamedTuple, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ... import seeds
from ...config.limits import MAX_LAYERS, MAX_WIDTH
from ...config.problems import mistake
from ...errors import InputError
from ..supervised import initial_weights, supervised
from ..workload import Examples, Facts, Task, Workload
from .texts import NUM_BYTES, TEXT_METRICS, TextOptions, read_text

SCORED_WINDOWS = 128
"""Scored pieces of text, in the test and in training."""


class TextTransformerOptions(TextOptions):
    """Options of ``text-transformer``."""

    context: int = Field(default=32, ge=2, le=MAX_WIDTH, description="context length in bytes")
    width: int = Field(
        default=32, ge=1, le=MAX_WIDTH, description="width of the embedding; a multiple of heads"
    )
    heads: int = Field(default=2, ge=1, le=MAX_WIDTH, description="attention heads")
    layers: int = Field(default=1, ge=1, le=MAX_LAYERS, description="number of blocks")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="dropout rate in training")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads:
            raise mistake(f"is {self.width}, which {self.heads} heads cannot share evenly", "width")
        return self


class TextPieces(NamedTuple):
    """Pieces of a text for training and test; sources [N] of the former, if there are several."""

    train: Examples
    test: Examples
    sources: Tensor | None


@lru_cache(maxsize=2)
def _examples(file: str | None, name: str, context: int) -> TextPieces:
    """Pieces of the text [N, context] and, as targets, those one byte on.

    The last tenth is for the test; of the Bible, whose books differ, a tenth drawn alike for every seed.
    """
    text, starts = read_text(file, name)
    pieces = (len(text) - 1) // context
    if pieces < 2:
        raise InputError(f"the text has {len(text)} bytes; a context of {context} needs {2 * context + 1}")
    values = torch.frombuffer(bytearray(text), dtype=torch.uint8)[: pieces * context + 1].long()
    inputs, targets = values[:-1].view(pieces, context), values[1:].view(pieces, context)
    source = np.searchsorted(starts, np.arange(pieces) * context, side="right")
    if name == "kjv":
        order = seeds.generator(0, seeds.SHARED, "pieces of a text").permutation(pieces)
        inputs, targets, source = inputs[order], targets[order], source[order]
    cut = pieces - max(1, pieces // 10)
    held_out = slice(cut, cut + SCORED_WINDOWS)
    sources = torch.from_numpy(source[:cut].astype(np.int64)) if starts else None
    return TextPieces((inputs[:cut], targets[:cut]), (inputs[held_out], targets[held_out]), sources)


class Transformer(nn.Module):
    """Embeddings of bytes and places, pre-norm blocks of causal attention, a linear layer.

    Source: Vaswani et al., NeurIPS 2017; layer norm before each part as in Radford et al., 2019 (GPT-2).
    """

    def __init__(self, options: TextTransformerOptions) -> None:
        super().__init__()
        width, dropout = options.width, options.dropout
        self.byte = nn.Embedding(NUM_BYTES, width)
        self.place = nn.Embedding(options.context, width)
        self.blocks = nn.Sequential(*(Block(width, options.heads, dropout) for _ in range(options.layers)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, NUM_BYTES)

    def forward(self, values: Tensor) -> Tensor:
        """Scores [b, 256, t] of the next byte after each of ``values`` [b, t]."""
        places = torch.arange(values.shape[-1], device=values.device)
        hidden = self.blocks(self.byte(values) + self.place(places))
        scores: Tensor = self.out(self.norm(hidden)).transpose(-1, -2)
        return scores


class Block(nn.Module):
    """Attention to earlier places, then a perceptron; each is added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.perceptron = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """From [b, t, width] to [b, t, width]."""
        b, t, width = x.shape
        parts = self.attention(self.before_attention(x)).view(b, t, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        weights = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5
        later = torch.ones(t, t, dtype=torch.bool, device=x.device).triu(1)
        attended = weights.masked_fill(later, -torch.inf).softmax(dim=-1) @ value
        x = x + self.dropout(self.mixed(attended.transpose(1, 2).reshape(b, t, width)))
        added: Tensor = x + self.dropout(self.perceptron(x))
        return added


def facts(options: TextTransformerOptions, seed: int) -> Facts:
    """Facts about the pieces of a text, which have no classes."""
    length, width = options.context, options.width
    pieces = _examples(options.file, options.text, options.context)
    return Facts(
        len(pieces.train[0]),
        False,
        TEXT_METRICS,
        num_parameters=(2 * NUM_BYTES + length) * width + 12 * options.layers * width**2,
        example_numbers=4 * length,
        activations=length * (NUM_BYTES + options.layers * (16 * width + 3 * options.heads * length)),
        sources=0 if pieces.sources is None else len(np.unique(pieces.sources.numpy())),
    )


def build(options: TextTransformerOptions, seed: int) -> Workload:
    """A byte-level transformer with causal attention, on help texts, the Bible or a file; cross-entropy."""
    with initial_weights(seed):
        module = Transformer(options)
    train, test, sources = _examples(options.file, options.text, options.context)
    loss = nn.functional.cross_entropy
    workload = supervised("text-transformer", module, loss, train, test, TEXT_METRICS, scored=SCORED_WINDOWS)
    return replace(workload, sources=sources)


TEXT_TRANSFORMER = Task("text-transformer", TextTransformerOptions, TEXT_METRICS, facts, build)
