"""Scalars of TensorBoard event files, without TensorBoard.

An event file is a TFRecord file: length (8 bytes), checksum (4), data, checksum (4). The data are protocol
buffers of ``tensorflow/core/util/event.proto``; a scalar is a ``simple_value`` or a ``tensor``. Checksums are
not verified.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

_TENSORS: Final = ((1, 5, "<f"), (2, 6, "<d"))
"""Data type of a tensor, field of its values, and their layout: float and double."""


def read_scalars(content: bytes) -> Iterator[tuple[int, str, float]]:
    """Step, tag and value of each scalar in an event file; ``ValueError`` for a damaged one."""
    at = 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 8], "little")
        if len(content) < at + size + 16:
            raise ValueError(f"it ends inside the record at byte {at}")
        fields = list(_fields(content[at + 12 : at + 12 + size]))
        step = next((value for key, value in fields if key == 2 and isinstance(value, int)), 0)
        summaries = (value for key, value in fields if key == 5 and isinstance(value, bytes))
        for value in (value for summary in summaries for key, value in _fields(summary) if key == 1):
            parts = dict(_fields(_bytes(value)))
            if (scalar := _scalar(parts)) is not None:
                yield step, _bytes(parts.get(1, b"")).decode(errors="replace"), scalar
        at += size + 16


def _scalar(value: dict[int, int | bytes]) -> float | None:
    """Number of a ``Summary.Value``; None where it holds something else."""
    if 2 in value:
        return float(struct.unpack("<f", _bytes(value[2]))[0])
    tensor = dict(_fields(_bytes(value.get(8, b""))))
    for kind, place, form in _TENSORS:
        packed = _bytes(tensor.get(place, tensor.get(4, b"")))
        if tensor.get(1) == kind and len(packed) == struct.calcsize(form):
            return float(struct.unpack(form, packed)[0])
    return None


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and raw value of each field of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 in (0, 2):
            size, at = _varint(data, at)
        if key & 7 == 0 and size is not None:
            yield key >> 3, size
        elif size is None or at + size > len(data):
            raise ValueError("a record is no event")
        else:
            yield key >> 3, data[at : at + size]
            at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a record is no event")


def _bytes(value: int | bytes) -> bytes:
    if isinstance(value, int):
        raise ValueError("a record is no event")
    return value
