"""Timelines of Horovod: durations of averages, of which no link can be told, and the number of ranks.

A tensor is a "process" of the timeline; its events are nested. The list of events may never be closed.
Source: horovod/horovod, horovod/common/timeline.cc.
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from typing import Any, Final

from paceline.extras.importers.readings import ForeignFile, Readings
from paceline.sim.config.files import parse_json
from paceline.sim.config.units import format_seconds

_AVERAGE: Final = re.compile(r"(NCCL|MPI|GLOO|CCL|DDL|ADASUM)_\w*ALLREDUCE")


def read(source: ForeignFile) -> Readings:
    """Ranks, where all are seen to negotiate, and notes; ``InputError`` for a list cut within an event."""
    text = source.text.strip().rstrip(",").removesuffix("]")
    spans, ranks = defaultdict[str, set[tuple[float, float]]](set), set[int]()
    opened = defaultdict[Any, list[tuple[str, float]]](list)
    try:
        for event in parse_json(text + "]"):
            inside, phase = opened[event.get("pid")], event["ph"]
            if phase == "B":
                inside.append((event["name"], float(str(event["ts"]))))
            elif phase == "X" and inside and event["name"].isdecimal():
                ranks.add(int(event["name"]))
            elif phase == "E" and inside:
                name, begin_us = inside.pop()
                kind = "wait" if name.startswith("NEGOTIATE_") else "average" if _AVERAGE.match(name) else ""
                spans[kind].add((begin_us, float(str(event["ts"]))))  # tensors that are fused have one span
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise source.refuse(f"is no whole timeline; remove an event that is cut ({error})") from None
    waits_s, averages_s = ([(b - a) / 1e6 for a, b in spans[kind]] for kind in ("wait", "average"))
    if min(averages_s, default=0.0) <= 0:
        raise source.refuse("has no average (NCCL_ALLREDUCE, MPI_ALLREDUCE, ...) that ends after its begin")
    notes = (
        f"averages: {len(averages_s)}, {format_seconds(statistics.median(averages_s))} in the median, "
        f"{format_seconds(max(averages_s))} at most, after negotiations of "
        f"{format_seconds(statistics.median(waits_s or [0.0]))}",
        "not used: how these divide into latency and bandwidth is not in it, nor a gradient's duration",
    )
    whole = len(ranks) > 1 and ranks == set(range(len(ranks)))
    return Readings(workers={"": len(ranks)} if whole else None, averaging=0.0, notes=notes)
