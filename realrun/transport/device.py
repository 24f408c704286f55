"""The device of a worker's values; all GPU-specific code is here."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.sim.errors import InputError

_Result = TypeVar("_Result")

CPU = torch.device("cpu")


def device_of(backend: str, rank: int) -> torch.device:
    """The device of a rank's values: with NCCL the GPU assigned by torchrun or Slurm, else the CPU.

    Without LOCAL_RANK the rank counts: all processes are on this machine, and share its GPUs, which NCCL
    refuses unless configured otherwise. Raises ``InputError`` without a GPU, or without NCCL in torch.
    """
    if backend != "nccl":
        return CPU
    if not (torch.cuda.is_available() and dist.is_nccl_available()):
        raise InputError(
            f"cluster.backend: nccl needs a CUDA device and a torch with NCCL; rank {rank} has none: use gloo"
        )
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def use(device: torch.device) -> None:
    """Make ``device`` the default of this thread."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def settle(device: torch.device) -> None:
    """Wait until ``device`` has done this thread's queued work: then any thread may read it."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class SideStream:
    """Runs work beside the driver's own: on a GPU in a separate stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def run(self, call: Callable[[], _Result]) -> tuple[_Result, float]:
        """Call after all work queued by the driver; return the result and seconds (GPU: between events)."""
        if self._stream is None:
            begin_s = time.monotonic()
            result = call()
            return result, time.monotonic() - begin_s
        event: Any = torch.cuda.Event  # torch's stubs leave out its types
        begin, end = (event(enable_timing=True, blocking=True) for _ in range(2))
        self._stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._stream):
            begin.record()
            result = call()
            end.record()
        end.synchronize()
        return result, float(begin.elapsed_time(end)) / 1000

    def settle(self) -> None:
        """Wait until the device has done the work queued so far; from within ``run``, in any thread."""
        if self._stream is not None:
            self._stream.synchronize()

    def hand_over(self, *values: Tensor) -> None:
        """Keep the memory of values computed here from reuse before the driver has read them."""
        if self._stream is not None:
            for value in values:
                value.record_stream(torch.cuda.default_stream(self._device))
