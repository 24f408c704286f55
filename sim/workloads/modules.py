"""A torch module as a pure function of one flat vector, parameters first, then buffers; its gradient."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from threading import Lock
from typing import Any

import torch
from torch import Tensor

from ..devices import constants, torch_random
from ..errors import InputError
from .workload import Evaluated, SegmentCallback

Inputs = Tensor | tuple[Tensor, ...] | Mapping[str, Tensor]
"""A batch's inputs of a module: one, several in order, or several by name."""


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Those of a module's forward pass, in order and by name."""
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs if isinstance(inputs, tuple) else (inputs,)), {}


def outputs_of(returned: Any) -> Tensor:
    """The tensor that a module returned, or the ``logits`` of an object, as language models return one."""
    outputs: Tensor = getattr(returned, "logits", returned)
    return outputs


def run_module(module: torch.nn.Module, inputs: Inputs) -> Tensor:
    """Outputs of a module's forward pass."""
    in_order, by_name = arguments(inputs)
    return outputs_of(module(*in_order, **by_name))


def flatten(module: torch.nn.Module) -> Tensor:
    """The trained parameters as one vector [p], in their registered order."""
    return torch.cat([p.detach().reshape(-1) for p in module.parameters() if p.requires_grad])


def trained_parameters(module: torch.nn.Module) -> tuple[tuple[str, tuple[int, ...], int], ...]:
    """(name, shape, first element in ``flatten``) of the trained parameters, in their registered order."""
    trained = [(name, p) for name, p in module.named_parameters() if p.requires_grad]
    starts = accumulate((p.numel() for _, p in trained), initial=0)
    return tuple((name, tuple(p.shape), start) for (name, p), start in zip(trained, starts, strict=False))


def backward_segments(module: torch.nn.Module) -> tuple[tuple[str, int, int], ...]:
    """(layer, start, stop) in the order in which the backward pass finishes them: last layer first.

    Parameters of a layer share a name up to the last dot; they must be registered together.
    """
    segments: list[tuple[str, int, int]] = []
    for name, shape, start in trained_parameters(module):
        layer = name.rpartition(".")[0] or name
        together = segments and segments[-1][0] == layer
        first = segments.pop()[1] if together else start
        segments.append((layer, first, start + math.prod(shape)))
    return tuple(reversed(segments))


@dataclass(frozen=True, eq=False)
class FlatModule:
    """A module as pure functions of x [d] = [parameters, running buffers].

    Attributes:
        start: the module's initial x.
        num_buffers: entries of x at its end that the forward pass updates in training.
        stochastic: in training the outputs depend on torch's random numbers.
        module, running: the module in training mode, and the names of those buffers.
        segments: layers in backward order; the buffers, known after the forward pass, come first.
        parameters: name, shape and first element in x of each trained parameter, in their order.
        train: ``(x [d], inputs) -> outputs, new buffers [num_buffers]``, in training mode.
        train_at: ``(parameters, inputs) -> outputs``, likewise, of a module without running buffers.
        evaluate: ``(x [d], inputs) -> outputs``, in evaluation mode.
        state: ``x [d]`` -> the module's ``state_dict()`` at x, in copies.
    """

    start: Tensor
    num_buffers: int
    stochastic: bool
    module: torch.nn.Module
    running: tuple[str, ...]
    segments: tuple[tuple[str, int, int], ...]
    parameters: tuple[tuple[str, tuple[int, ...], int], ...]
    train_at: Callable[[Sequence[Tensor], Inputs], Tensor]
    train: Callable[[Tensor, Inputs], tuple[Tensor, Tensor]]
    evaluate: Callable[[Tensor, Inputs], Tensor]
    state: Callable[[Tensor], dict[str, Tensor]]


def flatten_module(module: torch.nn.Module, sample: Inputs) -> FlatModule:
    """Take a module apart, and run it once on ``sample`` [b, ...] to find the state that this changes.

    Raises ``InputError`` for nothing to train, values other than float32, or state that cannot be averaged.
    """
    module = _without_counts(copy.deepcopy(module)).train()
    trained: dict[str, Tensor] = {name: p for name, p in module.named_parameters() if p.requires_grad}
    running, stochastic = _what_forward_changes(module, sample)
    _check_trainable(trained, running)
    fixed = {name: p.detach() for name, p in module.named_parameters() if not p.requires_grad}
    fixed |= {name: b.detach() for name, b in module.named_buffers() if name not in running}
    num_parameters = sum(p.numel() for p in trained.values())
    num_buffers = sum(b.numel() for b in running.values())
    parameters_of, buffers_of, fixed_on = _parts(trained), _parts(running), constants(*fixed.values())
    learner, judge = copy.deepcopy(module), copy.deepcopy(module).eval()
    named = module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)
    held_tensors = [id(tensor) for each in named for _, tensor in each]
    tied = len(set(held_tensors)) < len(held_tensors)
    in_use = Lock()  # threads share both modules, which hold one call's tensors at a time

    def call(called: torch.nn.Module, held: dict[str, Tensor], inputs: Inputs) -> Tensor:
        with in_use:
            # Looking for ties takes a while.
            returned = torch.func.functional_call(called, held, *arguments(inputs), tie_weights=tied)
        return outputs_of(returned)

    def tensors_at(x: Tensor, buffers: dict[str, Tensor]) -> dict[str, Tensor]:
        there = dict(zip(fixed, fixed_on(x.device), strict=True))
        own = x[:num_parameters] if running else x  # a slice would add a backward pass
        return {**there, **parameters_of(own), **buffers}

    def train_at(parameters: Sequence[Tensor], inputs: Inputs) -> Tensor:
        there = dict(zip(fixed, fixed_on(parameters[0].device), strict=True))
        return call(learner, {**there, **dict(zip(trained, parameters, strict=True))}, inputs)

    def train(x: Tensor, inputs: Inputs) -> tuple[Tensor, Tensor]:
        buffers = buffers_of(x[num_parameters:].detach().clone()) if running else {}
        held = tensors_at(x, buffers)
        outputs = call(learner, held, inputs)
        # The module writes into the buffers, or replaces them: then the new ones are in ``held``.
        new = [held[name].reshape(-1) for name in running]
        return outputs, torch.cat(new) if new else x.new_empty(0)

    def held_at(x: Tensor) -> dict[str, Tensor]:
        return tensors_at(x, _usable(buffers_of(x[num_parameters:])) if running else {})

    def evaluate(x: Tensor, inputs: Inputs) -> Tensor:
        return call(judge, held_at(x), inputs)

    def state(x: Tensor) -> dict[str, Tensor]:
        return _state(module, held_at(x))

    segments = backward_segments(module)
    if running:
        segments = (("buffers", num_parameters, num_parameters + num_buffers), *segments)
    start = torch.cat([flatten(module), *(b.detach().reshape(-1) for b in running.values())])
    return FlatModule(
        start, num_buffers, stochastic, module, tuple(running), segments,
        trained_parameters(module), train_at, train, evaluate, state,
    )  # fmt: skip


def _usable(buffers: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Running buffers whose variances are not below 0, where an extrapolating scheme may take them."""
    return {
        name: each.clamp_min(0) if name.endswith("running_var") else each for name, each in buffers.items()
    }


def _state(module: torch.nn.Module, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies of the tensors ``held`` in place of the module's; a tied one stands under each of its names."""
    copies = {name: tensor.detach().cpu().clone() for name, tensor in held.items()}
    names = {id(tensor): name for name, tensor in (*module.named_parameters(), *module.named_buffers())}
    there = module.state_dict(keep_vars=True)
    return {name: copies[names[id(tensor)]] for name, tensor in there.items() if id(tensor) in names}


def _check_trainable(trained: dict[str, Tensor], running: dict[str, Tensor]) -> None:
    for name, tensor in {**trained, **running}.items():
        if tensor.dtype != torch.float32:
            raise InputError(f"'{name}' of the model is {tensor.dtype}, not torch.float32; call its .float()")
    if not trained:
        raise InputError("the model has no parameter that requires a gradient")


def _without_counts(module: torch.nn.Module) -> torch.nn.Module:
    """The module, its batch norms without counters of batches, whose updates ``torch.func`` cannot follow.

    Only a batch norm with momentum=None needs the counter: it is refused.
    """
    for name, part in module.named_modules():
        if getattr(part, "track_running_stats", False):
            if getattr(part, "momentum", 0.1) is None:
                raise InputError(f"'{name}' averages over all batches (momentum=None); give it a momentum")
            part.num_batches_tracked = None
    return module


def _parts(tensors: dict[str, Tensor]) -> Callable[[Tensor], dict[str, Tensor]]:
    """A function that cuts a vector into tensors of these names and shapes."""
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    sizes = [shape.numel() for shape in shapes.values()]

    def cut(x: Tensor) -> dict[str, Tensor]:
        # split, not slices: its backward is one concatenation, twice as fast as a padded sum of slices
        parts = zip(shapes.items(), torch.split(x, sizes), strict=True)
        return {name: part.view(shape) for (name, shape), part in parts}

    return cut


def _what_forward_changes(module: torch.nn.Module, sample: Inputs) -> tuple[dict[str, Tensor], bool]:
    """The float buffers that a forward pass in training updates, and whether it draws random numbers."""
    copies = {name: b.detach().clone() for name, b in module.named_buffers()}
    with torch_random(), torch.no_grad():
        before = torch.get_rng_state()
        torch.func.functional_call(module, copies, *arguments(sample))
        stochastic = not torch.equal(before, torch.get_rng_state())
    changed = {name: b for name, b in module.named_buffers() if not torch.equal(copies[name], b)}
    for name, b in changed.items():
        if not b.is_floating_point():
            raise InputError(
                f"the forward pass changes '{name}', a buffer of {b.dtype}, which cannot be averaged"
            )
    return changed, stochastic


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
