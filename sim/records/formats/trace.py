"""Traces of the workers' operations for Chrome's tracing page and Perfetto.

Format: the Trace Event Format's JSON ("Complete" events with ``ts`` and ``dur`` in microseconds). A run is a
process; a worker's main coroutine, each of its services, and each lane of its background operations
is a thread of it, so that the events of a thread never overlap unless one contains the other.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from ..run import COMPUTING, RESUMPTIONS, Event, Run

_MOMENTS: Final = frozenset({"poll", "now", "next_step", "segment"})
_TRACKS: Final = 1000
"""Threads per worker: its tasks from 0 on, background lanes from the half on."""


def write_trace(path: Path, runs: Iterable[Run]) -> None:
    """Write the events of all runs; a run without events leaves only its name."""
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[')
        for number, row in enumerate(_rows(runs)):
            file.write(",\n" if number else "\n")
            file.write(json.dumps(row, separators=(",", ":"), ensure_ascii=False))
        file.write("\n]}\n")


def _rows(runs: Iterable[Run]) -> Iterator[dict[str, Any]]:
    for process, run in enumerate(runs, 1):
        yield _meta(process, 0, "process_name", name=f"{run.label}, seed {run.seed} ({run.source})")
        yield _meta(process, 0, "process_sort_index", sort_index=process)
        named: set[int] = set()
        for event, thread, title in _placed(run.events):
            if thread not in named:
                named.add(thread)
                yield _meta(process, thread, "thread_name", name=title)
                yield _meta(process, thread, "thread_sort_index", sort_index=thread)
            yield from _slices(event, process, thread)


def _meta(process: int, thread: int, kind: str, **arguments: object) -> dict[str, Any]:
    return {"ph": "M", "pid": process, "tid": thread, "name": kind, "args": arguments}


def _placed(events: Sequence[Event]) -> Iterator[tuple[Event, int, str]]:
    """Each event that takes time, its thread and the thread's name, in order of time."""
    busy_until_s: dict[int, list[float]] = defaultdict(list)
    for event in sorted(events, key=lambda e: (e.start_s, -e.end_s)):
        if event.operation in _MOMENTS:
            continue
        first = 1 + event.worker * _TRACKS
        if event.handle < 0 or event.operation in RESUMPTIONS:
            title = f"worker {event.worker}" + (f", service {event.task}" if event.task else "")
            yield event, first + event.task, title
            continue
        lanes = busy_until_s[event.worker]
        lane = next((i for i, end_s in enumerate(lanes) if end_s <= event.start_s), len(lanes))
        lanes[lane : lane + 1] = [event.end_s]
        title = f"worker {event.worker}, in the background" + (f" {lane + 1}" if lane else "")
        yield event, first + _TRACKS // 2 + lane, title


def _slices(event: Event, process: int, thread: int) -> Iterator[dict[str, Any]]:
    kind = "computation" if event.operation in COMPUTING else "communication"
    arguments: dict[str, object] = {"step": event.step}
    if event.bytes:
        arguments["bytes"] = event.bytes
    if event.peer >= 0:
        arguments["peer"] = event.peer
    slices = [(event.operation, kind, event.end_s, arguments)]
    met_s = min(event.peer_s, event.end_s)
    if met_s > event.start_s:
        slices.append(("wait for a peer", "waiting", met_s, {}))
    for name, category, end_s, details in slices:
        # Whole nanoseconds, so that slices that touch or contain each other in seconds still do.
        start_ns, end_ns = round(event.start_s * 1e9), round(end_s * 1e9)
        yield {
            "ph": "X", "pid": process, "tid": thread, "name": name, "cat": category,
            "ts": start_ns / 1000, "dur": (end_ns - start_ns) / 1000, "args": details,
        }  # fmt: skip
