"""What a layer sends and receives when nodes share its examples, its parameters, or both.

N nodes work on one batch of MB examples in all. G groups of N / G nodes: inside a group every node owns a
part of the layer's outputs (model parallelism, on MB / G examples); across groups those who own the same part
average its gradients (data parallelism). One group is pure model parallelism, N groups pure data parallelism.

Source: Das et al., arXiv 1602.06709, section 3 (formulas of volumes and balance). Time only: no scheme here
trains so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from paceline.sim.workloads.layers.layer import Layer

SIZE_BYTES: Final = 4
"""Of a number on the wire."""


def check(nodes: int, groups: float) -> None:
    """Raise ``ValueError`` unless there is a node in every group."""
    if not 1 <= groups <= nodes:
        raise ValueError(f"{groups} groups of {nodes} nodes")


def exchanged_bytes(layer: Layer, nodes: int, batch: int, groups: float, overlap: float = 0.0) -> float:
    """Bytes that a node sends and receives for one layer in one step, activations and gradients.

    Args:
        layer: which.
        nodes: N.
        batch: examples in all nodes' batches together.
        groups: G, from 1 to N.
        overlap: 0 where a node sends and receives gradients one after the other, 1 where at once.

    >>> layer = Layer("fc", 4096 * 4096, 0.0, 4096, 4096)
    >>> exchanged_bytes(layer, nodes=64, batch=256, groups=2)  # 2^23
    8388608.0
    """
    check(nodes, groups)
    activations = 2 * SIZE_BYTES * layer.inputs * batch / groups if groups < nodes else 0.0
    gradients = SIZE_BYTES * layer.parameters * (2 - overlap) * groups / nodes if groups > 1 else 0.0
    return activations + gradients


def best_groups(layer: Layer, nodes: int, batch: int, overlap: float = 0.0) -> float:
    """The G, not rounded, for which activations and gradients are the same bytes, and their sum the least.

    For a fully connected layer of ``ofm`` outputs that is sqrt(2 N MB / ((2 - overlap) ofm)).

    >>> best_groups(Layer("fc", 4096 * 4096, 0.0, 4096, 4096), nodes=64, batch=256)
    2.0
    """
    balanced = math.sqrt(2 * layer.inputs * batch * nodes / ((2 - overlap) * layer.parameters))
    return min(max(balanced, 1.0), float(nodes))


def operations_per_byte(layers: Sequence[Layer], overlap: float = 1.0) -> float:
    """Operations of a training step for each byte of gradients, per example of a node (data parallelism)."""
    flops = sum(layer.flops for layer in layers)
    return flops / (SIZE_BYTES * (2 - overlap) * sum(layer.parameters for layer in layers))


def fewest_examples(layers: Sequence[Layer], flops_per_byte: float, overlap: float = 1.0) -> int:
    """The fewest examples per node with which computing takes as long as sending the gradients.

    Args:
        layers: that are trained with data parallelism.
        flops_per_byte: of a node: operations per second over bytes per second of its link.
        overlap: as for ``exchanged_bytes``.
    """
    return max(1, math.ceil(flops_per_byte / operations_per_byte(layers, overlap)))


def most_nodes(layers: Sequence[Layer], batch: int, flops_per_byte: float, overlap: float = 1.0) -> int:
    """The most nodes on which a batch of so many examples in all keeps computing the longer part."""
    return math.ceil(batch / fewest_examples(layers, flops_per_byte, overlap))
