"""First-in-first-out links by hand, in bytes and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.network.transport import TransferModel
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from paceline.sim.traffic.fifo import FifoSharing
from tests.support.factory import flat_network, make_job, make_scheme, run_events

Sent = tuple[float, tuple[int, ...], float, float]


def ends(bandwidths: list[float], sent: Sequence[Sent]) -> list[float]:
    """When each (start, links, bytes, cap) has left its last link."""
    sharing, waiting, out = FifoSharing(bandwidths), list(sent), dict[int, float]()
    sharing.solve(0.0)
    while waiting or sharing.next_finish_s < inf:
        start_s = waiting[0][0] if waiting else inf
        now_s = min(start_s, sharing.next_finish_s)
        out |= dict.fromkeys(sharing.finished(now_s), now_s)
        while waiting and waiting[0][0] <= now_s:
            _, links, size, cap = waiting.pop(0)
            sharing.start(now_s, links, size, cap)
        sharing.solve(now_s)
    return [out[number] for number in range(len(sent))]


def test_what_comes_later_waits_for_all_in_front_of_it() -> None:
    assert ends([100.0], [(0.0, (0,), 1000.0, inf), (1.0, (0,), 100.0, inf)]) == [10.0, 11.0]


def test_two_links_take_the_time_of_the_slower_one() -> None:
    assert ends([1e6, 1e6], [(0.0, (0, 1), 4e6, inf)]) == pytest.approx([4.0])
    assert ends([2e6, 1e6], [(0.0, (0, 1), 4e6, inf)]) == pytest.approx([4.0], rel=0.02)


def test_a_full_second_link_does_not_hold_up_the_first() -> None:
    # Hosts 0 and 1 fill link 2; what host 0 sends to link 3 after that leaves as soon as link 0 is free.
    sent = [(0.0, (0, 2), 1e6, inf), (0.0, (1, 2), 1e6, inf), (0.0, (0, 3), 1e6, inf)]
    first, second, third = ends([1e6] * 4, sent)
    assert max(first, second) == pytest.approx(2.0)
    assert third == pytest.approx(2.0, rel=0.02)


def test_a_cap_is_a_link_of_its_own() -> None:
    assert ends([1000.0], [(0.0, (0,), 2000.0, 500.0)]) == pytest.approx([4.0], rel=0.02)
    assert ends([1000.0], [(0.0, (0,), 2000.0, 5000.0)]) == [2.0]


def test_nothing_takes_no_time() -> None:
    assert ends([1000.0, inf], [(1.0, (), 10.0, inf), (2.0, (0,), 0.0, inf), (3.0, (1,), 5.0, inf)]) == [
        1.0,
        2.0,
        3.0,
    ]


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(1, 1e5)), min_size=1, max_size=8))
def test_one_link_works_off_what_comes_in_order(arrivals: list[tuple[float, float]]) -> None:
    arrivals.sort()
    free_s, expected = 0.0, []
    for start_s, size in arrivals:
        free_s = max(free_s, start_s) + size / 1e3
        expected.append(free_s)
    assert ends([1e3], [(start_s, (0,), size, inf) for start_s, size in arrivals]) == pytest.approx(expected)


def test_something_short_waits_for_what_was_in_front_of_it_when_it_came() -> None:
    # Ten bytes come to a link of 10 bytes/s at 0 and at 0.5 s, whose bytes are gone at 1 and 2 s.
    sharing = FifoSharing([10.0, 5.0, inf])
    for start_s in (0.0, 0.5):
        sharing.start(start_s, (0,), 10.0, inf)
    waits_s = [sharing.wait_s((0, 2), at_s) for at_s in (-0.1, 0.25, 0.5, 1.5, 2.5)]
    assert waits_s == [0.0, 0.75, 1.5, 0.5, 0.0]
    sharing.start(0.5, (1,), 10.0, inf)  # gone at 2.5 s: what comes to it at 2 s waits for another half
    assert sharing.wait_s((0, 1), 0.5) == 2.0


def test_announcements_wait_behind_bulk() -> None:
    # Worker 1 sends 1000 bytes at 100 a second, and meanwhile posts a receive.
    async def program(worker: Worker, options: object) -> None:
        if worker.rank == 1:
            bulk = await worker.begin(ops.Send(0, torch.zeros(1000), "bulk"))
            await worker.sleep(3.0)
            await worker.receive(0, torch.zeros(100), "small")
            await worker.wait(bulk)
        else:
            bulk = await worker.begin(ops.Receive(1, torch.zeros(1000), "bulk"))
            await worker.send(1, torch.zeros(100), "small")
            await worker.wait(bulk)

    model = TransferModel(flat_network(2, 1.0, 100.0), announcement=1.0, streams=True, buffer_bytes=1e6)
    arrivals = {}
    for queue in ("fair", "fifo"):
        job = make_job(make_scheme(program, synchronous=False), workers=2, bytes_per_parameter=1.0)
        events = run_events(replace(job, transfer=replace(model, queue=queue))).events
        (arrivals[queue],) = (e.end_s for e in events if e.worker == 1 and e.operation == "receive")
    # Bulk leaves from 1 (its announcement's latency) to 11. In one line both announcements have 100 bytes.
    assert arrivals["fair"] == 11.0 + 1 + 1 + 1
    assert arrivals["fifo"] == arrivals["fair"] + 1.0 + 1.0
