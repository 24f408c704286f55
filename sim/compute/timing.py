"""Timing on this device, warmed up, repeated, and robust against disturbances; a model's layers.

A layer is a module with its own parameters. Forward it lasts until the next one begins; backward from the
moment at which the layer behind it has its gradient until it has its own, which can then be sent. So modules
without parameters count with a neighbour, and all layers together are the time of a gradient.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Final

import torch
from torch import Tensor, nn

from ..errors import InputError, quote

Timer = Callable[[Callable[[], object]], float]
"""Runs a callable once and returns its duration in seconds."""

WARM_UP_RUNS: Final = 5
"""Runs that do not count: caches, allocators and kernels that are compiled at first use."""
MIN_RUNS: Final = 20
MAX_RUNS: Final = 1000
ENOUGH_S: Final = 1.0
"""Total seconds after which ``MIN_RUNS`` are enough."""


def typical_times_s(runs: Sequence[Callable[[], object]], timer: Timer) -> list[float]:
    """Median durations: half of the measurements may be disturbed without moving them far.

    The runs are timed in turn: a temporary slowdown of the device touches all of them alike.
    """
    for run in runs:
        for _ in range(WARM_UP_RUNS):
            timer(run)
    taken: list[list[float]] = [[] for _ in runs]
    while not all(map(_enough, taken)):
        for run, times in zip(runs, taken, strict=True):
            if not _enough(times):
                times.append(timer(run))
    return [statistics.median(times) for times in taken]


def _enough(taken_s: Sequence[float]) -> bool:
    return len(taken_s) >= MIN_RUNS and (len(taken_s) >= MAX_RUNS or sum(taken_s) >= ENOUGH_S)


def device_name(device: torch.device) -> str:
    """A human-readable name of a device: a GPU's model, else the kind of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def instant(device: torch.device) -> Any:
    """An event on a GPU, whose work outlives the call; the host's monotonic clock elsewhere."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def between_s(begin: Any, end: Any) -> float:
    """Seconds between two instants of a device."""
    if isinstance(begin, float):
        return float(end - begin)
    end.synchronize()
    return float(begin.elapsed_time(end)) / 1000


def timer_of(device: torch.device) -> Timer:
    """A timer by the instants of a device."""

    def timer(run: Callable[[], object]) -> float:
        begin = instant(device)
        run()
        return between_s(begin, instant(device))

    return timer


RUNS: Final = 50
"""Gradients that count; of each part the median of them."""

OutputLoss = Callable[[Tensor, Tensor], Tensor]
Instants = dict[tuple[str, str], Any]
"""By "forward" or "backward" and the name of a layer."""


@dataclass(frozen=True)
class LayerTime:
    """Seconds of a batch in one module; of its trained parameters, shared ones count in the first module."""

    name: str
    parameters: int
    forward_s: float
    backward_s: float


def time_layers(model: nn.Module, loss: OutputLoss, inputs: Tensor, targets: Tensor) -> tuple[LayerTime, ...]:
    """Time the layers of a model, in the order of a forward pass; leaves the last pass's gradients in it.

    ``loss(outputs, targets)`` is one number. ``InputError``: no trained parameters, or an unused layer.
    """
    if not inputs.numel():
        raise InputError("inputs: must be a batch of at least one example")
    owners = _owners(model, _called(model, inputs))
    if not owners:
        raise InputError("the model has no parameters that are trained")
    noted: Instants = {}

    def begins(name: str, *_: Any) -> None:
        if ("forward", name) not in noted:
            noted["forward", name] = instant(inputs.device)

    def ready(name: str, *_: Any) -> None:
        noted["backward", name] = instant(inputs.device)

    handles = []
    for name, parameters in owners.items():
        handles.append(model.get_submodule(name).register_forward_pre_hook(partial(begins, name)))
        for each in parameters:
            hook = each.register_post_accumulate_grad_hook(partial(ready, name))  # type: ignore[no-untyped-call]
            handles.append(hook)
    try:
        passes = [_one_pass(model, loss, inputs, targets, noted, owners) for _ in range(WARM_UP_RUNS + RUNS)]
    finally:
        for handle in handles:
            handle.remove()
    counted = passes[WARM_UP_RUNS:]
    return tuple(
        LayerTime(
            name or type(model).__name__,
            sum(each.numel() for each in owners[name]),
            statistics.median(each[name][0] for each in counted),
            statistics.median(each[name][1] for each in counted),
        )
        for name in counted[-1]
    )


def _called(model: nn.Module, inputs: Tensor) -> set[str]:
    """The modules called in a forward pass; parameters of others are used by their parents."""
    called = set[str]()
    handles = [
        module.register_forward_pre_hook(lambda *_, name=name: called.add(name))
        for name, module in model.named_modules()
    ]
    try:
        with torch.no_grad():
            model(inputs)
    finally:
        for handle in handles:
            handle.remove()
    return called


def _owners(model: nn.Module, called: Collection[str]) -> dict[str, list[nn.Parameter]]:
    """The trained parameters of each layer; those of a module that is not called are its parent's."""
    seen, owners = set[int](), dict[str, list[nn.Parameter]]()
    for name, module in model.named_modules():
        own = [
            each for each in module.parameters(recurse=False) if each.requires_grad and id(each) not in seen
        ]
        seen.update(map(id, own))
        while name not in called:
            name = name.rpartition(".")[0]
        if own:
            owners.setdefault(name, []).extend(own)
    return owners


def _one_pass(
    model: nn.Module, loss: OutputLoss, inputs: Tensor, targets: Tensor, noted: Instants, names: Iterable[str]
) -> dict[str, tuple[float, float]]:
    """(forward, backward) seconds by layer, in the order of the forward pass."""
    model.zero_grad(set_to_none=True)
    noted.clear()
    begin = instant(inputs.device)
    outputs: object = loss(model(inputs), targets)
    middle = instant(inputs.device)
    if not isinstance(outputs, Tensor) or outputs.numel() != 1 or not outputs.requires_grad:
        raise InputError("loss: must return one number with a gradient, a tensor, outside torch.no_grad()")
    outputs.backward()  # type: ignore[no-untyped-call]
    if any(("backward", name) not in noted for name in names):
        alone = (name for name, each in model.named_parameters() if each.requires_grad and each.grad is None)
        raise InputError(f"parameter {quote(next(alone))} takes no part in the model's output")
    order = [name for kind, name in noted if kind == "forward"]
    starts = [begin, *(noted["forward", name] for name in order[1:]), middle]
    forward = [between_s(*each) for each in pairwise(starts)]
    # Gradients of branches come in another order: a layer's then counts with that of the layer behind it.
    ready = accumulate((between_s(middle, noted["backward", name]) for name in reversed(order)), max)
    backward = [late - early for early, late in pairwise([0.0, *ready])]
    return dict(zip(order, zip(forward, reversed(backward), strict=True), strict=True))
