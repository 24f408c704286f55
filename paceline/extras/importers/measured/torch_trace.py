"""Traces of torch's profiler (Chrome's trace format): durations of steps."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Final

from paceline.extras.importers.readings import ForeignFile, Readings
from paceline.sim.compute.traces import durations_of, is_time, thin_out, trace_events
from paceline.sim.config.units import format_seconds
from paceline.sim.errors import shorten

_STEP: Final = "ProfilerStep"


def read(source: ForeignFile) -> Readings:
    """Durations of steps, without those kernels of NCCL that run while no other does.

    ``InputError``: there are no steps (``Answers.event`` says what is one), or nothing is left of them.
    """
    events = trace_events(source.name, source.text)
    step = _STEP if source.answers.event is None else source.answers.event
    events = [each for each in events if isinstance(each, Mapping)]
    if step == _STEP and not any(str(each.get("name")).startswith(_STEP) for each in events):
        raise source.refuse(
            f"has no events {_STEP}#1, #2, ...: say with --event which of its events is a step"
        )
    steps_s = durations_of(source.name, events, step)
    kernels = [each for each in events if each.get("cat") == "kernel"]
    for each in kernels:
        if not (is_time(each.get("ts")) and is_time(each.get("dur")) and each["dur"] >= 0):
            name, when = (shorten(each.get(key)) for key in ("name", "ts"))
            raise source.refuse(f"kernel {name} at {when} us: its duration is {shorten(each.get('dur'))}")
    others = [each for each in kernels if "nccl" not in str(each.get("name")).lower()]
    exposed_s = (_covered_s(kernels) - _covered_s(others)) / len(steps_s)
    if exposed_s >= min(steps_s):
        text = f"its shortest step, {format_seconds(min(steps_s))}, is not longer than NCCL's part of a step"
        raise source.refuse(f"{text}, {format_seconds(exposed_s)}")
    notes = (
        f"compute: {len(steps_s)} events {step}, median {format_seconds(statistics.median(steps_s))}, "
        f"longest {format_seconds(max(steps_s))}; whole steps, with the optimiser and waiting for data",
        f"without NCCL's kernels, of which {format_seconds(exposed_s)} a step overlap no other; what "
        "averaging adds beside is in these times (network.averaging: 0)"
        if len(others) < len(kernels)
        else "no kernels of NCCL are in it: averages by other means would still be in these times",
    )
    durations_s = tuple(thin_out([each - exposed_s for each in steps_s]))
    averaging = 0.0 if len(others) < len(kernels) else None
    return Readings(gradients_s=durations_s, averaging=averaging, notes=notes)


def _covered_s(kernels: Iterable[Mapping[str, Any]]) -> float:
    """Seconds in which at least one of some events runs."""
    covered_us, end_us = 0.0, -math.inf
    for begin_us, length_us in sorted((float(each["ts"]), float(each["dur"])) for each in kernels):
        covered_us += max(0.0, begin_us + length_us - max(begin_us, end_us))
        end_us = max(end_us, begin_us + length_us)
    return covered_us / 1e6
