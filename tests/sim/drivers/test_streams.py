"""Streams, by hand: one host sends at 100 bytes/s and 1 s latency, both ways."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.sim.network.transport import TransferModel
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from tests.support.factory import flat_network, make_job, make_scheme, run_events

IDEAL = TransferModel(flat_network(2, 1.0, 100.0))
GLOO = replace(IDEAL, announcement=1.0, streams=True)


def times(program: Any, model: TransferModel, workers: int = 2) -> dict[tuple[int, str, int], float]:
    """(worker, operation, number) -> when it ended; values of k parameters are k bytes."""
    job = make_job(make_scheme(program, synchronous=False), workers=workers, bytes_per_parameter=1.0)
    outcome = run_events(replace(job, transfer=model))
    found: dict[tuple[int, str, int], float] = {}
    for event in outcome.events:
        number = sum(key[:2] == (event.worker, event.operation) for key in found)
        found[event.worker, event.operation, number] = event.end_s
    return found


async def _two_messages(worker: Worker, options: object) -> None:
    value = torch.zeros(100)
    kinds = (ops.Send(1, value, "a"), ops.Send(1, value, "b")) if worker.rank == 0 else (
        ops.Receive(0, value, "a"), ops.Receive(0, value, "b")
    )  # fmt: skip
    handles = [await worker.begin(kind) for kind in kinds]
    for handle in handles:
        await worker.wait(handle)


def test_messages_of_one_stream_follow_each_other() -> None:
    # Ideal: both share the link, so both have left at 2 s. A stream: after 1 (announcement) + 1, and + 2.
    ideal = times(_two_messages, IDEAL)
    assert (ideal[1, "receive", 0], ideal[1, "receive", 1]) == (3.0, 3.0)
    gloo = times(_two_messages, GLOO)
    assert (gloo[1, "receive", 0], gloo[1, "receive", 1]) == (1 + 1 + 1, 1 + 2 + 1)
    assert (gloo[0, "send", 0], gloo[0, "send", 1]) == (2.0, 3.0)


@pytest.mark.parametrize(("buffer_bytes", "done_s"), [(0, 2.0), (30, 1.7), (100, 1.0), (1000, 1.0)])
def test_a_send_is_done_when_the_rest_fits_into_the_buffer(buffer_bytes: float, done_s: float) -> None:
    async def program(worker: Worker, options: object) -> None:
        value = torch.zeros(100)
        await (worker.send(1, value) if worker.rank == 0 else worker.receive(0, value))

    found = times(program, replace(GLOO, buffer_bytes=buffer_bytes))
    assert found[0, "send", 0] == pytest.approx(done_s, abs=1e-12)
    assert found[1, "receive", 0] == pytest.approx(3.0, abs=1e-12)


def test_copying_counts_for_the_sender_only() -> None:
    async def program(worker: Worker, options: object) -> None:
        value = torch.zeros(100)
        await (worker.send(1, value) if worker.rank == 0 else worker.receive(0, value))

    found = times(program, replace(GLOO, buffer_bytes=1000, copy_s_per_byte=0.002))
    assert (found[0, "send", 0], found[1, "receive", 0]) == (1.2, 3.0)


def test_a_receive_from_anybody_is_announced_when_the_sender_has_been_heard_of() -> None:
    async def program(worker: Worker, options: object) -> None:
        value = torch.zeros(100)
        await (worker.send(1, value) if worker.rank == 0 else worker.receive(ops.ANY, value))

    # Heard at 1, announcement there at 2, bytes until 3, arrival at 4; the nominal network needs 1 + 1.
    assert times(program, GLOO)[1, "receive", 0] == 4.0
    assert times(program, IDEAL)[1, "receive", 0] == 2.0


def test_who_is_heard_first_is_served_first() -> None:
    far = replace(flat_network(3, 1.0, 100.0), site_of=(0, 1, 0), sites=("a", "b"))
    network = replace(far, latency_s=((1.0, 5.0), (5.0, 1.0)), per_flow_bytes_per_s=((1e9, 1e9), (1e9, 1e9)))
    order: list[int] = []

    async def program(worker: Worker, options: object) -> None:
        value = torch.zeros(1)
        if worker.rank == 0:
            for _ in range(2):
                order.append((await worker.receive(ops.ANY, value)).source)
        else:
            await worker.sleep(1.0 if worker.rank == 2 else 0.0)
            await worker.send(0, value)

    # Worker 1 is ready at 0 but heard of at 5; worker 2 is ready at 1 and heard of at 2.
    times(program, replace(GLOO, network=network), workers=3)
    assert order == [2, 1]
    order.clear()
    times(program, replace(IDEAL, network=network), workers=3)
    assert order == [1, 2]


def test_an_announcement_waits_behind_bulk_in_its_own_direction() -> None:
    async def program(worker: Worker, options: object) -> None:
        bulk, small = torch.zeros(400), torch.zeros(100)
        if worker.rank == 0:
            sending = await worker.begin(ops.Send(1, bulk, "bulk"))
            await worker.sleep(2.0)
            await worker.receive(1, small, "small")
            await worker.wait(sending)
        else:
            receiving = await worker.begin(ops.Receive(0, bulk, "bulk"))
            await worker.send(0, small, "small")
            await worker.wait(receiving)

    # The bulk leaves from 1 to 5; the announcement, posted at 2, leaves at 5 and is there at 6, so that the
    # small message leaves from 6 to 7 and arrives at 8. In front of the bulk it would have been there at 3.
    assert times(program, GLOO)[0, "receive", 0] == 8.0


def test_resuming_and_lateness_add_up() -> None:
    async def program(worker: Worker, options: object) -> None:
        await worker.gradient(worker.start)
        await worker.barrier()
        value = torch.zeros(100)
        await (worker.send(1, value) if worker.rank == 0 else worker.receive(0, value))

    # 1 + 0.25; a barrier of one round, 1 (announcement) + 1 + 0.5; then 1 + 1 + 1 + 0.5.
    found = times(program, replace(GLOO, resume_s=0.5, late_s=0.25))
    assert found[1, "gradient", 0] == 1.25
    assert found[1, "barrier", 0] == 1.25 + 2.5
    assert found[1, "receive", 0] == 1.25 + 2.5 + 3.5


def test_drawn_lateness_replaces_the_constant() -> None:
    async def program(worker: Worker, options: object) -> None:
        for _ in range(20):
            await worker.gradient(worker.start)

    found = times(program, replace(GLOO, late_s=9.0, wake_up_delays_s=(0.0, 0.5)))
    ends = [found[0, "gradient", k] for k in range(20)]
    steps = [round(b - a, 9) for a, b in zip([0.0, *ends], ends, strict=False)]
    assert set(steps) <= {1.0, 1.5, 2.0}  # the first one has the lateness of the beginning too
    assert set(steps[1:]) == {1.0, 1.5}


def test_workers_begin_as_late_as_the_profile_says() -> None:
    async def program(worker: Worker, options: object) -> None:
        await worker.sleep(1.0)

    found = times(program, replace(GLOO, wake_up_delays_s=(0.25,)))
    assert found[0, "sleep", 0] == found[1, "sleep", 0] == 1.25


def test_an_exchange_never_ends_before_its_transfers() -> None:
    async def program(worker: Worker, options: object) -> None:
        await worker.barrier()

    assert times(program, replace(GLOO, resume_s=0.5, resume_jitter_s=(-9.0,)))[0, "barrier", 0] == 2.0
    assert times(program, replace(GLOO, resume_s=0.5, resume_jitter_s=(0.25,)))[0, "barrier", 0] == 2.75


async def _crowd(worker: Worker, options: object) -> None:
    value = torch.zeros(100)
    if worker.rank:
        await worker.send(0, value)
        return
    handles = [await worker.begin(ops.Receive(source, value)) for source in (1, 2)]
    for handle in handles:
        await worker.wait(handle)


def test_shares_that_are_drawn_are_of_links_that_are_shared() -> None:
    model = replace(GLOO, network=flat_network(3, 1.0, 100.0))
    even = times(_crowd, model, 3)
    assert (even[0, "receive", 0], even[0, "receive", 1]) == (4.0, 4.0)
    assert times(_crowd, replace(model, uneven_s_per_byte=(0.01,)), 3) == even, "all shares are alike"
    # One of them has three times the other's share: through after 4/3 of the 2 s. The link is never idle.
    ends = set()
    for seed in range(9):
        drawn = replace(model, uneven_s_per_byte=(0.01, -1 / 300), seed=seed)  # weights of 1/2 and 3/2
        uneven = times(_crowd, drawn, 3)
        assert uneven == times(_crowd, drawn, 3)
        ends.add((round(uneven[0, "receive", 0], 9), round(uneven[0, "receive", 1], 9)))
    early = round(2 + 4 / 3, 9)
    assert {(4.0, 4.0), (early, 4.0)} <= ends <= {(4.0, 4.0), (early, 4.0), (4.0, early)}
    alone = times(_two_messages, replace(GLOO, uneven_s_per_byte=(0.01, -1 / 300)))
    assert alone == times(_two_messages, GLOO), "a message that has its links to itself takes what it takes"


@pytest.mark.parametrize(
    "uneven", [{"uneven_s_per_byte": (0.0, 1e-3)}, {"uneven_s": (0.0, 0.1)}], ids=["bytes", "messages"]
)
def test_shares_are_the_more_even_the_slower_the_link(uneven: dict[str, tuple[float, ...]]) -> None:
    """A host that takes 0.1 s longer for 100 bytes loses a tenth at 100 bytes/s, and a hundredth at 10."""
    for rate, lost in ((100.0, 0.1), (10.0, 0.01)):
        model = replace(GLOO, network=flat_network(3, 0.0, rate), **uneven)  # type: ignore[arg-type]
        ends = set()
        for seed in range(9):
            ended = times(_crowd, replace(model, seed=seed), 3)
            ends.add(min(ended[0, "receive", source] for source in (0, 1)) * rate)
        # Of two messages of 100 bytes the first is through when 100 (1 + weight of the other) have left.
        assert max(ends) == pytest.approx(200, rel=1e-6)
        assert min(ends) == pytest.approx(100 * (1 + 1 / (1 + lost)), rel=1e-3)


@pytest.mark.parametrize("uneven", [{"uneven_s_per_byte": (0.0, 1e-3)}, {"uneven_s": (-0.1, 0.1)}])
def test_links_without_a_limit_have_nothing_to_share(uneven: dict[str, tuple[float, ...]]) -> None:
    """A message takes no time there, so that no time on a host can be compared with it."""
    free = replace(GLOO, network=flat_network(3, 0.0, math.inf))
    assert times(_crowd, replace(free, **uneven), 3) == times(_crowd, free, 3)  # type: ignore[arg-type]


def test_efficiency_and_added_latency() -> None:
    async def program(worker: Worker, options: object) -> None:
        value = torch.zeros(100)
        await (worker.send(1, value) if worker.rank == 0 else worker.receive(0, value))

    found = times(program, replace(GLOO, efficiency=0.5, added_latency_s=0.25, overhead_s=0.125))
    assert found[1, "receive", 0] == 1.25 + 0.125 + 2.0 + 1.25
