"""Scalars of TensorBoard event files, without TensorBoard.

An event file is a TFRecord file: length (8 bytes), checksum (4), data, checksum (4). The data are protocol
buffers of ``tensorflow/core/util/event.proto``; a scalar is a ``simple_value`` or a ``tensor``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import reduce
from typing import Final

Fields = list[tuple[int, int | bytes]]
_CRC: Final = [reduce(lambda c, _: c >> 1 ^ 0x82F63B78 * (c & 1), range(8), byte) for byte in range(256)]


def read_scalars(content: bytes) -> Iterator[tuple[int, str, float]]:
    """Step, tag and value of each scalar in an event file; ``ValueError`` for a damaged one."""
    at = 0
    while at < len(content):
        end = at + 12 + int.from_bytes(content[at : at + 8], "little")
        if len(content) < end + 4:
            raise ValueError(f"it ends inside the record at byte {at}")
        if int.from_bytes(content[end : end + 4], "little") != checksum(content[at + 12 : end]):
            raise ValueError(f"the record at byte {at} has another checksum")
        event = _fields(content[at + 12 : end])
        step = next((value for key, value in event if key == 2 and isinstance(value, int)), 0)
        for value in (value for key, summary in event if key == 5 for _, value in _fields(summary)):
            parts = dict(_fields(value))
            tag, tensor = parts.get(1, b""), dict(_fields(parts.get(8, b"")))
            # Field 4 of a tensor are the bytes of its values, 5 its floats, 6 its doubles; 1 is their type.
            doubles = tensor.get(1) == 2
            packed = parts.get(2, tensor.get(6 if doubles else 5, tensor.get(4)))
            form = "<d" if doubles else "<f"
            if isinstance(tag, bytes) and isinstance(packed, bytes) and len(packed) == struct.calcsize(form):
                yield step, tag.decode(errors="replace"), float(struct.unpack(form, packed)[0])
        at = end + 4


def checksum(data: bytes) -> int:
    """A TFRecord's checksum: CRC-32C (RFC 3720, B.4), rotated by 15 bits, plus a constant."""
    crc = reduce(lambda c, byte: c >> 8 ^ _CRC[c & 0xFF ^ byte], data, 0xFFFFFFFF) ^ 0xFFFFFFFF
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF


def _fields(data: int | bytes) -> Fields:
    """Number and raw value of each field of a message."""
    fields: Fields = []
    at = 0
    while isinstance(data, bytes) and at < len(data):
        key, at = _varint(data, at)
        size = {1: 8, 5: 4}.get(key & 7)
        if key & 7 in (0, 2):
            size, at = _varint(data, at)
        if size is None or (key & 7 and at + size > len(data)):
            raise ValueError("a record is no event")
        fields.append((key >> 3, data[at : at + size] if key & 7 else size))
        at += size if key & 7 else 0
    return fields


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a record is no event")
