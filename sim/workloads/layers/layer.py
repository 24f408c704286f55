"""Computation, memory and messages of one layer of a model, from its shape; its place in a vector."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final


@dataclass(frozen=True)
class Layer:
    """One layer, per example (an image, a frame, a sequence).

    Attributes:
        parameters: number of its own trained numbers, weights and others.
        forward_flops: floating-point operations of a forward pass; a multiplication with its addition counts
            as two. A backward pass takes twice as many: gradients by inputs and by weights. Seconds, where
            the layer was timed.
        inputs, outputs: numbers of the input and of the output.
        rows: of an example's outputs, which cores share between them; 0: a product, cut anywhere.
        backward_s: of a timed layer, until its gradient by the weights is complete; None: by operations.
        recomputed: whether its forward pass is computed again just before its backward pass.
    """

    name: str
    parameters: int
    forward_flops: float
    inputs: int
    outputs: int
    rows: int = 0
    backward_s: float | None = None
    recomputed: bool = False

    @property
    def by_weights(self) -> float:
        """Cost until the gradient by the weights is complete, in the unit of ``forward_flops``."""
        return self.forward_flops * (1 + self.recomputed) if self.backward_s is None else self.backward_s

    @property
    def flops(self) -> float:
        """Operations of a forward and a backward pass."""
        backward = self.forward_flops * (2 + self.recomputed) if self.backward_s is None else self.backward_s
        return self.forward_flops + backward


def convolution(
    name: str,
    channels: tuple[int, int],
    kernel: int,
    size: int,
    *,
    stride: int = 1,
    padding: int | None = None,
    bias: bool = True,
    norm: bool = False,
) -> Layer:
    """A convolution over images of ``size`` x ``size``, its ``channels`` (in, out).

    The default padding keeps the size at stride 1 (odd kernels). ``norm``: a batch normalisation follows,
    with a scale and a shift for each output channel.

    >>> layer = convolution("conv", (3, 64), 3, 224)
    >>> layer.parameters, layer.forward_flops / 2  # multiplications of weights
    (1792, 86704128.0)
    """
    entering, leaving = channels
    padding = kernel // 2 if padding is None else padding
    out = (size + 2 * padding - kernel) // stride + 1
    weights = entering * leaving * kernel**2
    own = weights + leaving * (bias + 2 * norm)
    return Layer(name, own, 2.0 * weights * out**2, entering * size**2, leaving * out**2, rows=out)


def fully_connected(name: str, entering: int, leaving: int, *, bias: bool = True, rows: int = 1) -> Layer:
    """A matrix product; ``rows``: number of passes of an example (the tokens of a sequence)."""
    weights = entering * leaving
    return Layer(name, weights + bias * leaving, 2.0 * weights * rows, entering * rows, leaving * rows)


def put_together(name: str, parts: tuple[Layer, ...]) -> Layer:
    """Join several layers, one after another or side by side on the same inputs, to one."""
    parameters = sum(part.parameters for part in parts)
    forward_flops = sum(part.forward_flops for part in parts)
    return Layer(name, parameters, forward_flops, parts[0].inputs, parts[-1].outputs, parts[-1].rows)


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


def equal_segments(length: int, number: int) -> tuple[tuple[str, int, int], ...]:
    """Cut a gradient [length] into ``number`` parts, equal to within an element, the last elements first."""
    parts = pairwise([k * length // number for k in range(number + 1)] if number else [])
    return tuple((f"bucket {k}", start, stop) for k, (start, stop) in enumerate(reversed([*parts])))


def ready_fractions(layers: Sequence[Layer]) -> tuple[float, ...]:
    """Completion of each layer's gradient, as a fraction of a gradient's time, in backward order.

    Layers without parameters are left out. By operations the forward pass takes a third of the time, a
    quarter where it is computed again; in the backward pass each layer has its share of them. A layer's
    gradient by its weights is computed before that by its inputs, and counts as half of both. Timed layers
    have their own times.
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
