"""Priced collectives that other traffic meets go on message by message, and take what messages take."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.config.settings import Settings
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.outcome import Outcome
from paceline.sim.errors import RunError
from paceline.sim.network.network import Network
from paceline.sim.network.stock_tcp import TcpSettings
from paceline.sim.program import operations as ops
from paceline.sim.program.groups import Groups
from paceline.sim.program.pattern import Pattern
from paceline.sim.program.worker import Worker
from paceline.sim.schemes.scheme import Scheme
from paceline.sim.traffic.transfers import Transfers
from tests.support.factory import make_job, make_scheme, network_of

laws = settings(deadline=None, derandomize=True)
ALGORITHMS = {
    "ideal": ("ring", "double_tree", "halving_doubling", "hierarchical", "ring_stop_and_wait", "gloo_ring"),
    "gloo": ("gloo_ring", "ring_stop_and_wait", "halving_doubling", "hierarchical", "auto"),
    "nccl": ("nccl_ring", "nccl_tree"),
}
COLLECTIVES = ("all_reduce", "all_reduce", "reduce_scatter", "all_gather", "gather_shards", "broadcast", "barrier")


@dataclass
class Round:
    """A collective of all workers, or of groups, among messages of pairs of workers.

    Attributes:
        kind, groups, numel: of the collective.
        started: by worker, whether the collective runs beside what follows.
        late_s: by worker, seconds before the collective, and after it.
        ahead, after: (sender, receiver) of messages started before it, and sent and received after it.
        anybody: receives are from anybody.
        mixes: a mix follows.
    """

    kind: str
    groups: Groups | None
    numel: int
    started: list[bool]
    late_s: list[list[float]]
    ahead: list[tuple[int, int]]
    after: list[tuple[int, int]]
    anybody: bool
    mixes: bool


def collective_of(each: Round, rank: int) -> ops.Operation[Any]:
    x, members = torch.zeros(each.numel), range(len(each.started))
    group = next(group for group in each.groups or (tuple(members),) if rank in group)
    match each.kind:
        case "reduce_scatter":
            return ops.ReduceScatter(x, each.groups)
        case "all_gather":
            return ops.AllGather(x, each.groups)
        case "gather_shards":
            return ops.AllGatherShards(torch.zeros(-(-each.numel // len(group))), each.numel, each.groups)
        case "broadcast":
            return ops.Broadcast(x, group[-1], each.groups)
        case "barrier":
            return ops.Barrier(each.groups)
    return ops.AllReduce(x, each.groups)


def scheme_of(rounds: list[Round]) -> Scheme:
    async def program(worker: Worker, options: Settings) -> None:
        rank, n = worker.rank, worker.size
        ring = Pattern((0.5,) * n, tuple(((r - 1) % n,) for r in range(n)), ((0.5,),) * n)
        for number, each in enumerate(rounds):
            x = torch.zeros(each.numel)
            of_pairs = [
                [
                    ops.Send(b, x, f"{number} {where} {k}")
                    if rank == a
                    else ops.Receive(ops.ANY if each.anybody else a, x, f"{number} {where} {k}")
                    for k, (a, b) in enumerate(pairs)
                    if rank in (a, b)
                ]
                for where, pairs in (("ahead", each.ahead), ("after", each.after))
            ]
            handles = [await worker.begin(message) for message in of_pairs[0]]
            await worker.sleep(each.late_s[0][rank])
            if each.started[rank]:
                handles.append(await worker.begin(collective_of(each, rank)))
            else:
                await collective_of(each, rank)
            await worker.sleep(each.late_s[1][rank])
            for message in of_pairs[1]:
                await message
            if each.mixes:
                await worker.mix(ring, x)
            for handle in handles:
                await worker.wait(handle)

    return make_scheme(program)


def draw_round(rng: Random, n: int, shared: bool) -> Round:
    late = rng.choice([0.0, 0.01, 1.0])

    def waits_s() -> list[float]:
        return [rng.choice([0.0, late * rng.random()]) for _ in range(n)]

    def pairs() -> list[tuple[int, int]]:
        drawn = [(rng.randrange(n), rng.randrange(n)) for _ in range(rng.choice([0, 0, 1, 2]))]
        return [(a, b) for a, b in drawn if a != b]

    ranks = rng.sample(range(n), n) if rng.random() < 0.5 else list(range(n))
    cut = rng.randint(1, n - 1)
    halves = tuple(tuple(sorted(half)) for half in (ranks[:cut], ranks[cut:]))
    starts = rng.random() < 0.4
    everybody = rng.random() < 0.5
    return Round(
        kind=rng.choice(COLLECTIVES),
        groups=rng.choice([None, None, halves]),
        numel=rng.choice([1, rng.randint(1, 200), 60]),
        started=[starts and (everybody or rng.random() < 0.5) for _ in range(n)],
        late_s=[waits_s() if rng.random() < 0.7 else [0.0] * n for _ in range(2)],
        ahead=pairs() if shared else [],
        after=pairs() if shared else [],
        anybody=rng.random() < 0.2,
        mixes=rng.random() < 0.15,
    )


def draw_network(rng: Random, n: int) -> Network:
    def at(*choices: str) -> str:
        return rng.choice(choices)

    within = {"latency": at("0 s", "1 ms", "0.1 s"), "bandwidth": at("1 Gbit/s", "10 Gbit/s", "333 Mbit/s")}
    between = {"latency": at("0 s", "40 ms"), "bandwidth": at("1 Gbit/s", "100 Mbit/s")}
    if rng.random() < 0.3:
        between["per_flow"] = "300 Mbit/s"
    host = {"gpus": 2, "latency": at("0 s", "0.1 ms"), "bandwidth": at("5 Gbit/s", "50 Gbit/s")}
    given: dict[str, Any] = dict(within)
    if n % 2 == 0 and rng.random() < 0.5:
        first = rng.randrange(2, n, 2) if n > 2 else 0
        given = {"sites": {"us": first, "eu": n - first}, "within": within, "between": between}
        if not first:
            given = dict(within)
        if rng.random() < 0.5:
            given["host"] = host
    elif rng.random() < 0.6:
        first = rng.randint(1, n - 1)
        given = {"sites": {"us": first, "eu": n - first}, "within": within, "between": between}
    return network_of(n, **given)


def draw_job(rng: Random) -> Job:
    n = rng.randint(2, 6)
    transport = rng.choice(["ideal", "ideal", "gloo", "gloo", "nccl"])
    rounds = [draw_round(rng, n, True) for _ in range(rng.randint(1, 4))]
    job = make_job(
        scheme_of(rounds), workers=n, network=draw_network(rng, n), transport=transport,
        bytes_per_parameter=rng.choice([1, 40_000, rng.randint(0, 200_000)]),
        all_reduce=rng.choice(ALGORITHMS[transport]), sharing=rng.choice(["max_min"] * 4 + ["rtt", "none"]),
        overhead_s=rng.choice([0.0, 0.002]), announcement=rng.choice([0.0, 1.0]),
    )  # fmt: skip
    transfer = job.transport.transfer(job.transfer)
    if transport == "gloo" and rng.random() < 0.3:
        transfer = replace(transfer, buffer_bytes=rng.choice([0.0, 1e5, 4e6]), copy_s_per_byte=1e-10)
    if rng.random() < 0.1:
        transfer = replace(transfer, **rng.choice([{"queue": "fifo"}, {"tcp": TcpSettings()}]))
    return replace(job, transfer=transfer)


def run(job: Job, priced: bool, faults: dict[int, int] | None = None) -> Outcome:
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    programs = [job.program(rank) for rank in range(job.workers)]
    driver = EventDriver(job, programs, scorer, faults=faults, priced=priced)
    try:
        return driver.run()
    except RunError as error:
        return driver.outcome(str(error))


def assert_same(priced: Outcome, single: Outcome) -> None:
    assert priced.message == single.message
    assert priced.wall_s == pytest.approx(single.wall_s, rel=1e-9, abs=1e-12)
    for rank, (a, b) in enumerate(zip(priced.breakdowns, single.breakdowns, strict=True)):
        assert a.bytes_sent == b.bytes_sent
        assert (a.wait_s, a.communicate_s) == pytest.approx((b.wait_s, b.communicate_s), rel=1e-9, abs=1e-11)
        of_rank = [[e for e in each.events if e.worker == rank] for each in (priced, single)]
        times = [sorted((e.operation, e.handle, e.start_s, e.end_s, e.peer_s) for e in each) for each in of_rank]
        for ours, theirs in zip(*times, strict=True):
            assert ours[:2] == theirs[:2]
            assert ours[2:] == pytest.approx(theirs[2:], rel=1e-9, abs=1e-12)
