"""Anonymise documents: remove names of hosts and users, addresses and paths, for sending to strangers.

Results stay: numbers, labels, names of scenarios and sites. Hosts, users and paths get a stand-in; equal
names get equal ones, so that shared hosts remain visible.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

LEFT_OUT: Final = "(left out)"
"""Replacement of paths and addresses."""

_SHORTEST: Final = 3
"""Shortest name replaced within longer texts; a shorter one is replaced only as a whole text."""
_FILE_KEYS: Final = frozenset({"file", "folder"})
"""Keys of a scenario whose values are paths, however they look."""
_RATE: Final = re.compile(r"[\d.]*[A-Za-z]{0,6}/(s|byte|step)|[\d.]+/[\d.]+")
"""A unit or a fraction whose slash makes no path: ``Mbit/s``, ``s/byte``, ``1/2``."""
_PATH: Final = re.compile(
    r"(?<![\w/\\])(?:~|\.{1,2}|[A-Za-z]:)?[/\\][\w.~@+/\\-]+"  # from the root, the home, here, a drive
    r"|[\w.~@+-]+(?:[/\\][\w.~@+-]+)+"
)
_ADDRESS: Final = re.compile(
    r"\b\d{1,3}(?:\.\d{1,3}){3}\b"
    r"|(?<![\w:])(?:[0-9a-fA-F]{0,4}:){3,}[0-9a-fA-F]{0,4}(?![\w:])"
    r"|[\w.+-]+@[\w-]+(?:\.[\w-]+)*"
)
_CODE: Final = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*:([A-Za-z_]\w*)")
"""``package.module:function``; modules may be named after people and places."""


def stand_ins(hosts: Iterable[str], users: Iterable[str]) -> dict[str, str]:
    """Name -> its replacement; a host is known by its name with and without its domain.

    >>> stand_ins(["node7.example.org", "node8", "node7"], ["ada"])
    {'node7.example.org': 'host-1', 'node7': 'host-1', 'node8': 'host-2', 'ada': 'user'}
    """
    names: dict[str, str] = {}
    for host in dict.fromkeys(filter(None, hosts)):
        short = host.partition(".")[0]
        stand_in = names.get(short) or f"host-{len(set(names.values())) + 1}"
        names |= {host: stand_in, short: stand_in}
    return names | {user: "user" for user in users if user and user not in names}


def anonymise(value: Any, names: Mapping[str, str]) -> Any:
    """Remove ``names`` (from ``stand_ins``), addresses and paths from a JSON value, in texts and in keys."""
    if isinstance(value, str):
        return _clean(value, names)
    if isinstance(value, Mapping):
        return {
            # Other keys are ours, or the scenario's.
            names.get(key) or _without_module(key): (
                LEFT_OUT if key in _FILE_KEYS and isinstance(inner, str) else anonymise(inner, names)
            )
            for key, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [anonymise(each, names) for each in value]
    return value


def _without_module(text: str) -> str:
    code = _CODE.fullmatch(text)
    return f"own:{code[1]}" if code else text


def _clean(text: str, names: Mapping[str, str]) -> str:
    if text in names:
        return names[text]
    text = _without_module(text)
    text = _ADDRESS.sub(LEFT_OUT, text)
    text = _PATH.sub(lambda match: match[0] if _RATE.fullmatch(match[0]) else LEFT_OUT, text)
    long = sorted((name for name in names if len(name) >= _SHORTEST), key=len, reverse=True)
    if long:
        pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, long))})(?!\w)"
        text = re.sub(pattern, lambda match: names[match[0]], text)
    return text
