"""The host's threads and memory, and the way from it to a device without waiting for what that has to do."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Final

import torch
from torch import Tensor

_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
"""Of glibc's ``mallopt``."""
_IN_HEAP_BYTES: Final = 32 * 2**20
"""Tensors of up to so many bytes come from the heap: the most that glibc allows ..."""
_LARGE_MODEL_BYTES: Final = 2**20
"""... but only smaller ones than this where models are as large: these would leave holes of their size."""
_KEPT_BYTES: Final = 256 * 2**20
"""What may be free at the end of the heap before any of it goes back to the system."""
_OBJECTS_IN_USE: Final = 64
"""Of a worker: operations and messages that are on their way, with all that they refer to."""
_FIRST_COLLECTION_S: Final = 5.0
"""Of the processor, before the first full collection: short commands need none."""
_COLLECTIONS_SHARE: Final = 0.02
"""Of the processor's time, at most, for full collections."""


@cache
def keep_freed_memory(model_bytes: int) -> None:
    """Let this process keep the memory of tensors that are gone for those that come.

    glibc gives it back to the system, which hands it out again page by page, emptied: for a step of many
    workers that takes longer than their averages. Where there is no glibc nothing is done.

    Args:
        model_bytes: of one model.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is not None:
        small = model_bytes < _LARGE_MODEL_BYTES
        mallopt(_M_MMAP_THRESHOLD, _IN_HEAP_BYTES if small else _LARGE_MODEL_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


class Collections:
    """The full collections of this process, each due after so much of the processor's time.

    A driver and what it has held are cycles, and Python begins to count anew, whenever objects are frozen,
    until all are to be looked through: without these a process of many runs would keep the models of all.
    """

    def __init__(self) -> None:
        self.due_s = _FIRST_COLLECTION_S

    def collect_if_due(self) -> None:
        """Look through everything, unless that was done a short time ago."""
        begin_s = time.process_time()
        if begin_s >= self.due_s:
            gc.collect()
            end_s = time.process_time()
            self.due_s = end_s + (end_s - begin_s) / _COLLECTIONS_SHARE


COLLECTIONS: Final = Collections()


@contextmanager
def older_objects_left_alone(workers: int) -> Iterator[None]:
    """Look for garbage among what is new: thousands of coroutines live as long as their run.

    And only where there is more of that than so many workers have in use at once.
    """
    youngest, *older = gc.get_threshold()
    gc.freeze()
    if youngest:
        gc.set_threshold(max(youngest, _OBJECTS_IN_USE * workers), *older)
    try:
        yield
    finally:
        gc.set_threshold(youngest, *older)
        gc.unfreeze()
        COLLECTIONS.collect_if_due()


_RANDOM: Final = threading.RLock()


@contextmanager
def torch_random(seed: int | None = None, device: torch.device | None = None) -> Iterator[None]:
    """torch's random numbers for this thread alone, though all threads share them; afterwards as before.

    Args:
        seed: where they begin; None: where they are.
        device: a GPU whose numbers count, too.
    """
    with _RANDOM, torch.random.fork_rng(devices=[device] if device and device.type == "cuda" else []):
        if seed is not None:
            torch.manual_seed(seed)
        yield


@contextmanager
def torch_threads(number: int) -> Iterator[None]:
    """torch with so many threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@contextmanager
def one_thread() -> Iterator[None]:
    """torch with one thread, so that sums are added up in one order."""
    with torch_threads(1):
        yield


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
