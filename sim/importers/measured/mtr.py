"""Reports of ``mtr``: text (``-r``, ``-w``), JSON (``-j``) and CSV (``--csv``); the last hop is the target."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Mapping
from typing import Any, Final

from ...config.files import parse_json
from ..readings import ForeignFile, PathReading, Readings, parse_decimal

_HOP: Final = re.compile(r"\s*\d+\.\s*(?:\|--)?\s*(.+)")
_SILENT: Final = "???"


def read(source: ForeignFile) -> Readings:
    """Half of the mean round trip to the last hop. ``InputError``: it did not answer, or columns are missing."""
    text = source.text.lstrip()
    if text.startswith("<"):
        raise source.refuse("is mtr's XML; run mtr with -j")
    how = _of_json if text.startswith("{") else _of_csv if text.startswith("Mtr_Version") else _of_text
    last, line = how(source)
    missing = [name for name in ("Avg", "Loss%", "Snt") if name not in last]
    if missing:
        raise source.refuse(f"has no column {missing[0]}; run mtr without -o", line)
    host = str(last["host"])
    values = {
        name: parse_decimal(source, str(last[name]).strip().rstrip("%"), line)
        for name in ("Avg", "Loss%", "Snt", "StDev") if name in last
    }  # fmt: skip
    if host == _SILENT or values["Loss%"] >= 100 or not values["Avg"]:
        raise source.refuse("the last hop did not answer, so the target is not measured; ping it", line)
    trip_s, sent, deviation_s = values["Avg"] / 1000, values["Snt"], values.get("StDev", 0.0) / 1000
    start, end = source.ends or ("", "")
    path = PathReading(
        start,
        end,
        latency_s=trip_s / 2,
        jitter_s=deviation_s / math.sqrt(2) if sent >= 5 else None,
        loss=values["Loss%"] / 100,
    )
    notes = (
        f"latency: half of the mean round trip of {sent:.0f} packets to {host}, {values['Avg']:g} ms",
        f"loss: {values['Loss%']:g} % of {sent:.0f} packets",
    )
    return Readings(paths=(path,), notes=notes)


def _of_text(source: ForeignFile) -> tuple[dict[str, Any], int]:
    """Columns of the last hop, and its line."""
    names: list[str] = []
    last: tuple[dict[str, Any], int] | None = None
    for number, line in enumerate(source.text.splitlines(), 1):
        if line.startswith("HOST:"):
            if names:
                raise source.refuse("has a second report; write each to a file of its own", number)
            names = line[line.index("Loss%") if "Loss%" in line else 0 :].split()
        elif names and (hop := _HOP.fullmatch(line)):
            cells = hop[1].split()
            if len(cells) <= len(names):
                raise source.refuse(f"has {len(cells) - 1} values for the {len(names)} columns", number)
            host = " ".join(cells[: -len(names)])
            last = {"host": host, **dict(zip(names, cells[-len(names) :], strict=True))}, number
    if last is None:
        raise source.refuse("has no hop")
    return last


def _of_csv(source: ForeignFile) -> tuple[dict[str, Any], int]:
    lines = source.text.lstrip().splitlines()
    rows = csv.reader(
        (line.rstrip(",; ") for line in lines),
        delimiter=";" if lines[0].count(";") > lines[0].count(",") else ",",
    )
    header, *hops = (row for row in rows if row)
    if not hops:
        raise source.refuse("has no hop")
    for number, row in enumerate(hops, 2):
        if len(row) != len(header):
            raise source.refuse(f"has {len(row)} cells, the header has {len(header)}", number)
    named = [dict(zip(header, row, strict=True)) for row in hops]
    targets = list(dict.fromkeys(each.get("Host", "") for each in named))
    if len(targets) > 1:
        raise source.refuse(f"has reports of {' and '.join(targets[:3])}; write each to a file of its own")
    return {"host": named[-1].get("Ip", _SILENT), **named[-1]}, len(hops) + 1


def _of_json(source: ForeignFile) -> tuple[Mapping[str, Any], int]:
    try:
        document = parse_json(source.text)
    except ValueError as error:
        raise source.refuse(f"is cut or is no JSON: {error}") from None
    match document:
        case {"report": {"hubs": [*_, {"host": str(), **last}]}}:
            return last | {"host": document["report"]["hubs"][-1]["host"]}, 0
    raise source.refuse("has no hop: there is no list 'hubs' in 'report'")
