"""Known models by name, with their layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Final

from .images import alexnet, googlenet, overfeat_fast, resnet, vgg
from .language import bert_large, gpt2, llama
from .layer import Layer, fully_connected


def cd_dnn() -> tuple[Layer, ...]:
    """CD-DNN: 7 hidden layers of 2,048 over speech (as in Das et al., arXiv 1602.06709)."""
    widths = (429, *[2048] * 7, 9304)
    return tuple(fully_connected(f"fc{k + 1}", *pair, bias=False) for k, pair in enumerate(pairwise(widths)))


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
    "gpt2": partial(gpt2, 768, 12),
    "gpt2-medium": partial(gpt2, 1024, 24),
    "gpt2-large": partial(gpt2, 1280, 36),
    "gpt2-xl": partial(gpt2, 1600, 48),
    "llama-2-7b": partial(llama, 4096, 32, 11_008, keys=4096, vocabulary=32_000),
    "llama-2-13b": partial(llama, 5120, 40, 13_824, keys=5120, vocabulary=32_000),
    "llama-2-70b": partial(llama, 8192, 80, 28_672, keys=1024, vocabulary=32_000),
    "llama-3-8b": partial(llama, 4096, 32, 14_336, keys=1024, vocabulary=128_256),
}
"""By name; layers are in forward order."""
