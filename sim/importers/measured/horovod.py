"""Timelines of Horovod: durations of averages, of which no link can be told, and the number of ranks.

A tensor is a "process" of the timeline; its events are nested. The list of events may never be closed.
Source: horovod/horovod, horovod/common/timeline.cc.
"""

from __future__ import annotations

import math
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Final

from ...config.files import parse_json
from ...config.units import format_bytes, format_rate, format_seconds
from ..readings import ForeignFile, Readings

_AVERAGE: Final = re.compile(r"(NCCL|MPI|GLOO|CCL|DDL|ADASUM)_\w*ALLREDUCE")
_NEGOTIATION: Final = "NEGOTIATE_"
_DIGITS: Final = re.compile(r"(\d+)$")


def read(source: ForeignFile) -> Readings:
    """Ranks, where all are seen to negotiate, and notes; ``InputError`` for a list cut within an event."""
    text = source.text.strip().rstrip(",")
    text = text if text.endswith("]") else text + "]"
    try:
        events = parse_json(text)
        averages_s, waits_s, ranks, rates = _follow(events)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise source.refuse(f"is no whole timeline; remove an event that is cut ({error})") from None
    if not averages_s:
        raise source.refuse(
            "has no average (NCCL_ALLREDUCE, MPI_ALLREDUCE, GLOO_ALLREDUCE) from begin to end"
        )
    notes = [
        f"averages: {len(averages_s)}, {format_seconds(statistics.median(averages_s))} in the median, "
        f"{format_seconds(max(averages_s))} at most, after negotiations of "
        f"{format_seconds(statistics.median(waits_s or [0.0]))}"
    ]
    if rates:
        num_bytes, seconds = max(rates)
        notes.append(f"the largest, {format_bytes(num_bytes)}, at {format_rate(num_bytes / seconds)}")
    notes.append(
        "not used: how these divide into latency and bandwidth is not in it, nor a gradient's duration"
    )
    whole = len(ranks) > 1 and ranks == set(range(len(ranks)))
    return Readings(workers={"": len(ranks)} if whole else None, notes=tuple(notes))


def _follow(
    events: Sequence[dict[str, Any]],
) -> tuple[list[float], list[float], set[int], list[tuple[int, float]]]:
    """Seconds of averages and of negotiations, ranks, and (bytes, seconds) of averages of known shapes.

    Tensors that were averaged together begin together, and count as one.
    """
    open_, waits_s, ranks = defaultdict[Any, list[tuple[str, float]]](list), list[float](), set[int]()
    spans: dict[tuple[float, float], int] = {}
    latest: dict[Any, tuple[float, float]] = {}
    for event in events:
        pid, phase = event.get("pid"), event["ph"]
        if phase == "B":
            open_[pid].append((event["name"], float(event["ts"])))
        elif phase == "X" and open_[pid] and str(event["name"]).isdigit():
            ranks.add(int(event["name"]))
        elif phase == "E" and open_[pid]:
            name, begin_us = open_[pid].pop()
            took = begin_us, float(event["ts"])
            if name.startswith(_NEGOTIATION):
                waits_s.append((took[1] - begin_us) / 1e6)
            elif _AVERAGE.match(name):
                spans.setdefault(took, 0)
                latest[pid] = took
            elif "shape" in event.get("args", {}) and pid in latest:
                spans[latest.pop(pid)] += _bytes_of(**event["args"])
    averages_s = [(end_us - begin_us) / 1e6 for begin_us, end_us in spans]
    if min(averages_s, default=1.0) <= 0:
        raise ValueError("an average that ends before it begins")
    sized = [(num, (end - begin) / 1e6) for (begin, end), num in spans.items() if num]
    return averages_s, waits_s, ranks, sized


def _bytes_of(dtype: str, shape: str, **_: Any) -> int:
    bits = _DIGITS.search(dtype)
    elements = math.prod(int(each) for each in re.findall(r"\d+", shape))
    return elements * (int(bits[1]) // 8 if bits else 1)
