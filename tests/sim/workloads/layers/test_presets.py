"""Layers from shapes: parameters and operations that others have published."""

from __future__ import annotations

import pytest

from paceline.sim.workloads.layers.presets import PRESETS


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
