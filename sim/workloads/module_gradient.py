"""The gradient of a module's loss at one vector, by the module itself.

``sim.workloads.modules`` has the module as a pure function, which ``torch.func`` can batch over workers. A
single gradient is faster this way: the parameters become views of the vector, and each one's gradient is
known as soon as the backward pass has made it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock

import torch
from torch import Tensor

from .workload import Evaluated, SegmentCallback

ModuleLoss = Callable[[torch.nn.Module, Tensor, Tensor], Tensor]


class ModuleGradient:
    """A function of a vector [d] = [parameters, running buffers] and a batch, both on ``device``.

    The module is in training mode, and is copied; ``running`` names its running buffers, and
    ``loss(module, inputs, targets)`` is the mean loss, a scalar.
    """

    def __init__(
        self, module: torch.nn.Module, running: Sequence[str], loss: ModuleLoss, device: torch.device
    ) -> None:
        self._module = copy.deepcopy(module).to(device)
        self._loss = loss
        self._parameters = [p for p in self._module.parameters() if p.requires_grad]
        buffers = dict(self._module.named_buffers())
        everywhere = list(self._module.named_buffers(remove_duplicate=False))
        self._places = [[_place(self._module, n) for n, b in everywhere if b is buffers[r]] for r in running]
        shaped = [*self._parameters, *(buffers[name] for name in running)]
        self._shapes = [each.shape for each in shaped]
        self._sizes = [each.numel() for each in shaped]
        self._starts = [sum(self._sizes[:i]) for i in range(len(shaped))]
        self._in_use = Lock()
        self._hooked = False
        self._report: Callable[[int, Tensor], None] | None = None

    def __call__(
        self, x: Tensor, inputs: Tensor, targets: Tensor, on_segment: SegmentCallback | None = None
    ) -> Evaluated:
        """The gradient [d] at ``x`` [d], where that of buffers is old value minus new.

        ``on_segment``, if given, is called during the backward pass and in its thread, once for each tensor
        of the model that the loss depends on, and for each running buffer.
        """
        with self._in_use:
            parts = self._load(x)
            loss = self._loss(self._module, inputs, targets)
            moved = [
                old.reshape(-1) - getattr(*places[0]).detach().reshape(-1)
                for old, places in zip(parts[len(self._parameters) :], self._places, strict=True)
            ]
            value = loss.detach().view(1)
            if on_segment is not None:
                return self._in_segments(Evaluated(torch.empty_like(x), value), loss, moved, on_segment)
            gradients = torch.autograd.grad(loss, self._parameters, materialize_grads=True)
            return Evaluated(torch.cat([*(each.reshape(-1) for each in gradients), *moved]), value)

    def _load(self, x: Tensor) -> list[Tensor]:
        """Set the module's tensors to ``x``; returns the parts of x."""
        pieces = torch.split(x.detach(), self._sizes)
        parts = [piece.view(shape) for piece, shape in zip(pieces, self._shapes, strict=True)]
        for parameter, part in zip(self._parameters, parts, strict=False):
            parameter.data = part
        for part, places in zip(parts[len(self._parameters) :], self._places, strict=True):
            buffer = part.clone()  # the module may write into it
            for owner, name in places:
                setattr(owner, name, buffer)
        return parts

    def _in_segments(
        self, so_far: Evaluated, loss: Tensor, moved: Sequence[Tensor], on_segment: SegmentCallback
    ) -> Evaluated:
        if not self._hooked:
            self._hooked = True
            for number, parameter in enumerate(self._parameters):
                parameter.register_hook(partial(self._in_backward, number))  # type: ignore[no-untyped-call]
        pieces = torch.split(so_far.value, self._sizes)

        def report(number: int, value: Tensor) -> None:
            pieces[number].copy_(value.reshape(-1))
            on_segment(self._starts[number], self._starts[number] + self._sizes[number], so_far)

        self._report = report
        try:
            for number, value in enumerate(moved, len(self._parameters)):
                report(number, value)
            gradients: Sequence[Tensor | None] = torch.autograd.grad(
                loss, self._parameters, allow_unused=True
            )
        finally:
            self._report = None
        for piece, gradient in zip(pieces, gradients, strict=False):
            if gradient is None:
                piece.zero_()
        return so_far

    def _in_backward(self, number: int, value: Tensor) -> None:
        """A hook: the gradient of one tensor is known; reported if segments are wanted."""
        if self._report is not None:
            self._report(number, value)


def _place(module: torch.nn.Module, name: str) -> tuple[torch.nn.Module, str]:
    owner, _, last = name.rpartition(".")
    return module.get_submodule(owner), last
