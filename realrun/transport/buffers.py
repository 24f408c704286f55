"""Message sizes of values, and reusable staging buffers.

A value may stand for a larger model: its own bytes come first, padding follows. The parts of an encoded value
follow one another. Values out of the backend's reach are *staged*: copied to and from host memory.
"""

from __future__ import annotations

from typing import TypeGuard

import torch
from torch import Tensor

from paceline.sim.program.encoding import Encoded, Payload, decoded, message_bytes, shard_bytes

from .device import CPU


class StagingBuffers:
    """One worker's staging buffers on ``device``; with ``staging`` every value goes through them.

    ``element_bytes`` are the bytes that an element of the model stands for.
    """

    def __init__(self, element_bytes: float, device: torch.device = CPU, *, staging: bool = False) -> None:
        self.device = device
        self._element_bytes = element_bytes
        self._staging = staging
        self._free: dict[tuple[torch.dtype, int], list[Tensor]] = {}
        self.exceeded = False
        """Whether some value was larger than its nominal message; it cannot be sent smaller."""

    def message_bytes(self, value: Payload) -> int:
        """Bytes of one message with ``value``."""
        return self._at_least(tensor_bytes(value), message_bytes(value, self._element_bytes))

    def shard_bytes(self, shard: Payload, length: int, members: int) -> int:
        """Bytes of one message with one member's ``shard`` of a value [length]."""
        nominal = shard_bytes(shard, length, members, self._element_bytes)
        return self._at_least(tensor_bytes(shard), nominal)

    def _at_least(self, own: int, nominal: int) -> int:
        if own > nominal:
            self.exceeded = True
        return max(own, nominal)

    def goes_directly(self, value: Payload) -> TypeGuard[Tensor]:
        """Whether a value needs no buffer: it is as large as its message and within the backend's reach."""
        if self._staging or not isinstance(value, Tensor) or value.device != self.device:
            return False
        return self.message_bytes(value) == value.nbytes

    def take(self, dtype: torch.dtype, count: int) -> Tensor:
        """Take a buffer [count] with arbitrary contents."""
        free = self._free.get((dtype, count))
        if free:
            return free.pop()
        if self._staging:  # in host memory, pinned if a GPU may copy from it
            return torch.zeros(count, dtype=dtype, pin_memory=torch.cuda.is_available())
        return torch.zeros(count, dtype=dtype, device=self.device)

    def give_back(self, *buffers: Tensor) -> None:
        """Return buffers for reuse."""
        for buffer in buffers:
            self._free.setdefault((buffer.dtype, buffer.numel()), []).append(buffer)

    def pack(self, value: Payload, room: int) -> Tensor:
        """Copy the bytes of ``value`` into a buffer [room]."""
        buffer = self.take(torch.uint8, room)
        end = 0
        for part in _parts(value):
            begin, end = end, end + part.numel() * part.element_size()
            buffer[begin:end].copy_(part.contiguous().reshape(-1).view(torch.uint8))
        return buffer

    # --- whole messages -------------------------------------------------------------------------

    def prepare(self, value: Payload) -> Tensor:
        """The tensor to send for ``value``: the value itself where possible, else a buffer with its bytes."""
        if self.goes_directly(value):
            return value.contiguous()
        return self.pack(value, self.message_bytes(value))

    def make_room(self, like: Payload) -> Tensor:
        """A tensor to receive a value such as ``like``."""
        if self.goes_directly(like):
            return torch.empty_like(like, memory_format=torch.contiguous_format)
        return self.take(torch.uint8, self.message_bytes(like))

    def free(self, message: Tensor, value: Payload) -> None:
        """Free the buffer that ``prepare`` took for ``value``, if any."""
        if not self.goes_directly(value):
            self.give_back(message)

    def take_out(self, message: Tensor, like: Payload) -> Tensor:
        """Decode a received value such as ``like``, and free its buffer from ``make_room``."""
        if self.goes_directly(like):
            return message
        value = unpack(message, like)
        self.give_back(message)
        return value


def tensor_bytes(value: Payload) -> int:
    """Bytes of a value's own tensors, without padding."""
    return sum(part.nbytes for part in _parts(value))


def unpack(buffer: Tensor, like: Payload) -> Tensor:
    """Copy a value such as ``like`` out of a buffer to the device of ``like``, and decode it."""
    parts, end = [], 0
    for part in _parts(like):
        begin, end = end, end + part.numel() * part.element_size()
        own = buffer[begin:end].to(part.device, copy=True)
        parts.append(own.view(part.dtype).view(part.shape))
    return decoded(like.filled(parts) if isinstance(like, Encoded) else parts[0])


def _parts(value: Payload) -> tuple[Tensor, ...]:
    return value.parts if isinstance(value, Encoded) else (value,)
