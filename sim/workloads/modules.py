"""A torch module as a loss on one flat parameter vector."""

from __future__ import annotations

from collections.abc import Callable

import torch

Tensor = torch.Tensor


def flatten(module: torch.nn.Module) -> Tensor:
    """The module's parameters as one vector [d], in their registered order."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def apply_flat(module: torch.nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """``f(x [d], inputs) -> outputs``: the module with its parameters taken from x."""
    names = [name for name, _ in module.named_parameters()]
    shapes = [p.shape for p in module.parameters()]
    sizes = [p.numel() for p in module.parameters()]

    def forward(x: Tensor, inputs: Tensor) -> Tensor:
        # split, not slices: its backward is one concatenation, twice as fast as a padded sum of slices
        parts = torch.split(x, sizes)
        parameters = {n: p.view(s) for n, p, s in zip(names, parts, shapes, strict=True)}
        outputs: Tensor = torch.func.functional_call(module, parameters, (inputs,))
        return outputs

    return forward


def backward_segments(module: torch.nn.Module) -> tuple[tuple[str, int, int], ...]:
    """(layer, start, stop) in the order in which the backward pass finishes them: last layer first.

    A layer is what shares a name up to the last dot; its parameters must be registered together.
    """
    segments: list[tuple[str, int, int]] = []
    offset = 0
    for name, p in module.named_parameters():
        layer = name.rpartition(".")[0] or name
        if segments and segments[-1][0] == layer:
            segments[-1] = (layer, segments[-1][1], offset + p.numel())
        else:
            segments.append((layer, offset, offset + p.numel()))
        offset += p.numel()
    return tuple(reversed(segments))
