"""Names files of other tools by their text, wherever one is given in place of ours."""

from __future__ import annotations

import re
import shlex
import zlib
from typing import Final, Literal, NamedTuple


class ForeignKind(NamedTuple):
    """A kind of file.

    Attributes:
        room: of its reader among the importers, a module named like the kind.
        what: the noun in messages: "output of ping".
        pattern: is in the first ``HEAD`` letters of each such file.
    """

    room: Literal["measured", "maps"]
    what: str
    pattern: re.Pattern[str]


HEAD: Final = 20_000
HEAD_BYTES: Final = 2 * HEAD
"""Enough of a file to know its kind."""
MAX_FOREIGN_BYTES: Final = 256 * 2**20
"""Largest file that is imported, packed and unpacked."""

_TABLE: Final = (
    r"\A\s*(?i:<!doctype html|<html|<table)(?s:.*)<table\b"
    r"|(?m:^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)+\|?[ \t]*$)"
)
"""A page, or Markdown."""
_MATRIX: Final = (
    r"\A(?:[^\n]*\n){0,5}?(?=[^\n]{5,4000}\n)[^\n,;\t:{]*[,;\t](?:[^\n]*[,;\t])?\"?([^\n,;\t\"]+)\"?(?:[,;\t][^\n]*)?\n"
    r"(?:[^\n]*\n){0,2}?\"?\1\"?[ \t]*[,;\t]"
)
"""CSV of which a row has the name of a column, as our own latencies between sites have it too."""

_ROUND_TRIP: Final = r"(?i:\bRTT\b|round.?trip|\bping\b)"
"""Words that no table of ours has, in which latencies are one-way."""

KINDS: Final = {
    "ping": ForeignKind(
        "measured",
        "output of ping",
        re.compile(
            r"(?m)^PING6?[ (]\S|^(Pinging|Ping wird ausgef.hrt f.r|Haciendo ping a|Esecuzione di Ping) \S"
            r"|^Envoi d.une requ.te 'Ping'"
        ),
    ),
    "iperf3": ForeignKind(
        "measured",
        "output of iperf3",
        re.compile(
            r'(?m)"version":\s*"iperf 3|"test_start":\s*\{|^(Connecting to host|Client connecting to) '
        ),
    ),
    "mtr": ForeignKind(
        "measured",
        "output of mtr",
        re.compile(r'(?m)^HOST: .*\bSnt\b|"mtr":\s*\{\s*"src"|^Mtr_Version[,;]|^<MTR '),
    ),
    "simgrid": ForeignKind(
        "maps", "a platform of SimGrid", re.compile(r"<platform\s[^>]*version=|<!DOCTYPE platform")
    ),
    "nccl-topology": ForeignKind(
        "maps", "a topology of NCCL", re.compile(r"<system\s[^>]*version=[^>]*>\s*<cpu\b")
    ),
    "topology-zoo": ForeignKind(
        "maps",
        "a graph of the Internet Topology Zoo",
        re.compile(r"<key\b[^>]*attr\.name=.(LinkSpeedRaw|Latitude)\b|(?m:^\s*graph\s*\[)(?s:.*)\bnode\s*\["),
    ),
    "diloco-profile": ForeignKind(
        "maps", "a network profile of diloco-measured", re.compile(r'"iperf_pairs"\s*:')
    ),
    "astra-sim": ForeignKind("maps", "a network of ASTRA-sim", re.compile(r"(?m)^npus_count\s*:")),
    "slurm": ForeignKind(
        "maps",
        "a topology of Slurm",
        re.compile(r"(?im)^\s*(SwitchName|BlockName)\s*=|^- topology\s*:.*\n(.*\n){0,3}?\s+tree\s*:"),
    ),
    "region-matrix": ForeignKind("maps", "a table of regions", re.compile(f"{_TABLE}|{_MATRIX}")),
    "nccl-tests": ForeignKind(
        "measured",
        "output of nccl-tests",
        re.compile(
            r'(?m)^ *(\[.*>:|\d+:)?[#\s]*(nThread \d+ nGpus|size +count +type )|^\{"version":\d,"start_time"'
        ),
    ),
    "horovod": ForeignKind(
        "measured",
        "timeline of Horovod",
        re.compile(r'\A\s*\[[\s\S]*"(NEGOTIATE_[A-Z]+|start_time_since_epoch_in_micros)"'),
    ),
    "torch-trace": ForeignKind(
        "measured",
        "trace of torch's profiler",
        re.compile(r'\A\s*(\{\s*"schemaVersion"|[{[][\s\S]*"(cpu_op|user_annotation|ProfilerStep[*#]\w*)")'),
    ),
}
"""By the name that ``paceline import --kind`` takes."""


def foreign_kind(text: str) -> str | None:
    """The kind of a foreign text; None for one that is ours or unknown."""
    head = text[:HEAD].replace("\r\n", "\n")
    return next((kind for kind, each in KINDS.items() if each.pattern.search(head)), None)


def describe_foreign(name: str, head: bytes) -> str | None:
    """What a foreign file is, and the command that reads it; None for one that is ours or unknown."""
    text = decode(unpack(head, HEAD_BYTES)[0])
    if '<meta name="generator" content="Paceline">' in text:
        return f"{name}: is a page that Paceline wrote; name the result folder or the scenario behind it"
    kind = foreign_kind(text)
    if kind is None or (kind == "region-matrix" and not re.search(f"{_TABLE}|{_ROUND_TRIP}", text)):
        return None
    command = f"paceline import {shlex.quote(name)} --out cluster.yaml"
    return f"{name}: is {KINDS[kind].what}; read it with '{command}'"


def unpack(content: bytes, limit: int = MAX_FOREIGN_BYTES) -> tuple[bytes, bool]:
    """At most ``limit`` bytes of a file, unpacked if it is gzip's, and whether that is all of it.

    Streams behind each other are one. Of an archive (zip) nothing is read.
    """
    if content.startswith(b"PK\x03\x04"):
        return b"", False
    if not content.startswith(b"\x1f\x8b"):
        return content[:limit], len(content) <= limit
    unpacked = b""
    while content and len(unpacked) < limit:
        stream = zlib.decompressobj(wbits=31)
        try:
            unpacked += stream.decompress(content, limit - len(unpacked))
        except zlib.error:
            return unpacked, False
        content = stream.unused_data.lstrip(b"\0")
        if not stream.eof:
            return unpacked, False
    return unpacked, not content


def decode(content: bytes) -> str:
    """A text as tools write it: in UTF-8, UTF-16 or one byte a letter; its last letter may be cut."""
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):  # PowerShell's ">"
        return content.decode("utf-16", "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        whole = error.start < len(content) - 3  # else a letter is cut
        return content.decode("cp1252" if whole else "utf-8-sig", "replace")
