"""Units as tools and tables write them: ``Mbps``, ``GB/s``, ``msec``."""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

Quantity = Literal["latency", "bandwidth"]

_SECONDS: Final = {"ps": 1e-12, "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0}
_LONG: Final = {"msec": "ms", "millisecond": "ms", "sec": "s", "second": "s", "microsecond": "us"}
_RATE: Final = re.compile(r"([kKMGT]?)(i?)(bit|b|Byte|B)s?(?:ps|/s|/sec)|([kmgt])bps")


class Unit(NamedTuple):
    """A unit as written, and its size in seconds, or in bytes per second."""

    name: str
    size: float
    quantity: Quantity


def read_unit(text: str) -> Unit | None:
    """The unit; None where it is unknown, or may mean bits as well as bytes (``GBPS``)."""
    short = _LONG.get(text.removesuffix("s"), text)
    if short in _SECONDS:
        return Unit(text, _SECONDS[short], "latency")
    if not (match := _RATE.fullmatch(text)):
        return None
    power = " KMGT".index((match[1] or match[4] or " ").upper())
    bits = 1 if match[3] in ("B", "Byte") else 8
    return Unit(text, (1024 if match[2] else 1000) ** power / bits, "bandwidth")
