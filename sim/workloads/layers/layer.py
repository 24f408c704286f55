"""Computation, memory and messages of one layer of a model, from its shape."""

from __future__ import annotations

from dataclasses import dataclass


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
    """

    name: str
    parameters: int
    forward_flops: float
    inputs: int
    outputs: int
    rows: int = 0
    backward_s: float | None = None

    @property
    def by_weights(self) -> float:
        """Cost of the gradient by the weights, in the unit of ``forward_flops``."""
        return self.forward_flops if self.backward_s is None else self.backward_s

    @property
    def flops(self) -> float:
        """Operations of a forward and a backward pass."""
        return 3 * self.forward_flops if self.backward_s is None else self.forward_flops + self.backward_s


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
