"""How much faster N nodes train than one, with synchronous SGD on one batch.

Convolutions are data parallel: a node has batch / N examples, a thread of communication averages each
layer's gradient while earlier layers go backward and the next step goes forward, layer by layer, up to that
one. Fully connected layers are hybrid (``parallelism.py``), in the number of groups that exchanges the
fewest bytes; computing waits for what they exchange. With several nodes a core of each carries messages and
does not compute.

A convolution's examples times rows of outputs are shared among the cores, so that few of them on many cores
leave some idle in the last round: 4 examples of 12 rows take 31 cores 2 rounds, as 62 would.

Source: Das et al., arXiv 1602.06709, section 3. Cache and register blocking are not modelled: what a core
computes in a second is given.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.sim.workloads.layers.layer import Layer

from .parallelism import SIZE_BYTES, exchanged_bytes


@dataclass(frozen=True)
class ComputeNode:
    """One node of a cluster.

    Attributes:
        flops_per_s: of all its cores together, with examples enough for all of them.
        cores: how many there are.
        bytes_per_s: of its link, each way.
        latency_s: of a message.
        overlap: 0 where it sends and receives one after the other, 1 where at once.
    """

    flops_per_s: float
    cores: int
    bytes_per_s: float
    latency_s: float = 0.0
    overlap: float = 0.0


@dataclass(frozen=True)
class StepSeconds:
    """What one step takes, in seconds.

    Attributes:
        computing_s: forward and backward.
        exchanging_s: of fully connected layers, for which computing waits.
        waiting_s: for gradients of convolutions that are averaged too late for the next forward pass.
    """

    computing_s: float
    exchanging_s: float = 0.0
    waiting_s: float = 0.0

    @property
    def total_s(self) -> float:
        """All together."""
        return self.computing_s + self.exchanging_s + self.waiting_s


def forward_s(layer: Layer, node: ComputeNode, examples: float, cores: int) -> float:
    """Seconds that a forward pass of a layer takes on some of a node's cores; backward: twice as many."""
    whole_s = layer.forward_flops * examples / node.flops_per_s * node.cores
    if not layer.rows:
        return whole_s / cores
    items = examples * layer.rows
    return whole_s * math.ceil(items / cores) / items


def group_choice(layer: Layer, nodes: int, batch: int, overlap: float) -> int:
    """The number of groups, a divisor of ``nodes``, in which a layer exchanges the fewest bytes."""
    divisors = (groups for groups in range(1, nodes + 1) if nodes % groups == 0)
    return min(divisors, key=lambda groups: exchanged_bytes(layer, nodes, batch, groups, overlap))


def step_time(layers: Sequence[Layer], node: ComputeNode, nodes: int, batch: int) -> StepSeconds:
    """One step of ``nodes`` nodes on a batch of so many examples in all.

    Raises:
        ValueError: there is not an example for every node, or no core left to compute.
    """
    if not 1 <= nodes <= batch:
        raise ValueError(f"{nodes} nodes and a batch of {batch}")
    cores = node.cores if nodes == 1 else node.cores - 1
    if cores < 1:
        raise ValueError(f"{node.cores} core, which carries messages")
    passes = [forward_s(layer, node, batch / nodes, cores) for layer in layers]
    computing_s = 3 * sum(passes)
    if nodes == 1:
        return StepSeconds(computing_s)
    exchanging_s = sum(_hybrid_s(layer, node, nodes, batch) for layer in layers if not layer.rows)
    averaged_s = [_averaging_s(layer, node, nodes) if layer.rows else 0.0 for layer in layers]
    return StepSeconds(computing_s, exchanging_s, _waiting_s(passes, averaged_s))


def speed_up(layers: Sequence[Layer], node: ComputeNode, nodes: int, batch: int) -> float:
    """How many times as fast as one of them ``nodes`` nodes do a step on the same batch."""
    return step_time(layers, node, 1, batch).total_s / step_time(layers, node, nodes, batch).total_s


def _hybrid_s(layer: Layer, node: ComputeNode, nodes: int, batch: int) -> float:
    """Activations within groups and gradients across them: part-reduce and part-broadcast, as rings."""
    groups = group_choice(layer, nodes, batch, node.overlap)
    rounds = 2 * (nodes // groups - 1) + 2 * (groups - 1)
    num_bytes = exchanged_bytes(layer, nodes, batch, groups, node.overlap)
    return num_bytes / node.bytes_per_s + rounds * node.latency_s


def _averaging_s(layer: Layer, node: ComputeNode, nodes: int) -> float:
    """Seconds that averaging a data parallel layer's gradient among all nodes takes, as a ring."""
    num_bytes = SIZE_BYTES * layer.parameters * (2 - node.overlap)
    return num_bytes / node.bytes_per_s + 2 * (nodes - 1) * node.latency_s


def _waiting_s(passes: Sequence[float], averaged_s: Sequence[float]) -> float:
    """How much later a forward pass ends that waits, layer by layer, for gradients averaged one by one.

    Args:
        passes: seconds of each layer's forward pass, in forward order; backward is twice that, by weights
        first. averaged_s: seconds of averaging each layer's gradient.
    """
    now_s = free_s = 0.0
    ready_s = [0.0] * len(passes)
    for number in reversed(range(len(passes))):
        free_s = max(free_s, now_s + passes[number]) + averaged_s[number]
        ready_s[number] = free_s if averaged_s[number] else 0.0
        now_s += 2 * passes[number]
    without_s = now_s + sum(passes)
    for ready, forward in zip(ready_s, passes, strict=True):
        now_s = max(now_s, ready) + forward
    return max(0.0, now_s - without_s)
