"""How many bytes a value is on the wire, and the buffers that have room for them.

A value may stand for a larger model: then its own bytes come first and padding follows. The parts of an
encoded value follow one another. Buffers are used again once their transfer is complete.

Where the transport cannot reach a value, it is *staged*: copied into a buffer in host memory, and what
arrives out of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeGuard

import torch
from torch import Tensor

from paceline.sim.program.encoding import Encoded, Payload, decoded

from .device import CPU, host_buffer


class StagingBuffers:
    """One worker's buffers.

    Args:
        num_bytes: bytes that a value stands for.
        device: where they are.
        staging: whether every value goes through them.
    """

    def __init__(
        self, num_bytes: Callable[[Payload], int], device: torch.device = CPU, *, staging: bool = False
    ) -> None:
        self.device = device
        self._num_bytes = num_bytes
        self._staging = staging
        self._free: dict[tuple[torch.dtype, int], list[Tensor]] = {}
        self.swollen = False
        """Whether some value was larger on the wire than it stands for: it cannot be sent smaller."""

    def wire_bytes(self, value: Payload) -> int:
        """Bytes of one message with ``value``."""
        own, wanted = own_bytes(value), self._num_bytes(value)
        if own > wanted:
            self.swollen = True
        return max(own, wanted)

    def travels_itself(self, value: Payload) -> TypeGuard[Tensor]:
        """Whether a value needs no buffer: it is as large as it is on the wire, and within reach."""
        if self._staging or not isinstance(value, Tensor) or value.device != self.device:
            return False
        return self.wire_bytes(value) == value.nbytes

    def take(self, dtype: torch.dtype, count: int) -> Tensor:
        """A buffer [count]; what is in it is not known."""
        free = self._free.get((dtype, count))
        if free:
            return free.pop()
        if self._staging:
            return host_buffer(dtype, count)
        return torch.zeros(count, dtype=dtype, device=self.device)

    def give_back(self, buffer: Tensor) -> None:
        """Let a buffer be taken again."""
        self._free.setdefault((buffer.dtype, buffer.numel()), []).append(buffer)

    def packed(self, value: Payload, room: int) -> Tensor:
        """The bytes of ``value``, in a buffer [room]."""
        buffer = self.take(torch.uint8, room)
        end = 0
        for part in _parts(value):
            begin, end = end, end + part.numel() * part.element_size()
            buffer[begin:end].copy_(part.contiguous().reshape(-1).view(torch.uint8))
        return buffer

    def copy(self, value: Tensor) -> Tensor:
        """A flat copy of ``value`` with room behind it up to its size on the wire."""
        count = -(-self.wire_bytes(value) // value.element_size())
        buffer = self.take(value.dtype, count)
        buffer[: value.numel()].copy_(value.reshape(-1))
        return buffer


def own_bytes(value: Payload) -> int:
    """Bytes of the tensors themselves."""
    return sum(part.nbytes for part in _parts(value))


def unpacked(buffer: Tensor, like: Payload) -> Tensor:
    """What arrived in a buffer: a value such as ``like``, decoded, and where that is."""
    found, end = [], 0
    for part in _parts(like):
        begin, end = end, end + part.numel() * part.element_size()
        own = buffer[begin:end].to(part.device, copy=True)
        found.append(own.view(part.dtype).view(part.shape))
    return decoded(like.filled(found) if isinstance(like, Encoded) else found[0])


def _parts(value: Payload) -> tuple[Tensor, ...]:
    return value.parts if isinstance(value, Encoded) else (value,)
