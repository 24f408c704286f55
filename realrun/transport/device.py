"""Where a worker's values live. What a GPU asks for beyond a CPU is in this module alone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from paceline.sim.errors import InputError

from .connections import FOREVER

_Result = TypeVar("_Result")

CPU = torch.device("cpu")


def device_of(backend: str, rank: int) -> torch.device:
    """Where a rank keeps its values: with NCCL on the GPU that torchrun or Slurm gave it, else on the CPU.

    Without LOCAL_RANK the rank counts: all processes are on this machine. Ranks beyond its GPUs share them,
    which NCCL refuses unless it is told otherwise.

    Raises:
        InputError: this process has no GPU, or torch was built without NCCL.
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


def set_up_nccl() -> None:
    """Let this driver's own watchdog end a run that hangs, and NCCL use the interface that gloo uses.

    torch's error handling would end the process before it can tell why. What the user has set stays.
    """
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
    if "GLOO_SOCKET_IFNAME" in os.environ:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", os.environ["GLOO_SOCKET_IFNAME"])


def connected(backend: str, store: Store, rank: int, size: int) -> Any:
    """A group of ``size`` ranks on a backend, not in torch's own registers; ``store`` is its own."""
    if backend == "nccl":
        made: Any = dist.ProcessGroupNCCL  # torch's stubs know one of its two forms
        return made(store, rank, size, FOREVER)
    return dist.Backend._plugins[backend.upper()].creator_fn(store, rank, size, FOREVER)


def host_buffer(dtype: torch.dtype, count: int) -> Tensor:
    """Zeros [count] in host memory, pinned where there is a GPU that copies from it."""
    return torch.zeros(count, dtype=dtype, pin_memory=torch.cuda.is_available())


def use(device: torch.device) -> None:
    """Let this thread ask ``device`` for what names no device."""
    if device.type == "cuda":
        torch.cuda.set_device(device)


def settle(device: torch.device) -> None:
    """Wait until ``device`` has done what this thread has asked for: then any thread may read it."""
    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


class SideStream:
    """Work that runs beside what the driver does with its values: on a GPU in a stream of its own.

    Args:
        device: where the values are.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = _stream(device) if device.type == "cuda" else None

    def run(self, call: Callable[[], _Result]) -> tuple[_Result, float]:
        """Call, and wait until the device has done what that asked for; returns how long it took, too.

        The work begins after all that the driver has asked for so far. A GPU's time is that between two of
        its events.
        """
        if self._stream is None:
            begin_s = time.monotonic()
            found = call()
            return found, time.monotonic() - begin_s
        begin, end = (_event() for _ in range(2))
        self._stream.wait_stream(torch.cuda.default_stream(self._device))
        with torch.cuda.stream(self._stream):
            begin.record()
            found = call()
            end.record()
        end.synchronize()
        return found, begin.elapsed_time(end) / 1000

    def settle(self) -> None:
        """From within ``run``, in any thread: wait until the device has done what was asked for so far."""
        if self._stream is not None:
            self._stream.synchronize()

    def hand_over(self, *values: Tensor) -> None:
        """Keep the memory of what was made here from being used again before the driver has read it."""
        if self._stream is not None:
            for value in values:
                value.record_stream(torch.cuda.default_stream(self._device))


def _stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
