"""Scalars of TensorBoard event files, without TensorBoard.

An event file is a TFRecord file: length (8 bytes), its checksum (4), data, its checksum (4). The data are
protocol buffers of ``tensorflow/core/util/event.proto``; a scalar is a ``simple_value`` or a ``tensor``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final

_POLYNOMIAL: Final = 0x82F63B78
"""CRC-32C (Castagnoli), bits reversed."""
_FLOAT, _DOUBLE = 1, 2
"""Values of ``tensorflow.DataType``."""


def read_scalars(content: bytes) -> Iterator[tuple[int, str, float]]:
    """Step, tag and value of each scalar in an event file; ``ValueError`` for a damaged one."""
    for record in _records(content):
        step, values = 0, []
        for number, value in _fields(record):
            if number == 2 and isinstance(value, int):
                step = value
            elif number == 5 and isinstance(value, bytes):
                values += [each for key, each in _fields(value) if key == 1 and isinstance(each, bytes)]
        for each in values:
            tag, scalar = _scalar(dict(_fields(each)))
            if scalar is not None:
                yield step, tag, scalar


def _records(content: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(content):
        head, tail = content[at : at + 8], at + 12
        (size,) = struct.unpack("<Q", head) if len(head) == 8 else (0,)
        end = tail + size
        if len(content) < end + 4:
            raise ValueError(f"it ends inside the record at byte {at}")
        if not (_is_sum(head, content[at + 8 : tail]) and _is_sum(content[tail:end], content[end : end + 4])):
            raise ValueError(f"the checksum of the record at byte {at} is wrong")
        yield content[tail:end]
        at = end + 4


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (_POLYNOMIAL if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE: Final = _table()


def masked_crc(data: bytes) -> int:
    """The masked CRC-32C of TFRecord files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def _is_sum(data: bytes, written: bytes) -> bool:
    return masked_crc(data) == int.from_bytes(written, "little")


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and raw value of each field of a message."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind, size = key & 7, {1: 8, 5: 4}.get(key & 7)
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        if size is None or at + size > len(data):
            raise ValueError("a record is no event")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError("a record is no event")


def _scalar(value: dict[int, int | bytes]) -> tuple[str, float | None]:
    """Tag and number of a ``Summary.Value``; None where it holds something else."""
    tag, simple, tensor = (value.get(number, b"") for number in (1, 2, 8))
    if not isinstance(tag, bytes) or not isinstance(simple, bytes) or not isinstance(tensor, bytes):
        raise ValueError("a record is no event")
    name = tag.decode(errors="replace")
    if len(simple) == 4:
        return name, float(struct.unpack("<f", simple)[0])
    parts = dict(_fields(tensor))
    for kind, packed, form in ((_FLOAT, 5, "<f"), (_DOUBLE, 6, "<d")):
        number = parts.get(packed) or parts.get(4)
        if parts.get(1) == kind and isinstance(number, bytes) and len(number) == struct.calcsize(form):
            return name, float(struct.unpack(form, number)[0])
    return name, None
