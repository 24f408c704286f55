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
from typing import Any, Final

from ..collectives.algorithm_registry import Builder
from ..collectives.pipelines import least_latencies
from ..compute.model import steady_compute
from ..devices import one_thread
from ..drivers.job import Job
from ..drivers.lockstep.exact import why_not
from ..drivers.lockstep.lockstep_driver import LockstepDriver, same_mathematics
from ..drivers.outcome import Outcome
from ..errors import NotInLockstep, RunError
from ..schemes import SCHEMES
from ..traffic.placing import place
from ..traffic.selection import BY_PRICE, MAX_FLOWS, Algorithms, Payloads

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


def choose_all(jobs: Sequence[tuple[Job, Sequence[str | None]]]) -> list[dict[str, str]]:
    """``choose_each`` of jobs of any kind, each with its ``units``, for those at once that do the same."""
    chosen: dict[int, dict[str, str]] = {}
    while left := [number for number in range(len(jobs)) if number not in chosen]:
        first, units = jobs[left[0]]
        alike = [each for each in left if jobs[each][1] == units and same_mathematics(first, jobs[each][0])]
        chosen |= zip(alike, choose_each([jobs[each][0] for each in alike], units), strict=True)
    return [chosen[number] for number in range(len(jobs))]


def choose_each(jobs: Sequence[Job], units: Sequence[str | None]) -> list[dict[str, str]]:
    """Choose the algorithms of jobs' collectives, on the clock alone: purpose -> name, or ``BY_PRICE``.

    ``jobs``: with ``same_mathematics``; each choice is that for the job alone. ``units``: candidates for
    ``sums_inside``, if it matters; that choice is named ``inside``. Empty without open collectives, if values
    are needed, or if the cycle is too long.
    """
    if len(jobs) > 1 and not all(map(is_plain, jobs)):
        return [choose_each([job], units)[0] for job in jobs]
    steady = [
        replace(
            job,
            options=job.scheme.long_run(job.options),
            compute=steady_compute(job.compute, job.workers),
            transfer=replace(job.transfer, network=job.transfer.network.steady),
        )
        for job in jobs
    ]
    cycle = steady[0].scheme.cycle(steady[0].options, steady[0].units)
    if cycle * steady[0].workers > _MOST_WORK:
        return [{} for _ in jobs]
    best: list[tuple[float, dict[str, str]]] = [(math.inf, {})] * len(jobs)
    for inside in units or (None,):
        try:
            with one_thread():  # the vectors are small, and threads would wait for one another
                taken = _fastest([_averaging(each, sums_inside=inside) for each in steady], cycle)
        except RunError:
            return [{}] if len(jobs) == 1 else [choose_each([job], units)[0] for job in jobs]
        for row, (took_s, names) in enumerate(taken):
            if took_s < best[row][0] * (1 - _EVEN):
                best[row] = took_s, names | ({"inside": inside or "workers"} if any(units) else {})
    return [names for _, names in best]


def is_plain(job: Job) -> bool:
    """Whether neither windows nor queues last from one cycle to the next."""
    return job.transfer.tcp is None and job.transfer.queue == "fair"


def _fastest(steady: Sequence[Job], cycle: int) -> list[tuple[float, dict[str, str]]]:
    """Seconds of a cycle of each job in the long run with the best algorithms, and their names."""
    timed = _timed_s(steady, [{}] * len(steady), cycle)
    best: list[tuple[float, dict[str, str]]] = [(begin_s, {}) for begin_s, _ in timed]
    for what in timed[0][1]:
        payloads = []
        for (_, names), (_, kinds) in zip(best, timed, strict=True):
            taken = kinds[what]
            payloads.append(payload := max(taken, key=lambda each: (len(each[0]), each[2])))
            names[what] = taken[payload] if len(set(taken.values())) == 1 else BY_PRICE
        for name, build in steady[0].choice.candidates(what).items():
            tried = [
                row
                for row, job in enumerate(steady)
                if name != best[row][1][what] and _may_take(job, name, build, payloads[row], best[row][0])
            ]
            trials = [{**best[row][1], what: name} for row in tried]
            took = _timed_s([steady[row] for row in tried], trials, cycle) if tried else []
            for row, names, (took_s, _) in zip(tried, trials, took, strict=True):
                if took_s < best[row][0] * (1 - _EVEN):
                    best[row] = took_s, names
    return best


def _may_take(job: Job, name: str, build: Builder, payload: tuple[Any, ...], most_s: float) -> bool:
    """Whether an algorithm can be tried for a payload, and its latencies alone take at most ``most_s``."""
    order, sites, num_bytes = payload
    least = least_latencies(name, sites)
    hop_s = min((job.transfer.network.route(*each).latency_s for each in pairwise(order)), default=0.0)
    if math.isinf(least) or least * hop_s > most_s:
        return False
    return place(build(sites, num_bytes), order, job.transfer).num_flows <= MAX_FLOWS


def _averaging(job: Job, **changes: Any) -> Job:
    return replace(job, collectives=replace(job.collectives, **changes))


def _timed_s(
    jobs: Sequence[Job], names: Sequence[Mapping[str, str]], cycle: int
) -> list[tuple[float, dict[str, Payloads]]]:
    """Seconds of a cycle of each job in the long run with these algorithms, and payloads to choose for."""
    chosen = [Algorithms(each) for each in names]
    jobs = [_averaging(job, chosen=each) for job, each in zip(jobs, chosen, strict=True)]
    begin, end = _CYCLES
    begun = _run_s(jobs, begin * cycle)
    if not any(each.taken for each in chosen) and not jobs[0].scheme.encodes(jobs[0].options):
        return [(begin_s, {}) for begin_s, _ in begun]
    if not is_plain(jobs[0]) and begun[0][1] < _MUCH_WORK:
        begin, end = _CYCLES_OF_WINDOWS
        begun = _run_s(jobs, begin * cycle)
    ended = _run_s(jobs, end * cycle)
    return [
        ((end_s - begin_s) / (end - begin), each.taken)
        for (begin_s, _), (end_s, _), each in zip(begun, ended, chosen, strict=True)
    ]


def _run_s(jobs: Sequence[Job], steps: int) -> list[tuple[float, int]]:
    """Seconds and messages of ``steps`` steps of each worker; ``RunError`` where the scheme needs values."""
    jobs = [replace(job, max_iterations=steps) for job in jobs]
    outcomes: list[Outcome | None] = [None] * len(jobs)
    if jobs[0].scheme.name in SCHEMES and not any(map(why_not, jobs)):
        with suppress(NotInLockstep):
            first, *others = [(job, job.scorer()) for job in jobs]
            outcomes = LockstepDriver(*first, *others).run_all()
    ran = []
    for job, outcome in zip(jobs, outcomes, strict=True):
        if outcome is not None:
            ran.append((outcome.wall_s, 0))  # whose work does not count: nothing lasts
            continue
        from ..drivers.event import EventDriver  # which a run in lockstep does not need

        events = EventDriver(job, list(map(job.program, range(job.workers))), job.scorer(), priced=True)
        ran.append((events.run().wall_s, events.messages))
    return ran
