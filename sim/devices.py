"""The host's threads, and from the host to a device without waiting for what that still has to do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


@contextmanager
def one_thread() -> Iterator[None]:
    """torch with one thread, so that sums are added up in one order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """``tensor``, which is the host's, on ``device``.

    A copy from memory that can be paged out makes the host wait until the device has come that far; from
    pinned memory it takes its turn behind the work that is queued.
    """
    pinned = tensor.pin_memory() if device.type == "cuda" else tensor
    return pinned.to(device, non_blocking=True)


def constants(*tensors: Tensor) -> Callable[[torch.device], tuple[Tensor, ...]]:
    """A function that gives ``tensors`` on a device; they are moved there once."""

    @cache
    def on(device: torch.device) -> tuple[Tensor, ...]:
        return tuple(tensor.to(device) for tensor in tensors)

    return on
