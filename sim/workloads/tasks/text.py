"""A small transformer that predicts the next byte of a text.

The text is the user's file, or the topics of Python's own help, which come with the standard library (they
differ a little from one version of Python to the next).
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from ...config.limits import MAX_LAYERS, MAX_WIDTH
from ...config.problems import mistake
from ...config.settings import Settings
from ...config.yaml_file import read_bytes
from ...errors import InputError
from ..supervised import Examples, initial_weights, supervised
from ..workload import Facts, Task, Workload

TEXT_METRICS = ("train_loss", "test_loss", "test_accuracy")
NUM_BYTES = 256
MAX_TEXT_BYTES = 64 * 2**20
"""A longer text is not read."""
SCORED_WINDOWS = 128
"""Pieces of text that are scored; of those held out, and of those learnt from."""


class TextTransformerOptions(Settings):
    """Options of ``text-transformer``."""

    file: str | None = Field(default=None, description="text to learn; absent: the topics of Python's help")
    context: int = Field(default=32, ge=2, le=MAX_WIDTH, description="bytes that a prediction sees at most")
    width: int = Field(
        default=32, ge=1, le=MAX_WIDTH, description="width of the embedding; a multiple of heads"
    )
    heads: int = Field(default=2, ge=1, le=MAX_WIDTH, description="attention heads")
    layers: int = Field(default=1, ge=1, le=MAX_LAYERS, description="number of blocks")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="share of activations left out in training")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.width % self.heads:
            raise mistake(f"is {self.width}, which {self.heads} heads cannot share evenly", "width")
        return self


@lru_cache(maxsize=4)
def _text(file: str | None) -> bytes:
    if file is None:
        from pydoc_data.topics import topics

        return "\n".join(topics[name] for name in sorted(topics)).encode()
    return read_bytes(Path(file).expanduser(), MAX_TEXT_BYTES)


@lru_cache(maxsize=2)
def _examples(file: str | None, context: int) -> tuple[Examples, Examples]:
    """Pieces of the text [N, context] and, as targets, those one byte on; the last tenth is for the test."""
    text = _text(file)
    pieces = (len(text) - 1) // context
    if pieces < 2:
        raise InputError(f"the text has {len(text)} bytes; a context of {context} needs {2 * context + 1}")
    values = torch.frombuffer(bytearray(text), dtype=torch.uint8)[: pieces * context + 1].long()
    inputs, targets = values[:-1].view(pieces, context), values[1:].view(pieces, context)
    cut = pieces - max(1, pieces // 10)
    held_out = slice(cut, cut + SCORED_WINDOWS)
    return (inputs[:cut], targets[:cut]), (inputs[held_out], targets[held_out])


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
        """Scores [b, 256, t] of the byte that follows each of ``values`` [b, t]."""
        places = torch.arange(values.shape[-1], device=values.device)
        hidden = self.blocks(self.byte(values) + self.place(places))
        scores: Tensor = self.out(self.norm(hidden)).transpose(-1, -2)
        return scores


class Block(nn.Module):
    """Attention to what came before, then a perceptron; both added to what came in."""

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
    """The facts about the pieces of a text, which have no classes."""
    length, width = options.context, options.width
    return Facts(
        len(_examples(options.file, options.context)[0][0]),
        False,
        TEXT_METRICS,
        num_parameters=(2 * NUM_BYTES + length) * width + 12 * options.layers * width**2,
        example_numbers=4 * length,
        activations=length * (NUM_BYTES + options.layers * (16 * width + 3 * options.heads * length)),
    )


def build(options: TextTransformerOptions, seed: int) -> Workload:
    """A byte-level transformer with causal attention, on Python's help texts or a file; cross-entropy."""
    with initial_weights(seed):
        module = Transformer(options)
    train, test = _examples(options.file, options.context)
    return supervised(
        "text-transformer",
        module,
        nn.functional.cross_entropy,
        train,
        test,
        TEXT_METRICS,
        scored=SCORED_WINDOWS,
    )


TEXT_TRANSFORMER = Task(
    "text-transformer",
    TextTransformerOptions,
    TEXT_METRICS,
    frozenset({"train_loss", "test_loss"}),
    facts,
    build,
)
