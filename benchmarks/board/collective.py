"""Milliseconds of a collective over gloo or NCCL, or of a message, between hosts with one worker each.

Used by the tables netem_collectives, netem_data_parallel and diloco_measured.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

import torch

from benchmarks.board.runs import other_clock
from paceline.sim.collectives.collective import Round, Schedule
from paceline.sim.config.settings import Settings
from paceline.sim.config.units import parse_bytes
from paceline.sim.errors import RunError
from paceline.sim.experiments.prepare import clock_only, prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network.network_settings import RECEIVE_BUFFER_BYTES, WINDOW_SHARE
from paceline.sim.program.pattern import Pattern
from paceline.sim.program.worker import Worker
from paceline.sim.scenario.schema import Scenario, parse
from paceline.sim.schemes.scheme import Scheme

UNLIMITED: Final = {"gloo": "5 Gbit/s", "nccl": "10 Gbit/s"}
"""Hosts without netem: a single TCP flow of gloo's, and the network card, which NCCL's sockets fill."""
PAUSE_S: Final = 1.0
"""Between two messages in the script that measured them (pytorch_send_recv_test.py)."""
_HALF: Final = f"receive_buffer: {RECEIVE_BUFFER_BYTES / 2 / WINDOW_SHARE:.0f} B"
"""Half of it was the window (tcp_adv_win_scale 1): that of a smaller buffer today."""
STOCK: Final = {"gloo": f", tcp: {{{_HALF}}}", "nccl": f", tcp: {{connections: 16, {_HALF}}}"}
"""Linux 4.20 to 6.5, as Ubuntu 18.04 and 20.04 have it: cubic, 10 segments, tcp_rmem up to 6 MiB with
tcp_adv_win_scale 1, tcp_wmem up to 4 MiB, slow start after idle. NCCL's sockets on AWS: 2 threads of 8."""


@dataclass(frozen=True)
class Collective:
    """What is run.

    Attributes:
        kind: all_reduce, broadcast, reduce, reduce_scatter, all_gather, all_to_all or point_to_point.
        workers: one a host.
        latency: one way.
        bandwidth: of every host's link; empty: that of ``UNLIMITED``.
        transport: gloo or nccl.
        payload: a worker's whole tensor; of reduce_scatter and all_gather that of all shards.
    """

    kind: str
    workers: int
    latency: str
    bandwidth: str
    transport: str
    payload: str


def predict_ms(what: Collective) -> float:
    """Milliseconds until the last worker is through, on tuned hosts.

    Raises:
        InputError: a quantity cannot be read.
        RunError: there is no such collective.
    """
    return 1e3 * _wall_clock_s(what, "")


def predict_stock_ms(what: Collective) -> float:
    """Milliseconds of a message on stock hosts, after another one and a pause.

    Raises:
        InputError: a quantity cannot be read.
        RunError: there is no such collective.
    """
    tcp = STOCK[what.transport]
    return 1e3 * (_wall_clock_s(what, tcp, again=True) - PAUSE_S - _wall_clock_s(what, tcp))


def _wall_clock_s(what: Collective, tcp: str, again: bool = False) -> float:
    known = {name for name, _ in _PROGRAMS}
    if what.kind not in known:
        raise RunError(f"no collective is called {what.kind}; choose from {', '.join(sorted(known))}")
    clock = other_clock()
    if clock is None:
        return _simulated_s(what, tcp, again)
    once_s = clock(_scenario_of(what, tcp), what.kind)
    return 2 * once_s + PAUSE_S if again else once_s


def _scenario_of(what: Collective, tcp: str) -> Scenario:
    hosts, bandwidth = (
        [f"h{rank}" for rank in range(what.workers)],
        what.bandwidth or UNLIMITED[what.transport],
    )
    links = [_LINKS.format(host=host, latency=what.latency, bandwidth=bandwidth) for host in hosts]
    return parse(
        _SCENARIO.format(
            bytes=parse_bytes(what.payload),
            transport=what.transport,
            tcp=tcp,
            hosts=", ".join(hosts),
            links=", ".join(links),
        )
    )


@cache
def _simulated_s(what: Collective, tcp: str, again: bool) -> float:
    scenario = _scenario_of(what, tcp)
    once = _PROGRAMS[what.kind, what.transport]
    program = _repeat(once) if again else once
    start = torch.zeros(what.workers)  # a number for each worker's share
    job = replace(
        clock_only(prepare(scenario, scenario.schemes[0], 0)),
        scheme=Scheme("collective", program, Settings, True, lambda options, workers: None),
        options=Settings(),
        start=start,
        bytes_per_parameter=parse_bytes(what.payload) / len(start),
    )
    if (what.kind, what.transport) == ("reduce", "gloo"):
        job = replace(
            job, collectives=replace(job.collectives, all_reduce="benchmarks.board.collective:gloo_reduce")
        )
    run = simulate_job(job)
    if run.status != "completed":
        raise RunError(run.message)
    return run.wall_clock_s


_SCENARIO: Final = """\
name: collective
workload: {{timing_only: true, payload: {bytes} B}}
cluster:
  compute: {{time: 1 us}}
  network: {{transport: {transport}{tcp}, graph: {{hosts: [{hosts}], links: [{links}]}}}}
schemes: [all_reduce]
stop: {{max_iterations: 1}}
"""
_LINKS: Final = """\
{{source: {host}, target: switch, one_way: true, latency: {latency}, bandwidth: {bandwidth}}}, \
{{source: switch, target: {host}, one_way: true, latency: 0 s, bandwidth: 10 Gbit/s}}"""
"""A queueing discipline holds back what a host sends; what it receives may fill its card."""


def gloo_reduce(workers: int, bytes: int) -> Schedule:
    """gloo's reduce: segments around the ring, two in flight, then everybody sends its chunk to rank 0.

    Of all segments only the last two are not passed on, where (n - 1) / n of them would do (read in gloo's
    reduce.cc at 55b6bf7).
    """
    segments = max(-(-bytes // 2**20), 2 * workers)
    segments += -segments % workers
    length = -(-bytes // segments)
    length += -length % 4
    lengths = [max(0, min(length, bytes - k * length)) for k in range(segments)]
    per_chunk = segments // workers
    chunks = [sum(lengths[rank * per_chunk : (rank + 1) * per_chunk]) for rank in range(workers)]
    table = []
    for rank in range(workers):
        first = (rank + 1) * per_chunk
        rounds = [
            Round(
                _if_any((rank + 1) % workers, lengths[(first + per_chunk + i) % segments]),
                _if_any((rank - 1) % workers, lengths[(first + i) % segments]),
            )
            for i in range(segments - 2)
        ]
        idle = Round((), ())  # the second phase begins when the first is complete
        if rank:
            last = Round((), _if_any(0, chunks[rank]))
        else:
            last = Round(tuple(m for peer in range(1, workers) for m in _if_any(peer, chunks[peer])), ())
        table.append((*rounds, idle, last))
    return Schedule(tuple(table), 2)


def _if_any(peer: int, num_bytes: int) -> tuple[tuple[int, int], ...]:
    return ((peer, num_bytes),) if num_bytes else ()


_Program = Callable[[Worker, Settings], Coroutine[Any, Any, None]]


def _repeat(program: _Program) -> _Program:
    async def again(worker: Worker, options: Settings) -> None:
        await program(worker, options)
        await worker.sleep(PAUSE_S)
        await program(worker, options)

    return again


async def _all_reduce(worker: Worker, options: Settings) -> None:
    await worker.all_reduce(worker.start)


async def _broadcast(worker: Worker, options: Settings) -> None:
    await worker.broadcast(worker.start, 0)


async def _reduce_scatter(worker: Worker, options: Settings) -> None:
    await worker.reduce_scatter(worker.start)


async def _all_gather(worker: Worker, options: Settings) -> None:
    await worker.all_gather_shards(worker.start[:1], worker.size)


async def _all_to_all(worker: Worker, options: Settings) -> None:
    others = tuple(tuple(b for b in range(worker.size) if b != a) for a in range(worker.size))
    weights = tuple((1.0 / worker.size,) * (worker.size - 1) for _ in others)
    await worker.mix(Pattern((1.0 / worker.size,) * worker.size, others, weights), worker.start[:1])


async def _one_way(worker: Worker, options: Settings) -> None:
    """From worker 0 to worker 1, as part of a pattern, which NCCL carries."""
    rest = worker.size - 2
    pattern = Pattern((1.0, 0.5, *(1.0,) * rest), ((), (0,), *((),) * rest), ((), (0.5,), *((),) * rest))
    await worker.mix(pattern, worker.start)


async def _message(worker: Worker, options: Settings) -> None:
    if worker.rank == 0:
        await worker.send(1, worker.start)
    elif worker.rank == 1:
        await worker.receive(0, worker.start)


_PROGRAMS: Final = {
    ("all_reduce", "gloo"): _all_reduce,
    ("all_reduce", "nccl"): _all_reduce,
    ("broadcast", "gloo"): _broadcast,
    ("broadcast", "nccl"): _broadcast,
    ("reduce", "gloo"): _all_reduce,  # with ``gloo_reduce`` for its algorithm
    ("reduce", "nccl"): _broadcast,  # along the same chain, the other way round
    ("reduce_scatter", "gloo"): _reduce_scatter,
    ("reduce_scatter", "nccl"): _reduce_scatter,
    ("all_gather", "gloo"): _all_gather,
    ("all_gather", "nccl"): _all_gather,
    ("all_to_all", "gloo"): _all_to_all,
    ("all_to_all", "nccl"): _all_to_all,
    ("point_to_point", "gloo"): _message,
    ("point_to_point", "nccl"): _one_way,
}
