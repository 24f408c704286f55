"""Steps on several nodes: parts by hand."""

from __future__ import annotations

import pytest

from benchmarks.large_models.closed_forms.parallelism import exchanged_bytes
from benchmarks.large_models.closed_forms.scaling import (
    ComputeNode,
    forward_s,
    group_choice,
    speed_up,
    step_time,
)
from paceline.sim.workloads.layers.layer import Layer, fully_connected

NODE = ComputeNode(flops_per_s=1000.0, cores=4, bytes_per_s=100.0)


def conv(parameters: int, flops: float = 100.0, rows: int = 1) -> Layer:
    return Layer("conv", parameters, flops, 1, 1, rows)


def test_cores_share_rows_of_examples_in_rounds() -> None:
    """An example of 3 rows and 100 operations: 0.1 s of 4 cores, on 3 of them one round, on 2 two."""
    layer = conv(1, rows=3)
    assert forward_s(layer, NODE, 1, 3) == pytest.approx(0.1 * 4 / 3)
    assert forward_s(layer, NODE, 1, 2) == pytest.approx(0.1 * 4 * 2 / 3)
    assert forward_s(layer, NODE, 4, 4) == pytest.approx(0.4)


def test_a_product_divides_into_any_number() -> None:
    layer = Layer("fc", 1, 100.0, 1, 1)
    assert forward_s(layer, NODE, 1, 3) == pytest.approx(0.1 * 4 / 3)


def test_one_node_only_computes() -> None:
    parts = step_time([conv(1000, rows=4)], NODE, 1, 8)
    assert parts.computing_s == pytest.approx(2.4)
    assert parts.exchanging_s == parts.waiting_s == 0.0


def test_what_the_next_forward_pass_waits_for() -> None:
    """4 examples of 3 rows on each of two nodes, 3 cores: a forward pass of each layer takes 0.4 4/3 s, f.

    Backward from 0 on: the last layer's gradient is there at f, the first one's at 3 f; averaging takes 2 s
    (25 parameters at 4 bytes, both ways) and 0.96 s. The last layer is averaged at f + 2, the first one
    0.96 s later: then f forward, and f.
    """
    layers = [conv(12, rows=3), conv(25, rows=3)]
    one = ComputeNode(1000.0, 4, 100.0, overlap=0.0)
    f = 0.4 * 4 / 3
    parts = step_time(layers, one, 2, 8)
    assert parts.computing_s == pytest.approx(6 * f)
    averaged = max(f + 2.0, 3 * f) + 0.96
    assert parts.waiting_s == pytest.approx(averaged - 4 * f)
    fast = ComputeNode(1000.0, 4, 1e9)
    assert step_time(layers, fast, 2, 8).waiting_s == 0.0


def test_computing_waits_for_what_products_exchange() -> None:
    layer = fully_connected("fc", 64, 64, bias=False)
    node = ComputeNode(1e6, 5, 1e4, latency_s=0.01)
    groups = group_choice(layer, 8, 32, 0.0)
    assert exchanged_bytes(layer, 8, 32, groups) == min(
        exchanged_bytes(layer, 8, 32, g) for g in (1, 2, 4, 8)
    )
    rounds = 2 * (8 // groups - 1) + 2 * (groups - 1)
    expected = exchanged_bytes(layer, 8, 32, groups) / 1e4 + rounds * 0.01
    assert step_time([layer], node, 8, 32).exchanging_s == pytest.approx(expected)


def test_speed_up_is_the_ratio_of_steps() -> None:
    layers = [conv(1, rows=64)]
    assert speed_up(layers, NODE, 1, 80) == 1.0
    assert speed_up(layers, ComputeNode(1000.0, 5, 1e12), 4, 80) == pytest.approx(4 * 4 / 5)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="9 nodes and a batch of 8"):
        step_time([conv(1)], NODE, 9, 8)
    with pytest.raises(ValueError, match="1 core"):
        step_time([conv(1)], ComputeNode(1.0, 1, 1.0), 2, 8)
