"""One clock for records from several machines, with a bound on its error.

Processes of one machine share its clock. On every other machine one process asks worker 0 for the time a few
times, before the run and after it. With t1 and t4 the asker's times of sending the question and receiving the
answer, t2 and t3 worker 0's times of receiving and answering, worker 0's clock is ahead by

    ((t2 - t1) + (t3 - t4)) / 2,   off by at most half the round trip ((t4 - t1) - (t3 - t2)) / 2,

however unequal the two ways are (RFC 5905, section 8). The exchange with the shortest round trip counts.
Clocks are taken to drift evenly between the two readings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch
import torch.distributed as dist

from paceline.sim.errors import RunError
from paceline.sim.records.run import Machine, Run

from ..group.hosts import boot_id, host_name
from ..group.store import Control
from ..transport import connections
from .rank_log import RankLog

EXCHANGES: Final = 8
"""Clock exchanges of each machine, before a run and after it."""
_HEAD_START_S: Final = 0.05
"""Lead of a run's start over its announcement, so that every rank knows of it."""
_ROUND_TRIPS: Final = 8
"""Further lead, in longest round trips to the control store. A rank that has just missed the announcement
needs up to seven until it knows when the run begins.
"""
TO_START_S: Final = 3600.0
"""Time limit for a rank to score a run, or to prepare one, while the others wait."""
_EXCHANGE_S: Final = 600.0
"""Time limit for worker 0 to come to a machine: it answers one after the other."""


class Reading(NamedTuple):
    """At ``at_s`` of this clock, worker 0's was ahead by ``offset_s``, give or take ``error_s``."""

    at_s: float
    offset_s: float
    error_s: float


def reading(sent: float, received: float, answered: float, returned: float) -> Reading:
    """The reading of one exchange: t1 to t4 above."""
    offset_s = ((received - sent) + (answered - returned)) / 2
    round_trip_s = (returned - sent) - (answered - received)
    return Reading((sent + returned) / 2, offset_s, round_trip_s / 2)


class Alignment(NamedTuple):
    """Conversion of a worker's times to worker 0's: ``scale * t + shift_s``, off by at most ``error_s``."""

    scale: float
    shift_s: float
    error_s: float


def alignment(begin: Reading, end: Reading, zero_s: float) -> Alignment:
    """Alignment of a worker's clock from two readings; the run started at ``zero_s``.

    Clocks count as even where readings are too uncertain to show a drift.
    """
    moved_s = end.offset_s - begin.offset_s
    if abs(moved_s) <= begin.error_s + end.error_s:
        return Alignment(1.0, 0.0, max(begin.error_s, abs(moved_s) + end.error_s))
    rate = moved_s / (end.at_s - begin.at_s)
    return Alignment(1.0 + rate, rate * (zero_s - begin.at_s), max(begin.error_s, end.error_s))


@dataclass(frozen=True)
class RunStart:
    """The start of a run.

    Attributes:
        zero_s: its time on this process's monotonic clock.
        machines, names: boot ID and hostname of each worker's machine.
        reading: of this machine's clock; None where all share one.
    """

    zero_s: float
    machines: tuple[str, ...]
    names: tuple[str, ...]
    reading: Reading | None


def start(gloo: dist.ProcessGroupGloo, control: Control) -> RunStart:
    """Agree on the start of a run, to the accuracy of the clocks; ``RunError``: a worker is missing."""
    facts = control.meet("ready", [boot_id(), host_name(), _store_round_trip_s(control)], TO_START_S)
    machines, names, round_trips_s = (tuple(column) for column in zip(*facts, strict=True))
    readings = _readings(gloo, control, machines, "start")
    if control.rank == 0:
        control.put("zero", time.monotonic() + _HEAD_START_S + _ROUND_TRIPS * max(round_trips_s))

    def give_up() -> bool:
        return bool(control.dead() or control.silent(lambda _: "zero", [0]))

    if control.wait_for(lambda _: "zero", [0], TO_START_S, give_up):
        raise RunError("worker 0 was lost (zero)")
    own = readings.get(machines[control.rank])
    zero_s = float(control.get("zero")) - (own.offset_s if own is not None else 0.0)
    return RunStart(zero_s, machines, names, own)


def _store_round_trip_s(control: Control) -> float:
    """Round trip to the control store, in seconds: the least of three."""
    lasted_s = []
    for _ in range(3):
        asked_s = time.monotonic()
        control.failed()
        lasted_s.append(time.monotonic() - asked_s)
    return min(lasted_s)


def unaligned(begun: RunStart) -> tuple[Machine, ...]:
    """The workers' machines before clocks are compared at a run's end."""
    error_s = 0.0 if len(set(begun.machines)) == 1 else None
    return tuple(Machine(name, error_s) for name in begun.names)


def end(
    gloo: dist.ProcessGroupGloo, control: Control, begun: RunStart, log: RankLog
) -> tuple[RankLog, tuple[Machine, ...]]:
    """The log in worker 0's time, and each worker's machine with its clock error; ``RunError``: a loss."""
    if len(set(begun.machines)) == 1:
        return log, unaligned(begun)
    readings = _readings(gloo, control, begun.machines, "end")
    aligned = Alignment(1.0, 0.0, 0.0)
    own = readings.get(begun.machines[control.rank])
    if own is not None and begun.reading is not None:
        aligned = alignment(begun.reading, own, begun.zero_s)
    errors = control.meet("clock errors", aligned.error_s, _EXCHANGE_S)
    return corrected(log, aligned), tuple(map(Machine, begun.names, errors))


def corrected(log: RankLog, by: Alignment) -> RankLog:
    """The log with its times in worker 0's time."""

    def at(time_s: float) -> float:
        return by.scale * time_s + by.shift_s

    return replace(
        log,
        rows=[row._replace(start_s=at(row.start_s), end_s=at(row.end_s)) for row in log.rows],
        exposures=[
            replace(
                each, start_s=at(each.start_s), exposed_s=by.scale * each.exposed_s, peer_s=at(each.peer_s)
            )
            for each in log.exposures
        ],
        published=[replace(each, time_s=at(each.time_s)) for each in log.published],
        ended_s=None if log.ended_s is None else at(log.ended_s),
    )  # fmt: skip


def describe_clocks(runs: Sequence[Run]) -> str:
    """A sentence about the clocks of measured runs; "" if one machine ran them all."""
    machines = [machine for run in runs for machine in run.machines]
    hosts = len({machine.host for machine in machines})
    known = [machine.clock_error_s for machine in machines if machine.clock_error_s is not None]
    if hosts < 2 or not known or max(known) == 0:
        return ""
    return f"times of {hosts} hosts are on one clock, to within {1000 * max(known):.3g} ms"


def _readings(
    gloo: dist.ProcessGroupGloo, control: Control, machines: Sequence[str], when: str
) -> dict[str, Reading]:
    """Readings by machine, without that of worker 0's clock."""
    askers = {machine: machines.index(machine) for machine in machines if machine != machines[0]}
    own = None
    try:
        for asker in askers.values():
            if control.rank == asker:
                own = ask(*_line(gloo, 0))
            elif control.rank == 0:
                answer(*_line(gloo, asker))
    except connections.PeerGone as gone:
        raise RunError(f"worker {gone.rank} was lost while clocks were compared") from gone
    if not askers:
        return {}
    readings = control.meet(f"clock {when}", own, _EXCHANGE_S)
    return {machine: Reading(*readings[asker]) for machine, asker in askers.items()}


SendTimes = Callable[[float, float], None]
PostReceive = Callable[[], Callable[[], tuple[float, float]]]
"""Posts a receive; the returned call waits for the two numbers."""


def ask(send: SendTimes, receive: PostReceive, clock: Callable[[], float] = time.monotonic) -> Reading:
    """Ask for the time ``EXCHANGES`` times; the shortest round trip counts. The other side: ``answer``."""
    readings = []
    for _ in range(EXCHANGES):
        wait = receive()  # posted first, so that the answer need not wait for its announcement
        sent = clock()
        send(0.0, 0.0)
        received, answered = wait()
        readings.append(reading(sent, received, answered, clock()))
    return min(readings, key=lambda each: each.error_s)


def answer(send: SendTimes, receive: PostReceive, clock: Callable[[], float] = time.monotonic) -> None:
    """Answer ``ask``: send the time ``EXCHANGES`` times, once per question."""
    wait = receive()
    for number in range(EXCHANGES):
        wait()
        received = clock()
        if number + 1 < EXCHANGES:
            wait = receive()
        send(received, clock())


def _line(gloo: dist.ProcessGroupGloo, peer: int) -> tuple[SendTimes, PostReceive]:
    def send(received: float, answered: float) -> None:
        numbers = torch.tensor([received, answered], dtype=torch.float64)
        work = connections.send(gloo, numbers, peer, connections.CLOCK_TAG)
        connections.finish(work, peer, _EXCHANGE_S)

    def receive() -> Callable[[], tuple[float, float]]:
        numbers = torch.empty(2, dtype=torch.float64)
        work = connections.receive(gloo, numbers, peer, connections.CLOCK_TAG)

        def wait() -> tuple[float, float]:
            connections.finish(work, peer, _EXCHANGE_S)
            received, answered = numbers.tolist()
            return received, answered

        return wait

    return send, receive
