"""Layer boundaries in a vector that stands for a model, and the times of the layers' gradients."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Final

from .layer import Layer

UNITS: Final = 8192
"""Elements that stand for an untrained model: each layer's share is right to one of them."""


def layer_segments(length: int, layers: Sequence[Layer]) -> tuple[tuple[str, int, int], ...]:
    """(name, start, stop) of the layers with parameters in a vector [length], in backward order.

    Each has its share of the vector, to less than an element, and at least one; ``length`` must be at least
    the number of layers.

    >>> layers = [Layer("small", 1, 0.0, 0, 0), Layer("large", 999, 0.0, 0, 0)]
    >>> layer_segments(100, layers)
    (('large', 1, 100), ('small', 0, 1))
    """
    owners = [layer for layer in layers if layer.parameters]
    total = sum(layer.parameters for layer in owners)
    spare = length - len(owners)  # beyond one for each
    exact = accumulate((max(0.0, layer.parameters / total * length - 1) for layer in owners), initial=0.0)
    ends = list(exact)
    cuts = [k + round(end / max(ends[-1], 1e-300) * spare) for k, end in enumerate(ends)]
    cuts[-1] = length
    parts = [(owner.name, *cut) for owner, cut in zip(owners, pairwise(cuts), strict=True)]
    return tuple(reversed(parts))


def ready_fractions(layers: Sequence[Layer]) -> tuple[float, ...]:
    """Completion of each layer's gradient, as a fraction of a gradient's time, in backward order.

    Layers without parameters are left out. By operations the forward pass takes a third of the time; in the
    backward pass each layer has its share of them. A layer's gradient by its weights is computed before that
    by its inputs, and counts as half of it. Timed layers have their own times.
    """
    total = sum(layer.flops for layer in layers)
    if not total:
        return tuple(1.0 for layer in layers if layer.parameters)
    done, fractions = sum(layer.forward_flops for layer in layers), []
    for layer in reversed(layers):
        if layer.parameters:
            fractions.append(min(1.0, (done + layer.by_weights) / total))
        done += layer.flops - layer.forward_flops
    return (*fractions[:-1], 1.0)


def forward_fractions(layers: Sequence[Layer]) -> tuple[float, ...]:
    """The forward pass of each layer with parameters, as a share of a gradient's time, in backward order.

    Layers without parameters go with the one before them, those in front of all others with the first.
    """
    total = sum(layer.flops for layer in layers)
    shares, owned = [0.0], False
    for layer in layers:
        if layer.parameters and owned:
            shares.append(0.0)
        owned = owned or layer.parameters > 0
        shares[-1] += layer.forward_flops / total if total else 0.0
    return tuple(reversed(shares))
