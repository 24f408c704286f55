"""Layers from shapes: parameters and operations that others have published."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.workloads.layers.presets import PRESETS, TransformerShape, transformer


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("alexnet", 61_100_840),  # as torchvision's alexnet
        ("resnet-50", 25_557_032),  # as torchvision's resnet50
        ("resnet-101", 44_549_160),  # as torchvision's resnet101
        ("vgg-a", 132_863_336),  # as torchvision's vgg11
        ("vgg-16", 138_357_544),  # as torchvision's vgg16
        ("googlenet", 6_998_552),  # as the original model without auxiliary classifiers
        ("bert-large", 335_141_888),  # as bert-large-uncased
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        ("llama-2-7b", 6_738_415_616),
        ("llama-2-13b", 13_015_864_320),
        ("llama-2-70b", 68_976_648_192),
        ("llama-3-8b", 8_030_261_248),
    ],
)
def test_a_model_has_the_parameters_that_are_known_of_it(name: str, parameters: int) -> None:
    assert sum(layer.parameters for layer in PRESETS[name]()) == parameters


@pytest.mark.parametrize(
    ("name", "kind", "weights", "products"),
    [
        # Multiplications of the sheet on Das et al., of an image; weights without biases.
        ("vgg-a", "conv", 9.218e6, 7.485e9),
        ("overfeat-fast", "conv", 15.98e6, 2.671e9),
        ("vgg-a", "fc", 123.6e6, 123.6e6),
        ("overfeat-fast", "fc", 129.9e6, 129.9e6),
        ("cd-dnn", "fc", 45.1e6, 45.1e6),
        # He et al., table 1: 3.8 billion multiplications, strides elsewhere; with these 4.09.
        ("resnet-50", "conv", 23.5e6, 4.087e9),
    ],
)
def test_operations_are_those_of_the_published_tables(
    name: str, kind: str, weights: float, products: float
) -> None:
    layers = [layer for layer in PRESETS[name]() if layer.name.startswith(kind)]
    assert sum(layer.parameters for layer in layers) == pytest.approx(weights, rel=2e-3)
    assert sum(layer.forward_flops for layer in layers) / 2 == pytest.approx(products, rel=1e-3)


def test_a_transformer_computes_two_operations_for_each_parameter_and_token() -> None:
    """Beside attention; the table is not multiplied."""
    layers = PRESETS["llama-2-7b"]()
    length = 4096
    attention = 32 * 4 * length**2 * 4096
    dense = sum(layer.parameters for layer in layers[1:]) * 2 * length
    assert sum(layer.forward_flops for layer in layers) - attention == pytest.approx(dense, rel=1e-4)


@pytest.mark.parametrize("name", PRESETS)
def test_layers_follow_each_other(name: str) -> None:
    layers = PRESETS[name]()
    assert len({layer.name for layer in layers}) == len(layers)
    assert all(layer.inputs > 0 and layer.outputs > 0 for layer in layers)


BASE = TransformerShape(
    layers=6, decoder_layers=6, width=512, feed_forward=2048, vocabulary=32_768, length=32, biases=True
)
"""TransformerShape-base (Vaswani et al., table 3), with a joint vocabulary."""


def count(shape: TransformerShape) -> int:
    return sum(layer.parameters for layer in transformer(shape))


def test_the_shape_of_a_known_model_has_its_parameters() -> None:
    small = TransformerShape(
        layers=12, width=768, feed_forward=3072, vocabulary=50_257, length=512, positions=1024
    )
    assert count(small) == 124_439_808  # GPT-2
    bert = TransformerShape(
        layers=24, width=1024, feed_forward=4096, vocabulary=30_522, length=384, positions=514
    )
    assert count(bert) == 335_141_888 - 1024**2 - 1024  # without its pooler
    assert count(BASE) == 44_140_544 + 32_768 * 512  # torch.nn.Transformer's default, and the table


def test_a_table_that_is_not_tied_is_a_matrix_more_and_ready_first() -> None:
    tied, apart = (transformer(BASE.model_copy(update={"tied": tied})) for tied in (True, False))
    assert apart[-1].parameters - tied[-1].parameters == 32_768 * 512
    assert [layer.name for layer in apart] == [layer.name for layer in tied]
    assert sum(layer.flops for layer in apart) == sum(layer.flops for layer in tied)


def test_a_block_counts_by_hand() -> None:
    """Width 4, 2 heads that share keys of width 2, 3 matrices of 4 x 6; 5 tokens."""
    shape = TransformerShape(
        layers=1, width=4, feed_forward=6, vocabulary=7, length=5, heads=2, key_heads=1, gated=True,
        biases=False, tied=False,
    )  # fmt: skip
    table, block, head = transformer(shape)
    weights = 2 * 16 + 2 * 8 + 3 * 24
    assert (table.parameters, block.parameters, head.parameters) == (28, weights + 8, 28 + 4)
    assert block.forward_flops == 2 * 5 * weights + 4 * 5**2 * 4
    assert (table.forward_flops, head.forward_flops) == (0, 2 * 5 * 28)


@settings(max_examples=25)
@given(st.integers(1, 3), st.integers(0, 3), st.integers(1, 4), st.integers(1, 20), st.booleans())
def test_torch_builds_the_same_blocks(
    layers: int, decoders: int, heads: int, hidden: int, biases: bool
) -> None:
    width, vocabulary = 4 * heads, 11
    shape = TransformerShape(
        layers=layers, decoder_layers=decoders, width=width, feed_forward=hidden, vocabulary=vocabulary,
        length=3, biases=biases, heads=heads,
    )  # fmt: skip
    norm = torch.nn.LayerNorm(width, bias=biases)
    modules: list[torch.nn.Module] = [
        torch.nn.TransformerEncoderLayer(width, heads, hidden, bias=biases)
    ] * layers + [norm]
    if decoders:
        modules += [torch.nn.TransformerDecoderLayer(width, heads, hidden, bias=biases)] * decoders + [norm]
    own = sum(each.numel() for module in modules for each in module.parameters())
    assert count(shape) == own + vocabulary * width
