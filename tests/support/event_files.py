"""TensorBoard event files, as TensorFlow writes them."""

from __future__ import annotations

import struct
from collections.abc import Iterable

from paceline.sim.training.curves.read import checksum


def varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(number: int, value: bytes | int | float) -> bytes:
    """A field of a protocol buffer: bytes, a whole number, or a float of 32 bits."""
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 5) + struct.pack("<f", value)


def simple(tag: str, value: float) -> bytes:
    """A summary's value with ``simple_value``."""
    return field(1, tag.encode()) + field(2, value)


def tensor(tag: str, value: float, kind: int = 1, content: bool = False) -> bytes:
    """A summary's value with a ``tensor`` of one float (kind 1) or double (2), or its ``content``."""
    packed = struct.pack("<f" if kind == 1 else "<d", value)
    number = 4 if content else 4 + kind
    return field(1, tag.encode()) + field(8, field(1, kind) + field(2, b"") + field(number, packed))


def event(step: int, *values: bytes) -> bytes:
    """An event; its first field is the wall time, a double."""
    summary = b"".join(field(1, value) for value in values)
    return b"\x09" + struct.pack("<d", 1.7e9) + field(2, step) + field(5, summary)


def event_file(events: Iterable[bytes]) -> bytes:
    """A file of events behind the version record; the lengths' checksums are zero."""
    version = b"\x09" + struct.pack("<d", 1.7e9) + field(3, b"brain.Event:2")
    return b"".join(
        struct.pack("<Q", len(each)) + bytes(4) + each + struct.pack("<I", checksum(each))
        for each in (version, *events)
    )
