"""Priced collectives continue message by message once other traffic meets them, and take as long."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.config.settings import Settings
from paceline.sim.drivers.collectives import CollectivesInFlight
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.outcome import Outcome
from paceline.sim.errors import PeerLost, RunError
from paceline.sim.network.network import Network
from paceline.sim.network.network_settings import TcpSettings
from paceline.sim.program import operations as ops
from paceline.sim.program.groups import Groups
from paceline.sim.program.pattern import Pattern
from paceline.sim.program.worker import Worker
from paceline.sim.schemes.scheme import Scheme
from paceline.sim.traffic.transfers import Transfers
from tests.support.factory import make_job, make_scheme, network_of

laws = settings(derandomize=True, max_examples=150)
ALGORITHMS = {
    "ideal": ("ring", "double_tree", "halving_doubling", "hierarchical", "ring_stop_and_wait", "gloo_ring"),
    "gloo": ("gloo_ring", "ring_stop_and_wait", "halving_doubling", "hierarchical", "auto"),
    "nccl": ("nccl_ring", "nccl_tree"),
}
KINDS = ("all_reduce", "reduce_scatter", "all_gather", "all_gather_shards", "broadcast", "barrier")
KINDS_BY_WEIGHT = (*["all_reduce"] * 4, *KINDS)


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
        beside: groups of an all-reduce begun ahead of it all.
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
    beside: Groups | None


def collective_of(each: Round, rank: int) -> ops.Operation[Any]:
    x, groups = torch.zeros(each.numel), each.groups
    group = next(group for group in groups or (tuple(range(len(each.started))),) if rank in group)
    of_kind: dict[str, Callable[[], ops.Operation[Any]]] = {
        "all_reduce": lambda: ops.AllReduce(x, groups),
        "reduce_scatter": lambda: ops.ReduceScatter(x, groups),
        "all_gather": lambda: ops.AllGather(x, groups),
        "all_gather_shards": lambda: ops.AllGatherShards(x[: -(-len(x) // len(group))], len(x), groups),
        "broadcast": lambda: ops.Broadcast(x, group[-1], groups),
        "barrier": lambda: ops.Barrier(groups),
    }
    return of_kind[each.kind]()


def messages_of(rank: int, pairs: list[tuple[int, int]], each: Round, tag: str) -> list[ops.Operation[Any]]:
    x = torch.zeros(each.numel)
    return [
        ops.Send(b, x, f"{tag} {k}")
        if rank == a
        else ops.Receive(ops.ANY if each.anybody else a, x, f"{tag} {k}")
        for k, (a, b) in enumerate(pairs)
        if rank in (a, b)
    ]


def scheme_of(rounds: list[Round]) -> Scheme:
    async def program(worker: Worker, options: Settings) -> None:
        rank, n = worker.rank, worker.size
        ring = Pattern((0.5,) * n, tuple(((r - 1) % n,) for r in range(n)), ((0.5,),) * n)
        for number, each in enumerate(rounds):
            ahead = messages_of(rank, each.ahead, each, f"{number} ahead")
            handles = [await worker.begin(message) for message in ahead]
            if each.beside:
                handles.append(await worker.begin(ops.AllReduce(torch.zeros(each.numel), each.beside)))
            await worker.sleep(each.late_s[0][rank])
            with suppress(PeerLost):
                if each.started[rank]:
                    handles.append(await worker.begin(collective_of(each, rank)))
                else:
                    await collective_of(each, rank)
                await worker.sleep(each.late_s[1][rank])
                for message in messages_of(rank, each.after, each, f"{number} after"):
                    await message
                if each.mixes:
                    await worker.mix(ring, torch.zeros(each.numel))
            for handle in handles:
                with suppress(PeerLost):
                    await worker.wait(handle)

    return make_scheme(program)


def draw_round(rng: Random, n: int) -> Round:
    late_s = rng.choice([0.0, 0.003, 0.03, 0.3])

    def pairs() -> list[tuple[int, int]]:
        drawn = [(rng.randrange(n), rng.randrange(n)) for _ in range(rng.choice([0, 1, 2, 3]))]
        return [(a, b) for a, b in drawn if a != b]

    ranks = rng.sample(range(n), n) if rng.random() < 0.5 else list(range(n))
    cut = rng.randint(1, n - 1)
    parts = tuple(tuple(sorted(part)) for part in (ranks[:cut], ranks[cut:]))
    share_started = rng.choice([0.0, 0.0, 0.0, 0.5, 1.0])
    inside = tuple((k, k + 1) for k in range(0, n, 2))  # of a host, where hosts have two workers
    across = tuple(tuple(range(k, n, 2)) for k in (0, 1))
    hybrid = n % 2 == 0 and rng.random() < 0.3
    return Round(
        kind=rng.choice(KINDS_BY_WEIGHT),
        groups=inside if hybrid else rng.choice([None, None, None, parts]),
        numel=rng.choice([1, 60, rng.randint(1, 200)]),
        started=[rng.random() < share_started for _ in range(n)],
        late_s=[[rng.choice([0.0, late_s * rng.random()]) for _ in range(n)] for _ in range(2)],
        ahead=rng.choice([[], [], [], pairs()]),
        after=pairs(),
        anybody=rng.random() < 0.2,
        mixes=rng.random() < 0.2,
        beside=across if hybrid else None,
    )


def draw_rounds(rng: Random) -> list[Round]:
    n = rng.randint(2, 6)
    return [draw_round(rng, n) for _ in range(rng.randint(2, 5))]


def draw_network(rng: Random, n: int) -> Network:
    """One site, or two with a pipe between them; hosts of one worker, or of two that share a card."""
    within = {
        "latency": rng.choice(["0 s", "1 ms", "30 ms"]),
        "bandwidth": rng.choice(["333 Mbit/s", "1 Gbit/s", "10 Gbit/s"]),
    }
    between = {
        "latency": rng.choice(["0 s", "40 ms"]),
        "bandwidth": rng.choice(["100 Mbit/s", "1 Gbit/s"]),
        **rng.choice([{}, {}, {"per_flow": "300 Mbit/s"}]),
    }
    gpus = 2 if n % 2 == 0 and rng.random() < 0.5 else 1
    here = rng.choice([n, gpus * rng.randint(1, n // gpus)])
    host = {"gpus": 2, "latency": rng.choice(["0 s", "0.1 ms"]), "bandwidth": "5 Gbit/s"}
    hosts = {"host": host} if gpus > 1 else {}
    if here == n:
        return network_of(n, **within, **hosts)
    return network_of(n, sites={"us": here, "eu": n - here}, within=within, between=between, **hosts)


def draw_job(rng: Random, rounds: list[Round]) -> Job:
    n = len(rounds[0].started)
    transport = rng.choice(["ideal", "ideal", "gloo", "gloo", "nccl", "nccl"])
    job = make_job(
        scheme_of(rounds), workers=n, network=draw_network(rng, n), transport=transport,
        bytes_per_parameter=rng.choice([1, 40_000, rng.randint(0, 200_000)]),
        all_reduce=rng.choice(ALGORITHMS[transport]), sharing=rng.choice(["max_min"] * 6 + ["rtt", "none"]),
        overhead_s=rng.choice([0.0, 0.002]), announcement=rng.choice([0.0, 1.0]),
    )  # fmt: skip
    transfer = job.collectives.transport.transfer(job.transfer)
    if transport == "gloo":
        transfer = replace(transfer, buffer_bytes=rng.choice([0.0, 1e5, 4e6]), copy_s_per_byte=1e-10)
    if rng.random() < 0.1:
        transfer = (
            replace(transfer, queue="fifo") if rng.random() < 0.5 else replace(transfer, tcp=TcpSettings())
        )
    return replace(job, transfer=transfer)


def draw_crash(rng: Random, rounds: list[Round]) -> dict[int, int]:
    """A worker, and the number of its last operation: a wait of its own before a collective."""
    for each in rounds:
        each.late_s = [[0.02 * rng.random() for _ in each.started] for _ in each.late_s]
    rank, last = rng.randrange(len(rounds[0].started)), rng.randrange(len(rounds))
    number = 1 + sum(rank in pair for pair in rounds[last].ahead)
    for each in rounds[:last]:
        ahead, after = (sum(rank in pair for pair in pairs) for pairs in (each.ahead, each.after))
        number += 2 * ahead + after + 3 + each.started[rank] + each.mixes
    return {rank: number}


def run(job: Job, priced: bool, faults: dict[int, int]) -> Outcome:
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
        rows = [
            sorted(
                (event.operation, event.handle, event.start_s, event.end_s, event.peer_s)
                for event in outcome.events
                if event.worker == rank
            )
            for outcome in (priced, single)
        ]
        for ours, theirs in zip(*rows, strict=True):
            assert ours[:2] == theirs[:2]
            assert ours[2:] == pytest.approx(theirs[2:], rel=1e-9, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("crash", [False, True])
def test_met_is_message_by_message(crash: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At random instants, by messages, mixes and other collectives, late members, and a worker that dies."""
    replays: list[float] = []
    met: list[bool] = []
    replay = Transfers.replay

    def count(transfers: Transfers, start_s: float, begin: Callable[[], None]) -> None:
        replays.append(start_s)
        replay(transfers, start_s, begin)

    monkeypatch.setattr(Transfers, "replay", count)

    @laws
    @given(st.integers(0, 2**32))
    def law(seed: int) -> None:
        replays.clear()
        rng = Random(seed)
        rounds = draw_rounds(rng)
        faults = draw_crash(rng, rounds) if crash else {}
        job = draw_job(rng, rounds)
        assert_same(run(job, True, faults), run(job, False, faults))
        met.append(bool(replays))

    law()
    assert sum(met) >= 20


def test_collectives_inside_hosts_stay_whole_beside_those_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their links are others, as their streams are."""
    host = {"gpus": 2, "bandwidth": "5 Gbit/s"}
    network = network_of(4, latency="1 ms", bandwidth="1 Gbit/s", host=host)
    each = Round(
        kind="all_gather", groups=((0, 1), (2, 3)), numel=100, started=[True] * 4,
        late_s=[[0.0, 0.001] * 2] * 2, ahead=[], after=[], anybody=False, mixes=False,
        beside=((0, 2), (1, 3)),
    )  # fmt: skip
    job = make_job(
        scheme_of([each] * 3), workers=4, network=network, transport="nccl", bytes_per_parameter=40_000,
        all_reduce="nccl_ring",
    )  # fmt: skip
    single = run(job, False, {})
    monkeypatch.delattr(CollectivesInFlight, "_move")
    assert_same(run(job, True, {}), single)
