"""What the files of other tools say, in common terms and SI units; and how to read their parts.

XML is read without entities: those can unfold without end.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple
from xml.etree import ElementTree

from paceline.sim.errors import InputError, quote


@dataclass(frozen=True)
class Answers:
    """What the user says about files that do not say it themselves; None: nothing.

    Attributes:
        latency_is: what a file's latencies are.
        latency_unit, bandwidth_unit: units of numbers without one, as ``ms`` and ``Mbit/s``.
        latency_s, bandwidth_bytes_per_s: of links of which a file names only the ends.
        rows: what the places of a table's rows do; those of its columns do the other.
        event: of a trace, that is a step.
        workers: of the cluster.
    """

    latency_is: Literal["round-trip", "one-way"] | None = None
    latency_unit: str | None = None
    bandwidth_unit: str | None = None
    latency_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    rows: Literal["send", "receive"] | None = None
    event: str | None = None
    workers: int | None = None


@dataclass(frozen=True)
class ForeignFile:
    """A file to read.

    Attributes:
        name: its path, as in messages.
        text: its content.
        ends: the two places between which it was measured; "" where the user names none.
    """

    name: str
    text: str
    ends: tuple[str, str] = ("", "")
    answers: Answers = Answers()

    def refuse(self, message: str, line: int = 0) -> InputError:
        """The error that names this file, and a line of it counted from 1."""
        return InputError(f"{self.name}:{line}: {message}" if line else f"{self.name}: {message}")


def parse_decimal(source: ForeignFile, text: str, line: int) -> float:
    """A number from 0 as tools write it, with a point or a comma; ``InputError`` names the line."""
    try:
        value = float(text.replace(",", ".").replace("_", " ").encode("ascii"))  # not 1_0
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e12:
        raise source.refuse(f"{quote(text)} is no number from 0", line)
    return value


@dataclass(frozen=True)
class PathReading:
    """What was measured end to end from one place to another; None: not measured.

    Attributes:
        source, target: names of hosts or sites; "" where nobody names them.
        latency_s: one-way.
        jitter_s: standard deviation of the one-way latency.
        bandwidth_bytes_per_s: of all connections together.
        per_flow_bytes_per_s: of one connection.
        loss: share of packets lost.
        both_ways: the way back is alike.
    """

    source: str = ""
    target: str = ""
    latency_s: float | None = None
    jitter_s: float | None = None
    bandwidth_bytes_per_s: float | None = None
    per_flow_bytes_per_s: float | None = None
    loss: float | None = None
    both_ways: bool = True


@dataclass(frozen=True)
class LinkReading:
    """A link of a graph; ``latency_s`` is one-way."""

    source: str
    target: str
    latency_s: float
    bandwidth_bytes_per_s: float | None = None
    one_way: bool = False


@dataclass(frozen=True)
class Readings:
    """Readings of one file.

    Attributes:
        paths: measured between places.
        hosts, links: of a graph; nodes that are no hosts are switches.
        gpus: per host, joined by ``gpu_latency_s`` (one-way) and ``gpu_bandwidth_bytes_per_s``.
        workers: of each site by its name; {"": n}: without sites.
        gradients_s: durations of gradients.
        transport: gloo or nccl.
        nccl: its version.
        averaging: share of a gradient that averaging it adds to ``gradients_s``.
        overhead_s: of one transfer.
        notes: where the values come from, a sentence each: what was halved, converted, or not used.
    """

    paths: tuple[PathReading, ...] = ()
    hosts: tuple[str, ...] = ()
    links: tuple[LinkReading, ...] = ()
    gpus: int | None = None
    gpu_latency_s: float | None = None
    gpu_bandwidth_bytes_per_s: float | None = None
    workers: dict[str, int] | None = None
    gradients_s: tuple[float, ...] = ()
    transport: Literal["gloo", "nccl"] | None = None
    nccl: str | None = None
    averaging: float | None = None
    overhead_s: float | None = None
    notes: tuple[str, ...] = ()


def refuse_entities(source: ForeignFile) -> None:
    """Raise ``InputError`` for XML that declares entities."""
    if match := re.search(r"<!ENTITY\b", source.text):
        raise source.refuse(
            "declares entities, which are not read", source.text.count("\n", 0, match.start()) + 1
        )


def parse_xml(source: ForeignFile) -> ElementTree.Element:
    """The root; ``InputError`` for text that is no XML, or declares entities."""
    refuse_entities(source)
    try:
        return ElementTree.fromstring(source.text)
    except ElementTree.ParseError as error:
        raise source.refuse(f"is no whole XML: {error.msg}", error.position[0]) from None


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


_LEAST_PACKETS: Final = 5
"""From fewer a deviation says nothing."""


def half_of(
    source: ForeignFile,
    trip_s: float,
    what: str,
    deviation_s: float,
    packets: int,
    loss: float | None,
    lost: str,
) -> Readings:
    """Readings of ``what`` round trip; its two ways are alike, and vary independently."""
    varies = packets >= _LEAST_PACKETS and deviation_s > 0
    jitter_s = deviation_s / math.sqrt(2) if varies else None
    jitter = f"jitter: round trips vary by {1000 * deviation_s:.3g} ms (standard deviation), each way alike"
    return Readings(
        paths=(PathReading(*source.ends, latency_s=trip_s / 2, jitter_s=jitter_s, loss=loss),),
        notes=(f"latency: half of {what}, {1000 * trip_s:.4g} ms", *([jitter] if varies else []), lost),
    )
