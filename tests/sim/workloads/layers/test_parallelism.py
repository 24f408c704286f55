"""Volumes and balance of Das et al., to the digit: the facts of the sheet on their paper."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.large_models.closed_forms.parallelism import (
    best_groups,
    exchanged_bytes,
    fewest_examples,
    most_nodes,
    operations_per_byte,
)
from paceline.sim.workloads.layers.layer import Layer
from paceline.sim.workloads.layers.presets import PRESETS

WIDTH = 4096
FC = Layer("fc", WIDTH * WIDTH, 2.0 * WIDTH * WIDTH, WIDTH, WIDTH)
ETHERNET, INFINIBAND = 546, 336
"""Operations per byte of the paper's nodes."""


def convolutions(name: str) -> list[Layer]:
    return [layer for layer in PRESETS[name]() if layer.name.startswith("conv")]


@pytest.mark.parametrize(
    ("name", "flops_per_byte", "examples", "nodes"),
    [
        ("overfeat-fast", ETHERNET, 3, 86),
        ("vgg-a", ETHERNET, 1, 256),
        ("overfeat-fast", INFINIBAND, 2, 128),
        ("vgg-a", INFINIBAND, 1, 256),
    ],
)
def test_the_table_of_balance(name: str, flops_per_byte: float, examples: int, nodes: int) -> None:
    layers = convolutions(name)
    assert fewest_examples(layers, flops_per_byte) == examples
    assert most_nodes(layers, 256, flops_per_byte) == nodes


# The sheet counts no biases.
@pytest.mark.parametrize(("name", "ratio"), [("overfeat-fast", 250.7), ("vgg-a", 1218.1)])
def test_operations_per_byte_of_convolutions(name: str, ratio: float) -> None:
    assert operations_per_byte(convolutions(name)) == pytest.approx(ratio, rel=1e-3)


def test_a_fully_connected_layer_has_three_halves_per_example() -> None:
    assert operations_per_byte([FC]) == 1.5


@pytest.mark.parametrize(
    ("nodes", "batch", "overlap", "best", "megabytes"),
    [
        (64, 256, 0.0, 2.00, {2: 8.389, 3: 9.088, 4: 10.486, 8: 17.826, 64: 134.2}),
        (64, 256, 1.0, 2.83, {2: 6.291, 3: 5.942, 4: 6.291, 64: 67.1}),
        (128, 512, 0.0, 4.00, {2: 10.486, 4: 8.389, 8: 10.486}),
        (128, 512, 1.0, 5.66, {4: 6.291, 8: 6.291}),
    ],
)
def test_the_hybrid_optimum(
    nodes: int, batch: int, overlap: float, best: float, megabytes: dict[int, float]
) -> None:
    assert best_groups(FC, nodes, batch, overlap) == pytest.approx(best, abs=5e-3)
    for groups, expected in megabytes.items():
        moved = exchanged_bytes(FC, nodes, batch, groups, overlap) / 1e6
        assert moved == pytest.approx(expected, abs=6e-4 if expected < 50 else 0.06)


def test_pure_model_parallelism_averages_nothing() -> None:
    assert exchanged_bytes(FC, 64, 256, 1) == 2 * 4 * WIDTH * 256
    assert exchanged_bytes(FC, 64, 256, 2) == 2**23


@given(st.integers(2, 9), st.integers(2, 9), st.sampled_from([0.0, 0.5, 1.0]))
def test_the_optimum_is_one(log_nodes: int, log_batch: int, overlap: float) -> None:
    nodes, batch = 2**log_nodes, 2**log_batch
    best = best_groups(FC, nodes, batch, overlap)
    if not 1.01 < best < nodes / 1.01:
        return
    least = exchanged_bytes(FC, nodes, batch, best, overlap)
    assert least == pytest.approx(2 * 4 * WIDTH * math.sqrt(2 * (2 - overlap) * batch * WIDTH / nodes))
    for factor in (1.005, 1 / 1.005):
        assert exchanged_bytes(FC, nodes, batch, best * factor, overlap) > least
