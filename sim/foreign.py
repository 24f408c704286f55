"""Names files of other tools by their text, wherever one is given in place of ours."""

from __future__ import annotations

import re
import shlex
import zlib
from typing import Final, NamedTuple


class ForeignKind(NamedTuple):
    """A kind of file.

    Attributes:
        what: the noun in messages: "output of ping".
        pattern: is in the first ``HEAD`` letters of each such file.
    """

    what: str
    pattern: re.Pattern[str]


HEAD: Final = 20_000
HEAD_BYTES: Final = 2 * HEAD
"""Enough of a file to know its kind."""
MAX_FOREIGN_BYTES: Final = 256 * 2**20
"""Largest file that is imported, packed and unpacked."""

KINDS: Final = {
    "ping": ForeignKind(
        "output of ping",
        re.compile(
            r"(?m)^PING6?[ (]\S|^(Pinging|Ping wird ausgef.hrt f.r|Haciendo ping a|Esecuzione di Ping) \S"
            r"|^Envoi d.une requ.te 'Ping'"
        ),
    ),
    "iperf3": ForeignKind(
        "output of iperf3",
        re.compile(
            r'(?m)"version":\s*"iperf 3|"test_start":\s*\{|^(Connecting to host|Client connecting to) '
        ),
    ),
    "mtr": ForeignKind(
        "output of mtr", re.compile(r'(?m)^HOST: .*\bSnt\b|"mtr":\s*\{\s*"src"|^Mtr_Version[,;]|^<MTR ')
    ),
    "nccl-tests": ForeignKind(
        "output of nccl-tests",
        re.compile(
            r'(?m)^(\[.*>:|\d+:)?[#\s]*(nThread \d+ nGpus|size +count +type )|^\{"version":\d,"start_time"'
        ),
    ),
    "horovod": ForeignKind(
        "timeline of Horovod",
        re.compile(r'\A\s*\[[\s\S]*"(NEGOTIATE_[A-Z]+|start_time_since_epoch_in_micros)"'),
    ),
    "torch-trace": ForeignKind(
        "trace of torch's profiler",
        re.compile(r'\A\s*(\{\s*"schemaVersion"|[{[][\s\S]*"(cpu_op|user_annotation|ProfilerStep[*#]\w*)")'),
    ),
}
"""By the name that ``paceline import --kind`` takes."""


def foreign_kind(text: str) -> str | None:
    """The kind of a foreign text; None for one that is ours or unknown."""
    head = text[:HEAD]
    return next((kind for kind, each in KINDS.items() if each.pattern.search(head)), None)


def describe_foreign(name: str, head: bytes) -> str | None:
    """What a foreign file is, and the command that reads it; None for one that is ours or unknown."""
    kind = foreign_kind(decode(head, HEAD_BYTES))
    if kind is None:
        return None
    command = f"paceline import {shlex.quote(name)} --out cluster.yaml"
    return f"{name}: is {KINDS[kind].what}; read it with '{command}'"


def decode(content: bytes, limit: int = MAX_FOREIGN_BYTES) -> str:
    """The beginning of a text as tools write it: packed by gzip, in UTF-8, UTF-16 or one byte a letter.

    At most ``limit`` bytes of it are unpacked.
    """
    if content.startswith(b"\x1f\x8b"):
        unpacking = zlib.decompressobj(wbits=31)
        try:
            content = unpacking.decompress(content, limit)
        except zlib.error:
            return ""
    content = content[:limit]
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):  # PowerShell's ">"
        return content.decode("utf-16", "replace")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        whole = error.start < len(content) - 3  # else a letter is cut
        return content.decode("cp1252" if whole else "utf-8-sig", "replace")
