"""Choice of the algorithms of a scheme's collectives over ``ideal``, where ``auto`` leaves it open.

The fastest algorithm depends on the scheme: when each member joins, and how long TCP's windows have rested.
So the scheme itself runs for a few cycles on the clock alone, without anything random, once with every
collective priced by itself (``traffic.choice.fastest``) and once with each algorithm for all of a kind; the
shortest step decides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Final

from ..collectives.pipelines import least_latencies
from ..compute.model import steady_compute
from ..devices import one_thread
from ..drivers.event import EventDriver
from ..drivers.job import Job
from ..drivers.lockstep.driver import LockstepDriver
from ..drivers.lockstep.exact import why_not
from ..errors import NotInLockstep, RunError
from ..schemes import SCHEMES
from ..traffic.choice import BY_PRICE, MAX_FLOWS, Algorithms, Payloads
from ..traffic.placing import place

_CYCLES: Final = (1, 3)
"""The cycles between which time is taken, where cycles differ only in who joins when."""
_CYCLES_OF_WINDOWS: Final = (4, 14)
"""The same where windows or queues last from one cycle to the next; by then they have opened."""
_MUCH_WORK: Final = 2_000
"""Messages in a cycle from which on ``_CYCLES`` are used even with windows."""
_MOST_WORK: Final = 200_000
"""Steps of all workers in a cycle beyond which nothing is tried."""
_EVEN: Final = 1e-9
"""Relative difference of steps below which the first of two algorithms is kept."""


def choose(job: Job, units: Sequence[str | None]) -> dict[str, str]:
    """Choose the algorithms of a job's collectives, on the clock alone: purpose -> name, or ``BY_PRICE``.

    ``units``: candidates for its ``sums_inside``, if it matters; that choice is named ``inside``. Empty
    without open collectives, if values are needed, or if the cycle is too long.
    """
    steady = replace(
        job,
        options=job.scheme.long_run(job.options),
        compute=steady_compute(job.compute, job.workers),
        transfer=replace(job.transfer, network=job.transfer.network.steady),
    )
    cycle = steady.scheme.cycle(steady.options, steady.units)
    if cycle * steady.workers > _MOST_WORK:
        return {}
    best_s, best = math.inf, {}
    for inside in units or (None,):
        try:
            with one_thread():  # the vectors are small, and threads would wait for one another
                took_s, names = _fastest(replace(steady, sums_inside=inside), cycle)
        except RunError:
            return {}
        if took_s < best_s * (1 - _EVEN):
            best_s, best = took_s, names | ({"inside": inside or "workers"} if any(units) else {})
    return best


def _fastest(steady: Job, cycle: int) -> tuple[float, dict[str, str]]:
    """Seconds of a cycle in the long run with the best algorithms, and their names."""
    best_s, kinds = _timed_s(steady, {}, cycle)
    names: dict[str, str] = {}
    for what, taken in kinds.items():
        order, sites, num_bytes = max(taken, key=lambda each: (len(each[0]), each[2]))
        names[what] = taken[order, sites, num_bytes] if len(set(taken.values())) == 1 else BY_PRICE
        hop_s = min((steady.transfer.network.route(*each).latency_s for each in pairwise(order)), default=0.0)
        for name, build in steady.choice.candidates(what).items():
            least = least_latencies(name, sites)
            if name == names[what] or math.isinf(least) or least * hop_s > best_s:
                continue
            placed = place(build(sites, num_bytes), order, steady.transfer)
            if placed.num_flows <= MAX_FLOWS:
                took_s, _ = _timed_s(steady, {**names, what: name}, cycle)
                if took_s < best_s * (1 - _EVEN):
                    best_s, names[what] = took_s, name
    return best_s, names


def _timed_s(job: Job, names: Mapping[str, str], cycle: int) -> tuple[float, dict[str, Payloads]]:
    """Seconds of a cycle in the long run with these algorithms, and the payloads to choose for."""
    algorithms = Algorithms(names)
    job = replace(job, chosen=algorithms)
    begin, end = _CYCLES
    begin_s, work = _run_s(job, begin * cycle)
    if not algorithms.taken and not job.scheme.encodes(job.options):
        return begin_s, {}
    if (job.transfer.tcp is not None or job.transfer.queue != "fair") and work < _MUCH_WORK:
        begin, end = _CYCLES_OF_WINDOWS
        begin_s, _ = _run_s(job, begin * cycle)
    end_s, _ = _run_s(job, end * cycle)
    return (end_s - begin_s) / (end - begin), algorithms.taken


def _run_s(job: Job, steps: int) -> tuple[float, int]:
    """Seconds and messages of ``steps`` steps of each worker; ``RunError`` where the scheme needs values."""
    job = replace(job, max_iterations=steps)
    if job.scheme.name in SCHEMES and not why_not(job):
        with suppress(NotInLockstep):
            lockstep = LockstepDriver(job, job.scorer())
            return lockstep.run().wall_s, lockstep.messages
    programs = [job.program(rank) for rank in range(job.workers)]
    events = EventDriver(job, programs, job.scorer(), priced=True)
    return events.run().wall_s, events.messages
