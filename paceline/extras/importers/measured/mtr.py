"""Reports of ``mtr``: text (``-r``, ``-w``) and JSON (``-j``)."""

from __future__ import annotations

import re
from typing import Any, Final

from paceline.extras.importers.readings import ForeignFile, Readings, half_of, parse_decimal
from paceline.sim.config.files import parse_json

_HOP: Final = re.compile(r"\s*\d+\.\s*(?:\|--)?\s*(\S.*)")
_COLUMNS: Final = ("Loss%", "Snt", "Avg", "StDev")
_ROUNDING_MS: Final = 0.1


def read(source: ForeignFile) -> Readings:
    """Half of the mean round trip to the last hop. ``InputError``: it is silent, or columns are missing."""
    text = source.text.lstrip()
    if text.startswith(("<", "Mtr_Version")):
        raise source.refuse("is mtr's XML or CSV; run mtr with -j")
    line, last = _of_json(source) if text.startswith("{") else _of_text(source)
    if missing := [name for name in _COLUMNS if name not in last]:
        raise source.refuse(f"has no column {missing[0]}; run mtr without -o", line)
    cells = (str(last[name]).strip().rstrip("%") for name in _COLUMNS)
    lost_pct, sent, mean_ms, deviation_ms = (parse_decimal(source, cell, line) for cell in cells)
    best, worst = (parse_decimal(source, str(last.get(key, mean_ms)), line) for key in ("Best", "Wrst"))
    if not best - _ROUNDING_MS <= mean_ms <= worst + _ROUNDING_MS:
        raise source.refuse(f"is damaged: its mean, {mean_ms:g} ms, is not in {best:g} to {worst:g} ms", line)
    host = str(last.get("host"))
    if host == "???" or lost_pct >= 100 or not mean_ms or sent < 1:
        raise source.refuse("the last hop did not answer, so its target is not measured; ping it", line)
    what = f"the mean round trip of {sent:.0f} packets to {host}"
    lost = f"loss: {lost_pct:g} % of {sent:.0f} packets"
    return half_of(source, mean_ms / 1000, what, deviation_ms / 1000, int(sent), lost_pct / 100, lost)


def _of_text(source: ForeignFile) -> tuple[int, dict[str, Any]]:
    """Line and columns of the last hop."""
    names: list[str] = []
    hops = []
    for number, line in enumerate(source.text.splitlines(), 1):
        if line.startswith("HOST:"):
            if names:
                raise source.refuse("has a second report; write each to a file of its own", number)
            names = line[line.find("Loss%") :].split()
        elif names and (hop := _HOP.fullmatch(line)):
            cells = hop[1].rsplit(maxsplit=len(names))
            if len(cells) <= len(names):
                raise source.refuse(f"has {len(cells) - 1} values for {len(names)} columns", number)
            hops.append((number, dict(zip(["host", *names], cells, strict=True))))
    if not hops:
        raise source.refuse("has no hop")
    return hops[-1]


def _of_json(source: ForeignFile) -> tuple[int, dict[str, Any]]:
    try:
        document = parse_json(source.text)
    except ValueError as error:
        raise source.refuse(f"is cut, or no JSON ({error})") from None
    match document:
        case {"report": {"hubs": [*_, dict() as last]}}:
            return 0, last
    raise source.refuse("has no hop: there is no list 'hubs' in 'report'")
