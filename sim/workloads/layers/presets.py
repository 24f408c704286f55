"""Known models by name, with their layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Final

from .images import alexnet, googlenet, overfeat_fast, resnet, vgg
from .language import TransformerShape, bert_large, transformer
from .layer import Layer, fully_connected


def cd_dnn() -> tuple[Layer, ...]:
    """CD-DNN: 7 hidden layers of 2,048 over speech (as in Das et al., arXiv 1602.06709)."""
    widths = (429, *[2048] * 7, 9304)
    return tuple(fully_connected(f"fc{k + 1}", *pair, bias=False) for k, pair in enumerate(pairwise(widths)))


def _gpt2(width: int, depth: int) -> tuple[Layer, ...]:
    """GPT-2 of a width and a depth (Radford et al., 2019, table 2)."""
    return transformer(
        TransformerShape(
            layers=depth, width=width, feed_forward=4 * width, vocabulary=50_257, length=1024, positions=1024
        )
    )


def _llama(
    width: int, depth: int, hidden: int, heads: int, key_heads: int, vocabulary: int
) -> tuple[Layer, ...]:
    """Llama of a shape (Touvron et al., arXiv 2302.13971 and 2307.09288; 3: arXiv 2407.21783)."""
    return transformer(
        TransformerShape(
            layers=depth, width=width, feed_forward=hidden, vocabulary=vocabulary, length=4096, tied=False,
            gated=True, biases=False, heads=heads, key_heads=key_heads,
        )
    )  # fmt: skip


PRESETS: Final[Mapping[str, Callable[[], tuple[Layer, ...]]]] = {
    "vgg-a": partial(vgg, 1, 1, 2, 2, 2),
    "vgg-16": partial(vgg, 2, 2, 3, 3, 3),
    "overfeat-fast": overfeat_fast,
    "cd-dnn": cd_dnn,
    "alexnet": alexnet,
    "googlenet": googlenet,
    "resnet-50": partial(resnet, 3, 4, 6, 3),
    "resnet-101": partial(resnet, 3, 4, 23, 3),
    "bert-large": bert_large,
    "gpt2": partial(_gpt2, 768, 12),
    "gpt2-medium": partial(_gpt2, 1024, 24),
    "gpt2-large": partial(_gpt2, 1280, 36),
    "gpt2-xl": partial(_gpt2, 1600, 48),
    "llama-2-7b": partial(_llama, 4096, 32, 11_008, 32, 32, 32_000),
    "llama-2-13b": partial(_llama, 5120, 40, 13_824, 40, 40, 32_000),
    "llama-2-70b": partial(_llama, 8192, 80, 28_672, 64, 8, 32_000),
    "llama-3-8b": partial(_llama, 4096, 32, 14_336, 32, 8, 128_256),
}
"""By name; layers are in forward order."""
