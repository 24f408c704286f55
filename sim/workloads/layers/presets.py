"""Known models by name, with their layers: transformers, networks for images from their shapes, others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Final

from pydantic import Field, model_validator

from ...config.limits import MAX_LAYERS, MAX_WIDTH
from ...config.problems import mistake
from ...config.settings import Settings
from .layer import Layer, convolution, fully_connected, put_together

Width = Annotated[int, Field(ge=1, le=MAX_WIDTH)]


class TransformerShape(Settings):
    """A transformer by the numbers that decide its parameters and operations.

    Source: Vaswani et al., NeurIPS 2017; heads that share keys: Ainslie et al., EMNLP 2023; gates: Shazeer,
    arXiv 2002.05202.
    """

    layers: int = Field(ge=1, le=MAX_LAYERS, description="blocks; with `decoder_layers` those of the encoder")
    width: Width = Field(description="numbers of a token between two blocks")
    feed_forward: Width = Field(description="inner width of a block's feed-forward part")
    vocabulary: Width = Field(description="rows of the table of tokens")
    length: Width = Field(description="tokens of an example, of source and of target each")
    decoder_layers: int = Field(
        default=0, ge=0, le=MAX_LAYERS, description="blocks of a decoder, which attend to the encoder too"
    )
    positions: int = Field(
        default=0, ge=0, le=MAX_WIDTH, description="rows of a trained table of positions (0: computed)"
    )
    tied: bool = Field(default=True, description="the last product has the weights of the table of tokens")
    gated: bool = Field(default=False, description="feed-forward parts of three matrices (SwiGLU), not two")
    biases: bool = Field(default=True, description="products and normalisations have biases")
    heads: Width = Field(default=1, description="heads of an attention, where groups of them share keys")
    key_heads: Width | None = Field(
        default=None, description="heads of keys and values (default: one for each head)"
    )

    @model_validator(mode="after")
    def _check(self) -> TransformerShape:
        if self.width % self.heads:
            raise mistake(f"{self.heads} heads do not divide a width of {self.width}", "heads")
        if self.heads % (self.key_heads or 1):
            raise mistake(f"must divide heads, which is {self.heads}", "key_heads")
        return self


def transformer(shape: TransformerShape) -> tuple[Layer, ...]:
    """Tables, blocks and the last product of a transformer, in forward order.

    A tied table is counted once, where its gradient is complete: at the end of a backward pass.
    """
    blocks = [_block(f"block{k}", shape) for k in range(shape.layers)]
    decoder = [_block(f"decoder{k}", shape, attentions=2) for k in range(shape.decoder_layers)]
    rows, length = shape.vocabulary + shape.positions, shape.length
    # Looking up costs nothing beside a product.
    table = Layer("embedding", rows * shape.width, 0.0, length, length * shape.width)
    product = fully_connected("head", shape.width, shape.vocabulary, bias=False, rows=length)
    own = (1 + bool(decoder)) * _norm(shape) + (0 if shape.tied else product.parameters)
    return (
        table,
        *blocks,
        *decoder,
        Layer("head", own, product.forward_flops, product.inputs, product.outputs),
    )


def bert_large() -> tuple[Layer, ...]:
    """BERT-large, uncased, with its pooler (Devlin et al., NAACL 2019)."""
    shape = TransformerShape(
        layers=24, width=1024, feed_forward=4096, vocabulary=30_522, length=512, positions=512 + 2
    )
    table, *blocks, head = transformer(shape)
    normed = Layer("embedding", table.parameters + head.parameters, 0.0, table.inputs, table.outputs)
    return (normed, *blocks, fully_connected("pooler", shape.width, shape.width))


def _norm(shape: TransformerShape) -> int:
    return (1 + shape.biases) * shape.width


def _block(name: str, shape: TransformerShape, attentions: int = 1) -> Layer:
    """Attentions over all tokens and a feed-forward part, each with a normalisation."""
    width, hidden, length = shape.width, shape.feed_forward, shape.length
    keys = width // shape.heads * (shape.key_heads or shape.heads)
    matrices = 2 + shape.gated
    weights = attentions * (2 * width**2 + 2 * width * keys) + matrices * width * hidden
    biases = attentions * (2 * width + 2 * keys) + (matrices - 1) * hidden + width
    own = weights + shape.biases * biases + (attentions + 1) * _norm(shape)
    scores = attentions * 4.0 * length**2 * width  # and the weighted sums of values
    numbers = length * width
    return Layer(name, own, 2.0 * weights * length + scores, numbers, numbers)


Layers = tuple[Layer, ...]


def _classifier(*widths: int, bias: bool = True) -> Layers:
    pairs = enumerate(pairwise(widths), 1)
    return tuple(fully_connected(f"fc{k}", *pair, bias=bias) for k, pair in pairs)


def vgg(*depths: int) -> Layers:
    """VGG with ``depths`` convolutions in its five blocks (Simonyan and Zisserman, ICLR 2015, table 1).

    Column A, 11 layers: 1, 1, 2, 2, 2. Column D, 16 layers: 2, 2, 3, 3, 3.
    """
    layers, entering, size = [], 3, 224
    for block, (leaving, depth) in enumerate(zip((64, 128, 256, 512, 512), depths, strict=True)):
        for k in range(depth):
            layers.append(convolution(f"conv{block + 1}_{k + 1}", (entering, leaving), 3, size))
            entering = leaving
        size //= 2
    return (*layers, *_classifier(512 * 7 * 7, 4096, 4096, 1000))


def overfeat_fast() -> Layers:
    """OverFeat, the fast model (Sermanet et al., ICLR 2014, table 1)."""
    return (
        convolution("conv1", (3, 96), 11, 231, stride=4, padding=0),
        convolution("conv2", (96, 256), 5, 28, padding=0),
        convolution("conv3", (256, 512), 3, 12),
        convolution("conv4", (512, 1024), 3, 12),
        convolution("conv5", (1024, 1024), 3, 12),
        *_classifier(1024 * 6 * 6, 3072, 4096, 1000),
    )


def alexnet() -> Layers:
    """AlexNet with one column (Krizhevsky, arXiv 1404.5997)."""
    return (
        convolution("conv1", (3, 64), 11, 224, stride=4, padding=2),
        convolution("conv2", (64, 192), 5, 27),
        convolution("conv3", (192, 384), 3, 13),
        convolution("conv4", (384, 256), 3, 13),
        convolution("conv5", (256, 256), 3, 13),
        *_classifier(256 * 6 * 6, 4096, 4096, 1000),
    )


def googlenet() -> Layers:
    """GoogLeNet without its auxiliary classifiers (Szegedy et al., CVPR 2015, table 1)."""
    modules: Sequence[tuple[str, int, tuple[int, int, int, int, int, int]]] = (
        ("3a", 28, (64, 96, 128, 16, 32, 32)), ("3b", 28, (128, 128, 192, 32, 96, 64)),
        ("4a", 14, (192, 96, 208, 16, 48, 64)), ("4b", 14, (160, 112, 224, 24, 64, 64)),
        ("4c", 14, (128, 128, 256, 24, 64, 64)), ("4d", 14, (112, 144, 288, 32, 64, 64)),
        ("4e", 14, (256, 160, 320, 32, 128, 128)), ("5a", 7, (256, 160, 320, 32, 128, 128)),
        ("5b", 7, (384, 192, 384, 48, 128, 128)),
    )  # fmt: skip
    layers = [
        convolution("conv1", (3, 64), 7, 224, stride=2),
        convolution("conv2_reduce", (64, 64), 1, 56),
        convolution("conv2", (64, 192), 3, 56),
    ]
    entering = 192
    for name, size, (one, reduce3, three, reduce5, five, pool) in modules:
        branches = (
            convolution("", (entering, one), 1, size),
            convolution("", (entering, reduce3), 1, size), convolution("", (reduce3, three), 3, size),
            convolution("", (entering, reduce5), 1, size), convolution("", (reduce5, five), 5, size),
            convolution("", (entering, pool), 1, size),
        )  # fmt: skip
        entering = one + three + five + pool
        module = put_together(f"inception_{name}", branches)
        layers.append(replace(module, outputs=entering * size**2))
    return (*layers, fully_connected("fc", 1024, 1000))


def resnet(*depths: int) -> Layers:
    """ResNet of bottlenecks with batch normalisation, ``depths`` of them in its four stages.

    Source: He et al., CVPR 2016, table 1; strides on the 3 x 3 layers. 50 layers: 3, 4, 6, 3; 101 layers: 3,
    4, 23, 3.
    """
    normed = partial(convolution, bias=False, norm=True)
    layers = [normed("conv1", (3, 64), 7, 224, stride=2)]
    entering, size = 64, 56
    for stage, (width, blocks) in enumerate(zip((64, 128, 256, 512), depths, strict=True)):
        for block in range(blocks):
            stride = 2 if block == 0 and stage > 0 else 1
            parts = [
                normed("", (entering, width), 1, size),
                normed("", (width, width), 3, size, stride=stride),
                normed("", (width, 4 * width), 1, size // stride),
            ]
            if block == 0:
                parts.insert(0, normed("", (entering, 4 * width), 1, size, stride=stride, padding=0))
            layers.append(put_together(f"conv{stage + 2}_{block + 1}", tuple(parts)))
            entering, size = 4 * width, size // stride
    return (*layers, fully_connected("fc", 2048, 1000))


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
    # 7 hidden layers of 2,048 over speech, as in Das et al., arXiv 1602.06709.
    "cd-dnn": partial(_classifier, 429, *[2048] * 7, 9304, bias=False),
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
