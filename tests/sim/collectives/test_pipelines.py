"""Collectives of blocks: everything gets everywhere, in the time of a message-by-message schedule."""

from __future__ import annotations

import heapq
from collections import defaultdict, deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.collectives import algorithms, pipelines
from paceline.sim.collectives.collective import Collective
from paceline.sim.collectives.pipelines import (
    NCCL_CHUNK_BYTES,
    NCCL_TAIL,
    RING_PIECES,
    NcclHosts,
    chain_broadcast,
    exchange,
    nccl_broadcast,
    nccl_choice,
    nccl_share,
    ring_share,
    tree_broadcast,
)
from paceline.sim.errors import RunError
from tests.support.collectives import PIPELINES, blocks_of, ends_s

MIB = 2**20
laws = settings(derandomize=True, max_examples=60)
sites_of = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)


def brute_force_s(
    schedule: Collective, ready_s: list[float], rate: float, latency_s: float, overhead_s: float
) -> list[float]:
    """Every piece is a message of its own, moved by a queue of events.

    A host sends one message at a time and receives one at a time, in the order of the blocks, and a message
    leaves when its sender has the piece that it is made of.
    """
    blocks = blocks_of(schedule)
    messages = [(number, k) for number, block in enumerate(blocks) for k in range(block.pieces)]
    out: dict[int, deque[tuple[int, int]]] = defaultdict(deque)
    into: dict[int, deque[tuple[int, int]]] = defaultdict(deque)
    for message in messages:
        block = blocks[message[0]]
        out[block.source].append(message)
        into[block.destination].append(message)
    there: dict[tuple[int, int], float] = {}
    up_s: dict[int, float] = defaultdict(float)
    down_s: dict[int, float] = defaultdict(float)
    done_s = list(ready_s)
    queue = [(0.0, rank) for rank in range(schedule.ranks)]
    while queue:
        _, rank = heapq.heappop(queue)
        if not out[rank]:
            continue
        number, k = out[rank][0]
        block = blocks[number]
        if into[block.destination][0] != (number, k):
            continue
        needs = [there.get((each, k)) for each in block.after]
        if None in needs:
            continue
        ready = max(
            ready_s[rank], ready_s[block.destination],
            *(each for each in needs if each is not None),
        ) if needs else max(ready_s[rank], ready_s[block.destination])  # fmt: skip
        begin_s = max(ready + overhead_s, up_s[rank], down_s[block.destination])
        end_s = begin_s + block.num_bytes / block.pieces / rate
        out[rank].popleft()
        into[block.destination].popleft()
        up_s[rank] = down_s[block.destination] = end_s
        there[number, k] = end_s + latency_s
        done_s[rank] = max(done_s[rank], end_s)
        done_s[block.destination] = max(done_s[block.destination], end_s + latency_s)
        for each in range(schedule.ranks):  # whoever may go on
            heapq.heappush(queue, (end_s, each))
    assert not any(out.values())
    return [each + schedule.tail * latency_s for each in done_s]


def took_s(schedule: Collective, rate: float, latency_s: float) -> float:
    return max(ends_s(schedule, [0.0] * schedule.ranks, rate, latency_s))


@pytest.mark.parametrize("name", [name for name in PIPELINES if name != "hierarchical"])
@laws
@given(
    n=st.integers(1, 7),
    num_bytes=st.one_of(st.integers(0, 200), st.integers(0, 30 * MIB)),
    rate=st.floats(1e3, 1e9),
    latency_s=st.floats(0.0, 0.2),
    overhead_s=st.sampled_from([0.0, 0.003]),
    late=st.lists(st.floats(0.0, 1.0), min_size=7, max_size=7),
)
def test_the_recursion_is_the_schedule_message_by_message(
    name: str, n: int, num_bytes: int, rate: float, latency_s: float, overhead_s: float, late: list[float]
) -> None:
    schedule = PIPELINES[name]((n,), num_bytes)
    found = ends_s(schedule, late[:n], rate, latency_s, overhead_s)
    assert found == pytest.approx(brute_force_s(schedule, late[:n], rate, latency_s, overhead_s), rel=1e-9)


@pytest.mark.parametrize("name", PIPELINES)
@laws
@given(sites=sites_of, num_bytes=st.one_of(st.integers(0, 40), st.integers(10**6, 10**7)))
def test_every_rank_gets_what_the_others_have(name: str, sites: tuple[int, ...], num_bytes: int) -> None:
    """A block carries its source's own, and all that came to its source in the blocks that it needs."""
    schedule = PIPELINES[name](sites, num_bytes)
    n = schedule.ranks
    held = [{rank} for rank in range(n)]
    carried: list[set[int]] = []
    blocks = blocks_of(schedule)
    for block in blocks:
        assert all(each < len(carried) for each in block.after)
        assert all(blocks[each].destination == block.source for each in block.after)
        own = {block.source}.union(*(carried[each] for each in block.after))
        own = own.union(*(carried[each] for each in block.behind if blocks[each].source == block.source))
        carried.append(own)
        held[block.destination] |= carried[-1]
    if num_bytes >= n:
        assert all(each == set(range(n)) for each in held)
    if name in ("ring", "double_tree", "nccl_ring", "nccl_tree"):
        assert sum(schedule.bytes_sent) == 2 * (n - 1) * num_bytes


def test_a_ring_hides_latency_only_behind_its_chunks() -> None:
    chunk_s, n = 1.0, 4
    ring = PIPELINES["ring"]((n,), 4 * 6400)
    assert RING_PIECES == 64
    assert took_s(ring, 6400.0, 0.5) == pytest.approx((2 * n - 3) * chunk_s + chunk_s + 0.5)
    assert took_s(ring, 6400.0, 3.0) == pytest.approx((2 * n - 3) * (3.0 + 1 / 64) + chunk_s + 3.0)


@laws
@given(
    name=st.sampled_from([name for name in PIPELINES if name != "hierarchical"]),
    n=st.integers(2, 9),
    num_bytes=st.integers(1, 50 * MIB),
    rate=st.floats(1e6, 1e9),
    latency_s=st.floats(0.0, 0.2),
    more=st.floats(1.0, 3.0),
)
def test_time_falls_with_bandwidth_and_rises_with_latency(
    name: str, n: int, num_bytes: int, rate: float, latency_s: float, more: float
) -> None:
    schedule = PIPELINES[name]((n,), num_bytes)
    plain = took_s(schedule, rate, latency_s)
    assert took_s(schedule, rate * more, latency_s) <= plain * (1 + 1e-12)
    assert took_s(schedule, rate, latency_s * more) >= plain * (1 - 1e-12)


def test_large_groups_with_long_latencies_take_halving_and_doubling() -> None:
    halving = PIPELINES["halving_doubling"]((256,), 20_000_000)
    assert took_s(halving, 1.25e8, 0.05) == pytest.approx(2 * 8 * 0.05 + 2 * 255 / 256 * 0.16)


def test_nccls_ring_takes_its_bytes_and_six_latencies() -> None:
    for n in (4, 8):
        ring = PIPELINES["nccl_ring"]((n,), 128 * MIB)
        bound_s = 2 * (n - 1) / n * 128 * MIB / 1.25e8
        assert took_s(ring, 1.25e8, 0.01) == pytest.approx(bound_s + (NCCL_TAIL + 1) * 0.01, rel=1e-3)


def test_nccls_buffers_bound_its_rate_over_long_latencies() -> None:
    """A ring passes on at most two chunks per round trip, however fast the links are."""
    n, latency_s = 4, 1.0
    schedule = nccl_share((n,), 8 * n * NCCL_CHUNK_BYTES)
    chunks = 8 * (n - 1)
    assert took_s(schedule, 1e12, latency_s) > chunks / 2 * latency_s


def test_nccl_takes_a_tree_for_small_payloads_of_large_groups() -> None:
    assert nccl_choice((64,), 1000) == "nccl_tree"
    assert nccl_choice((64,), 10**9) == "nccl_ring"
    assert nccl_choice((2,), 1) == "nccl_ring"


def test_nccl_reckons_with_quick_steps_inside_hosts() -> None:
    """The same 64 ranks: alone 126 steps of 14 us, in 8 hosts 112 of 3.4 and 14 of 14, in one 126 of 3.4."""
    alone, hosts = (64,), ((8,) * 8,)
    ring_s = 112 * 3.4e-6 + 14 * 14e-6
    tree_s = 2 * (7 * 4e-6 + 3 * 14e-6)
    per_byte = 2 / (0.92 * 1.25e9) - 2 * 63 / 64 / 1.25e9
    limit = int((ring_s - tree_s) / per_byte)
    assert [nccl_choice(hosts, limit + more) for more in (0, 1)] == ["nccl_tree", "nccl_ring"]
    assert nccl_choice(alone, limit + 1) == "nccl_tree"
    assert nccl_choice(((64,),), 1) == "nccl_ring"


def test_nccl_takes_its_tree_between_two_hosts_of_several_gpus() -> None:
    """Inside a host its search finds twice the rate of the card for a tree; from three hosts on not."""
    for num_bytes in (1, 10**6, 2**30):
        assert nccl_choice(((8, 8),), num_bytes) == "nccl_tree"
        assert nccl_choice(((8,), (8,)), num_bytes) == "nccl_tree"
        assert nccl_choice(((2, 2),), num_bytes) == "nccl_tree"
        assert nccl_choice((2,), num_bytes) == "nccl_ring"
    for hosts in (3, 4):
        assert nccl_choice(((8,) * hosts,), 2**30) == "nccl_ring"


PCIE_3, NVLINK = 16e9, 150e9


@pytest.mark.parametrize(
    ("version", "inside", "card_gbit", "num_bytes", "choice"),
    [
        ((2, 3, 7), NVLINK, 100, 1000, "nccl_ring"),  # before its trees
        ((2, 4, 8), NVLINK, 100, 2**30, "nccl_tree"),
        ((2, 4, 8), PCIE_3, 10, 2**26, "nccl_ring"),  # two thirds of a ring's rate
        ((2, 5, 7), PCIE_3, 10, 2**26, "nccl_ring"),  # every card counts as one of 100 Gbit/s
        ((2, 7, 8), PCIE_3, 100, 2**30, "nccl_ring"),
        ((2, 7, 8), PCIE_3, 40, 2**26, "nccl_ring"),
        ((2, 7, 8), PCIE_3, 10, 2**20, "nccl_ring"),  # half of a tree's rate at middle sizes
        ((2, 7, 8), PCIE_3, 10, 2**26, "nccl_tree"),  # the links carry twice the card's rate beside it
        ((2, 18), 64e9, 100, 2**30, "nccl_tree"),
    ],
)
def test_nccls_choice_between_two_hosts_is_by_version_links_and_cards(
    version: tuple[int, ...], inside: float, card_gbit: int, num_bytes: int, choice: str
) -> None:
    known = NcclHosts(version, card_gbit * 1.25e8, inside)
    assert nccl_choice(((4, 4),), num_bytes, known) == choice
    assert nccl_choice(((4,) * 4,), 2**30, known) == "nccl_ring"


def test_nccls_tree_is_a_chain_inside_a_host_and_a_tree_between_first_gpus() -> None:
    """Three hosts of 3, 3 and 2 GPUs in two sites; a payload of two bytes has one segment for each tree."""
    tree = PIPELINES["nccl_tree"](((3, 3), (2,)), 2)
    edges = sorted((block.source, block.destination) for block in blocks_of(tree))
    inside = [(1, 0), (2, 1), (4, 3), (5, 4), (7, 6)]
    between = [(0, 3), (6, 3), (3, 6), (0, 6)]  # to the parents: hosts 0 and 2 under 1, then 1 and 0 under 2
    up = [*inside, *inside, *between]
    assert edges == sorted([*up, *((parent, child) for child, parent in up)])


def test_nccls_tree_sends_a_long_payload_twice_over_each_link_of_a_chain() -> None:
    """One host of 8 GPUs: up and then down, and the chain has filled when a tenth of it has been sent."""
    num_bytes = 800_000_000
    took = took_s(PIPELINES["nccl_tree"](((8,),), num_bytes), 1e9, 0.0)
    assert 2 * 0.8 <= took <= 1.1 * 2 * 0.8


def test_nccls_other_collectives_send_their_share() -> None:
    assert sum(nccl_share((4,), 400).bytes_sent) == 3 * 400
    assert nccl_broadcast((4,), 400).bytes_sent == (400, 400, 400, 0)


@laws
@given(
    n=st.integers(1, 7), num_bytes=st.integers(0, 10**7), rate=st.floats(1e5, 1e9),
    latency_s=st.floats(0.0, 0.2), late=st.lists(st.floats(0.0, 1.0), min_size=7, max_size=7),
)  # fmt: skip
@pytest.mark.parametrize("build", [exchange, ring_share, chain_broadcast, tree_broadcast])
def test_the_parts_of_an_all_reduce_take_what_their_messages_take(
    build: Any, n: int, num_bytes: int, rate: float, latency_s: float, late: list[float]
) -> None:
    schedule = build((n,), num_bytes)
    found = ends_s(schedule, late[:n], rate, latency_s)
    assert found == pytest.approx(brute_force_s(schedule, late[:n], rate, latency_s, 0.0), rel=1e-9)
    total = n - 1 if num_bytes else 0
    assert sum(schedule.bytes_sent) == total * num_bytes


def test_shares_go_straight_to_their_owners_in_one_latency() -> None:
    assert took_s(exchange((4,), 4000), 1000.0, 0.5) == 3.0 + 0.5
    assert took_s(ring_share((4,), 4000), 1000.0, 0.5) == pytest.approx(3.0 + 0.5)
    assert took_s(ring_share((4,), 4), 1000.0, 0.5) == pytest.approx(3 * 0.501)


def test_collectives_that_nobody_could_follow_are_refused_at_once() -> None:
    for build in (pipelines.ring, pipelines.ring_share, pipelines.exchange):
        with pytest.raises(RunError, match="messages; at most 20,000,000 are followed"):
            build((100_000,), 1000)
    with pytest.raises(RunError, match="a ring among 10,000 workers"):
        algorithms.gloo_ring_all_reduce(10_000, 1000)
