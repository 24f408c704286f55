"""Where a vector is cut that stands for a model's layers."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.workloads.layers.layer import (
    UNITS,
    Layer,
    forward_fractions,
    layer_segments,
    ready_fractions,
)
from paceline.sim.workloads.layers.presets import PRESETS


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=40).filter(any), st.integers(40, 10_000))
def test_segments_cover_a_vector_in_backward_order(sizes: list[int], length: int) -> None:
    layers = [Layer(str(k), size, 1.0, 1, 1) for k, size in enumerate(sizes)]
    segments = layer_segments(length, layers)
    assert [name for name, _, _ in segments] == [str(k) for k in reversed(range(len(sizes))) if sizes[k]]
    assert segments[0][2] == length
    assert segments[-1][1] == 0
    for later, earlier in pairwise(segments):
        assert later[1] == earlier[2]
    assert all(stop > start for _, start, stop in segments)


@pytest.mark.parametrize("name", PRESETS)
def test_every_layer_has_its_share(name: str) -> None:
    layers = PRESETS[name]()
    total = sum(layer.parameters for layer in layers)
    share = {layer.name: layer.parameters / total for layer in layers}
    for each, start, stop in layer_segments(UNITS, layers):
        assert (stop - start) / UNITS == pytest.approx(share[each], abs=0.02 * share[each] + 1 / UNITS)


def test_gradients_are_ready_as_their_layers_are_passed() -> None:
    """Forward 1 + 3, backward 6 + 2: of the last layer's 6 its weights take the first half."""
    layers = [Layer("first", 10, 1.0, 1, 1), Layer("last", 10, 3.0, 1, 1)]
    assert ready_fractions(layers) == (7 / 12, 1.0)


def test_a_layer_that_is_computed_again_has_its_gradient_later() -> None:
    """Forward 1 + 3; backward 3 again, 3 by the weights and 3 by the inputs, then 1, 1 and 1."""
    layers = [Layer("first", 10, 1.0, 1, 1, recomputed=True), Layer("last", 10, 3.0, 1, 1, recomputed=True)]
    assert ready_fractions(layers) == (10 / 16, 1.0)
    assert forward_fractions(layers) == (3 / 16, 1 / 16)


def test_layers_without_parameters_take_time() -> None:
    layers = [Layer("first", 10, 1.0, 1, 1), Layer("pool", 0, 2.0, 1, 1), Layer("last", 10, 1.0, 1, 1)]
    assert ready_fractions(layers) == (5 / 12, 1.0)


def test_the_gradient_of_a_timed_layer_is_there_when_it_was() -> None:
    """Forward 1 + 2 s; backward the last layer 4 s, the first one 3 s."""
    layers = [Layer("first", 1, 1.0, 0, 0, backward_s=3.0), Layer("last", 1, 2.0, 0, 0, backward_s=4.0)]
    assert ready_fractions(layers) == pytest.approx((7 / 10, 1.0))
    assert forward_fractions(layers) == pytest.approx((2 / 10, 1 / 10))
