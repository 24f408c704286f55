"""Collectives: the tables match, carry every contribution everywhere, and take the time that theory says."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from math import ceil, log2

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.collectives import algorithms
from paceline.sim.collectives.algorithms import (
    binomial_broadcast,
    dissemination_barrier,
    gloo_all_gather,
    gloo_broadcast,
    gloo_ring_all_reduce,
    halving_doubling_all_reduce,
    recursive_doubling_all_reduce,
    ring_all_reduce,
    ring_gather_chunks,
    ring_reduce_scatter,
)
from paceline.sim.collectives.collective import Round, Schedule
from paceline.sim.errors import Deadlock
from tests.support.critical_path import critical_path_s

MIB = 1024 * 1024


def ring_all_gather(n: int, num_bytes: int) -> Schedule:
    """Of each rank's own bytes."""
    return ring_gather_chunks(n, n * num_bytes)


ALL_REDUCE: dict[str, Callable[[int, int], Schedule]] = {
    "ring_stop_and_wait": ring_all_reduce,
    "gloo_ring": gloo_ring_all_reduce,
    "halving_doubling": halving_doubling_all_reduce,
    "recursive_doubling": recursive_doubling_all_reduce,
}
ALL: dict[str, Callable[[int, int], Schedule]] = {
    **ALL_REDUCE,
    "binomial": lambda n, m: binomial_broadcast(n, m, n // 2),
    "gloo_broadcast": lambda n, m: gloo_broadcast(n, m, n // 2),
    "gloo_all_gather": gloo_all_gather,
    "ring_reduce_scatter": ring_reduce_scatter,
    "ring_gather_chunks": ring_gather_chunks,
    "barrier": lambda n, m: dissemination_barrier(n),
}
every = pytest.mark.parametrize("build", ALL.values(), ids=ALL)
broadcasts = pytest.mark.parametrize("broadcast", [binomial_broadcast, gloo_broadcast])
sizes = st.one_of(st.integers(0, 200), st.integers(0, 40 * MIB))
laws = settings(derandomize=True, max_examples=60)


def sent(schedule: Schedule) -> list[int]:
    """Bytes that each rank sends."""
    return [sum(b for one in rounds for _, b in one.sends) for rounds in schedule.rounds]


def received(schedule: Schedule) -> list[int]:
    return [sum(b for one in rounds for _, b in one.receives) for rounds in schedule.rounds]


# --- every table --------------------------------------------------------------------------------


@every
@given(n=st.integers(1, 17), num_bytes=sizes)
@laws
def test_sends_and_receives_of_a_pair_match_in_order(
    build: Callable[[int, int], Schedule], n: int, num_bytes: int
) -> None:
    schedule = build(n, num_bytes)
    sends, receives = defaultdict(list), defaultdict(list)
    for rank, rounds in enumerate(schedule.rounds):
        for one in rounds:
            for peer, size in one.sends:
                sends[rank, peer].append(size)
            for peer, size in one.receives:
                receives[peer, rank].append(size)
    assert len(schedule.rounds) == n
    assert sends == receives
    assert all(
        source != destination and size >= 0 for (source, destination), s in sends.items() for size in s
    )


@every
@pytest.mark.parametrize("n", range(1, 18))
def test_no_table_deadlocks_under_rendezvous(build: Callable[[int, int], Schedule], n: int) -> None:
    for num_bytes in (0, 1, 7, 4096, 3 * MIB + 1):
        run_by_rendezvous(build(n, num_bytes))


def run_by_rendezvous(schedule: Schedule) -> list[tuple[int, int, int, int, int]]:
    """Let each message pass once both sides have reached its round.

    Returns, in that order: source, destination, its number in this pair, and both sides' rounds.
    Fails if not all can pass. Knows no time: it takes any message that is possible.
    """
    open_messages = [[len(one.sends) + len(one.receives) for one in rounds] for rounds in schedule.rounds]
    waiting: dict[tuple[int, int], tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
    for rank, rounds in enumerate(schedule.rounds):
        for i, one in enumerate(rounds):
            for peer, _ in one.sends:
                waiting[rank, peer][0].append(i)
            for peer, _ in one.receives:
                waiting[peer, rank][1].append(i)

    def reached(rank: int, i: int) -> bool:
        return not any(open_messages[rank][: max(0, i - schedule.window + 1)])

    passed: Counter[tuple[int, int]] = Counter()
    order = []
    progress = True
    while progress:
        progress = False
        for (source, destination), (sends, receives) in waiting.items():
            k = passed[source, destination]
            if k < len(sends) and reached(source, sends[k]) and reached(destination, receives[k]):
                open_messages[source][sends[k]] -= 1
                open_messages[destination][receives[k]] -= 1
                passed[source, destination] += 1
                order.append((source, destination, k, sends[k], receives[k]))
                progress = True
    assert not any(map(sum, open_messages))
    return order


# --- all-reduce ---------------------------------------------------------------------------------


@given(n=st.integers(1, 17), num_bytes=sizes, name=st.sampled_from(sorted(ALL_REDUCE)))
@laws
def test_an_all_reduce_moves_the_least_bytes_possible(n: int, num_bytes: int, name: str) -> None:
    schedule = ALL_REDUCE[name](n, num_bytes)
    core = 2 ** (n.bit_length() - 1)
    if name == "halving_doubling":  # 2 m (p - 1) in the core, 2 m for each extra rank
        assert sum(sent(schedule)) == 2 * num_bytes * (n - 1) == 2 * num_bytes * (core - 1 + n - core)
    elif name == "recursive_doubling":  # m p in each round of the core, 2 m for each extra rank
        rounds = core.bit_length() - 1
        assert sum(sent(schedule)) == num_bytes * (core * rounds + 2 * (n - core))
    else:
        assert sum(sent(schedule)) == 2 * num_bytes * (n - 1)
    if name == "ring_stop_and_wait":
        least, most = 2 * (n - 1) * (num_bytes // n), 2 * (n - 1) * -(-num_bytes // n)
        assert all(least <= b <= most for b in sent(schedule) + received(schedule))


def gloo_segment_bytes(n: int, num_bytes: int) -> list[int]:
    """The lengths of gloo's segments, written anew from its description."""
    number = ceil(max(ceil(num_bytes / MIB), 2 * n) / n) * n
    length = ceil(ceil(num_bytes / number) / 4) * 4
    ends = [min(num_bytes, k * length) for k in range(number + 1)]
    return [b - a for a, b in pairwise(ends)]


@pytest.mark.parametrize("n", range(1, 14))
@pytest.mark.parametrize("num_bytes", [1, 4, 100, 4096, 4099, 5 * MIB + 12, 40 * MIB])
@pytest.mark.parametrize("name", ["ring_stop_and_wait", "gloo_ring"])
def test_a_ring_sums_every_piece_everywhere(name: str, n: int, num_bytes: int) -> None:
    lengths = (
        [(k + 1) * num_bytes // n - k * num_bytes // n for k in range(n)]
        if name == "ring_stop_and_wait"
        else gloo_segment_bytes(n, num_bytes)
    )
    assert sum(lengths) == num_bytes
    moves = [algorithms._ring_phases(n, len(lengths) // n, rank) for rank in range(n)]
    pieces = [
        ([r for phase in phases for r, _ in phase], [s for phase in phases for _, s in phase])
        for phases in moves
    ]
    schedule = ALL_REDUCE[name](n, num_bytes)
    check_flow(
        schedule,
        lengths,
        [([[p] for p in into if lengths[p]], [[p] for p in out if lengths[p]]) for into, out in pieces],
    )


@pytest.mark.parametrize("n", range(1, 18))
@pytest.mark.parametrize("num_bytes", [16, 17, 4099])
def test_halving_and_doubling_sums_every_chunk_everywhere(n: int, num_bytes: int) -> None:
    core = 2 ** (n.bit_length() - 1)
    chunks = list(range(core))
    lengths = [(k + 1) * num_bytes // core - k * num_bytes // core for k in chunks]
    pieces = []
    for rank in range(n):
        if rank >= core:
            pieces.append(([chunks], [chunks]))
            continue
        exchanges = algorithms._halving_exchanges(core, rank)
        into, out = [list(r) for _, r, _ in exchanges], [list(s) for _, _, s in exchanges]
        pieces.append(([chunks, *into], [*out, chunks]) if rank + core < n else (into, out))
    check_flow(halving_doubling_all_reduce(n, num_bytes), lengths, pieces)


@pytest.mark.parametrize("n", range(1, 18))
def test_doubling_sums_everything_everywhere(n: int) -> None:
    """Contributions of the ranks, moved as the table says: in the end each has each once."""
    rounds = [list(each) for each in recursive_doubling_all_reduce(n, 100).rounds]
    has: list[set[int]] = [{rank} for rank in range(n)]
    core = 2 ** (n.bit_length() - 1)

    def exchange(step: int, ranks: Iterable[int]) -> None:
        sent_by = {rank: frozenset(has[rank]) for rank in range(n)}
        for rank in ranks:
            for peer, size in rounds[rank][step].receives:
                assert size == 100
                assert has[rank].isdisjoint(sent_by[peer]) or sent_by[peer] == set(range(n))
                has[rank] |= sent_by[peer]

    folding = [rank for rank in range(core) if rank + core < n]
    exchange(0, folding)
    for rank in range(core):
        rounds[rank] = rounds[rank][rank in folding :]
    for step in range(core.bit_length() - 1):
        exchange(step, range(core))
    for rank in range(core, n):
        has[rank] |= has[rank - core]
    assert has == [set(range(n))] * n


def check_flow(
    schedule: Schedule, lengths: list[int], pieces: list[tuple[list[list[int]], list[list[int]]]]
) -> None:
    """Move contributions as the table says; in the end every rank has each piece from all ranks, once.

    What a rank sends in round i counts only what it received up to round i - window: no more is sure to be
    there.
    ``pieces[rank]``: for each message that it receives, and for each that it sends, in order: its pieces.
    """
    n = len(schedule.rounds)
    of_pair: dict[tuple[int, int], tuple[list[list[int]], list[list[int]]]] = defaultdict(lambda: ([], []))
    for rank, rounds in enumerate(schedule.rounds):
        for (peer, size), part in zip([m for r in rounds for m in r.sends], pieces[rank][1], strict=True):
            assert size == sum(lengths[p] for p in part)
            of_pair[rank, peer][0].append(part)
        for (peer, size), part in zip([m for r in rounds for m in r.receives], pieces[rank][0], strict=True):
            assert size == sum(lengths[p] for p in part)
            of_pair[peer, rank][1].append(part)
    everyone = Counter(range(n))
    log: list[list[list[tuple[int, Counter[int]]]]] = [[[] for _ in lengths] for _ in range(n)]

    def held(rank: int, piece: int, last_round: int) -> Counter[int]:
        value = Counter([rank])
        for when, arrived in log[rank][piece]:
            if when <= last_round:  # a whole sum replaces what is there; a partial one is added to it
                value = arrived if arrived == everyone else value + arrived
        return value

    for source, destination, k, i, j in run_by_rendezvous(schedule):
        into, out = of_pair[source, destination]
        assert into[k] == out[k]
        for piece in into[k]:
            log[destination][piece].append((j, held(source, piece, i - schedule.window)))
    end = max(map(len, schedule.rounds))
    assert all(held(rank, p, end) == everyone for rank in range(n) for p in range(len(lengths)) if lengths[p])


def test_gloo_cuts_ten_mib_for_three_ranks_into_twelve_segments() -> None:
    # 10 MiB / 1 MiB = 10 segments, rounded up to 12; each 10 MiB / 12 rounded up to four bytes.
    length = 873816
    last = 10 * MIB - 11 * length
    schedule = gloo_ring_all_reduce(3, 10 * MIB)
    assert schedule.window == 2
    # Rank 0 sends segments 4 to 11 (chunks 1 and 2) to be reduced, then 0 to 7: 8 rounds each, one idle.
    rounds = schedule.rounds[0]
    assert len(rounds) == 17
    assert rounds[8] == Round((), ())
    assert [one.sends for one in rounds[:8]] == [((2, length),)] * 7 + [((2, last),)]
    assert [one.sends for one in rounds[9:]] == [((2, length),)] * 8
    # It receives 8 to 11 and 0 to 3, then 4 to 11.
    assert [one.receives for one in rounds[:8]] == [((1, length),)] * 3 + [((1, last),)] + [
        ((1, length),)
    ] * 4
    assert [one.receives for one in rounds[9:]] == [((1, length),)] * 7 + [((1, last),)]


def test_gloo_leaves_the_last_chunks_of_a_small_payload_empty() -> None:
    # Five floats among two ranks: four segments of two, two, one and no floats.
    rounds = gloo_ring_all_reduce(2, 20).rounds
    assert [one.sends for one in rounds[0]] == [((1, 4),), (), (), ((1, 8),), ((1, 8),)]
    assert [one.receives for one in rounds[0]] == [((1, 8),), ((1, 8),), (), ((1, 4),), ()]


def test_uneven_chunks_differ_by_one_byte_at_most() -> None:
    schedule = ring_all_reduce(4, 10)
    assert {b for rounds in schedule.rounds for one in rounds for _, b in one.sends} == {2, 3}


# --- the others ---------------------------------------------------------------------------------


@broadcasts
@pytest.mark.parametrize("n", range(1, 18))
def test_a_broadcast_gives_everyone_the_payload_once(
    broadcast: Callable[[int, int, int], Schedule], n: int
) -> None:
    for root in range(n):
        schedule = broadcast(n, 5, root)
        have = {root}
        for source, destination, *_ in run_by_rendezvous(schedule):
            assert source in have
            assert destination not in have
            have.add(destination)
        assert have == set(range(n))
        assert received(schedule) == [0 if rank == root else 5 for rank in range(n)]


def test_the_tree_is_binomial() -> None:
    textbook, gloo = binomial_broadcast(6, 9, 1), gloo_broadcast(6, 9, 1)
    # From the root on: 0 -> 1, 2, 4; 1 -> 3, 5. Ranks are one more, around 6.
    assert textbook.rounds[1] == (Round((), ((2, 9),)), Round((), ((3, 9),)), Round((), ((5, 9),)))
    assert gloo.rounds[1] == (Round((), ((2, 9), (3, 9), (5, 9))),)
    for schedule in (textbook, gloo):
        assert schedule.rounds[2][0] == Round(((1, 9),), ())
        assert schedule.rounds[0] == (Round(((2, 9),), ()),)
    assert gloo.rounds[2][1:] == (Round((), ((4, 9), (0, 9))),)


@pytest.mark.parametrize("build", [ring_all_gather, gloo_all_gather])
@pytest.mark.parametrize("n", range(1, 10))
def test_an_all_gather_passes_each_block_once_around(build: Callable[[int, int], Schedule], n: int) -> None:
    schedule = build(n, 7)
    assert sent(schedule) == received(schedule) == [7 * (n - 1)] * n
    peers = {m[0] for one in schedule.rounds[0] for m in one.sends}
    assert peers == ({1 if build is gloo_all_gather else n - 1} if n > 1 else set())


def test_an_all_gather_of_nothing_sends_nothing() -> None:
    assert gloo_all_gather(3, 0).rounds == ((), (), ())
    assert sent(ring_all_gather(3, 0)) == [0, 0, 0]


def test_gloo_gathers_half_blocks() -> None:
    schedule = gloo_all_gather(3, 7)
    assert schedule.window == 2
    assert [one.sends for one in schedule.rounds[2]] == [((0, 3),), ((0, 4),)] * 2
    assert [one.receives for one in schedule.rounds[2]] == [((1, 3),), ((1, 4),)] * 2


@pytest.mark.parametrize("n", range(1, 18))
def test_a_barrier_lets_nobody_go_before_all_have_come(n: int) -> None:
    schedule = dissemination_barrier(n)
    assert sent(schedule) == [0] * n
    assert {len(rounds) for rounds in schedule.rounds} == {ceil(log2(n))}
    heard = [{rank} for rank in range(n)]
    for i in range(len(schedule.rounds[0])):
        before = [set(known) for known in heard]
        for rank in range(n):
            for source, _ in schedule.rounds[rank][i].receives:
                heard[rank] |= before[source]
    assert heard == [set(range(n))] * n


# --- time ---------------------------------------------------------------------------------------


@given(n=st.integers(2, 17), k=st.integers(1, 10**6), latency=st.floats(0, 1), bandwidth=st.floats(1, 1e10))
@laws
def test_the_ring_takes_as_long_as_its_formula(n: int, k: int, latency: float, bandwidth: float) -> None:
    m = n * k
    time = critical_path_s(ring_all_reduce(n, m), latency, bandwidth)
    assert time == pytest.approx(2 * (n - 1) * (latency + m / (n * bandwidth)), rel=1e-12)
    time = critical_path_s(ring_all_gather(n, m), latency, bandwidth)
    assert time == pytest.approx((n - 1) * (latency + m / bandwidth), rel=1e-12)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_trees_take_as_long_as_their_formulas(n: int) -> None:
    latency, bandwidth, m, depth = 0.25, 8.0, 16 * n, int(log2(n))
    time = critical_path_s(halving_doubling_all_reduce(n, m), latency, bandwidth)
    assert time == 2 * depth * latency + 2 * (n - 1) * (m // n) / bandwidth
    for root in (0, n - 1):
        assert critical_path_s(binomial_broadcast(n, m, root), latency, bandwidth) == depth * (
            latency + m / bandwidth
        )
    assert critical_path_s(dissemination_barrier(n), latency, bandwidth) == depth * latency


def test_times_worked_out_by_hand() -> None:
    latency, bandwidth = 0.5, 8.0
    # Fold 16 bytes (2 + .5), halves of 16 bytes both ways (1 + .5 each), give 16 back (2 + .5).
    assert critical_path_s(halving_doubling_all_reduce(3, 16), latency, bandwidth) == 2.5 + 1.5 + 1.5 + 2.5
    # The root's third send ends at 6 and arrives at 6.5; via rank 1 it is 2 * 2.5 only.
    assert critical_path_s(recursive_doubling_all_reduce(3, 16), latency, bandwidth) == 3 * 2.5
    assert critical_path_s(recursive_doubling_all_reduce(8, 16), latency, bandwidth) == 3 * 2.5
    assert critical_path_s(binomial_broadcast(5, 16, 0), latency, bandwidth) == 6.5
    assert critical_path_s(dissemination_barrier(5), latency, bandwidth) == 1.5
    # Uneven ring of two: chunks of 2 and 3 bytes, the longer one decides in both rounds.
    assert critical_path_s(ring_all_reduce(2, 5), 0.5, 1.0) == 7.0


def test_two_in_flight_hide_the_latency() -> None:
    # Two ranks, four segments of 4 bytes at 1 byte/s, latency 1. Each phase: two segments leave from 0 to 8,
    # the second arrives at 9; then the next phase.
    assert critical_path_s(gloo_ring_all_reduce(2, 16), 1.0, 1.0) == 18.0
    # Three times two halves of 4 bytes, latency 1: the link is never idle from 0 to 24, and 1 more to arrive.
    assert critical_path_s(gloo_all_gather(4, 8), 1.0, 1.0) == 25.0
    assert critical_path_s(ring_all_gather(4, 8), 1.0, 1.0) == 27.0
    # Latency 10: a half starts when the one before the last has arrived. Arrivals: 14, 18; 28, 32; 42, 46.
    assert critical_path_s(gloo_all_gather(4, 8), 10.0, 1.0) == 46.0


@pytest.mark.parametrize("build", [ring_all_reduce, gloo_ring_all_reduce, halving_doubling_all_reduce])
def test_one_rank_needs_no_time(build: Callable[[int, int], Schedule]) -> None:
    assert critical_path_s(build(1, 100), 1.0, 1.0) == 0.0


def to(peer: int, size: int) -> Round:
    return Round((), ((peer, size),))


def by(peer: int, size: int) -> Round:
    return Round(((peer, size),), ())


def test_an_access_link_takes_one_transfer_after_another() -> None:
    # Eight bytes to or from each of two ranks at 1 byte/s: the second arrives at 16.5.
    assert critical_path_s(gloo_broadcast(3, 8, 0), 0.5, 1.0) == 16.5
    gather = Schedule(((Round(((1, 8), (2, 8)), ()),), (to(0, 8),), (to(0, 8),)), 1)
    assert critical_path_s(gather, 0.5, 1.0) == 16.5


def test_a_link_takes_transfers_in_the_order_of_the_rounds() -> None:
    # 0 takes 4 bytes from 1 and then 8 from 2 (until 12), while 1 sends 8 to 3 (from 4 to 12).
    table = ((by(1, 4), by(2, 8)), (to(0, 4), to(3, 8)), (to(0, 8),), (by(1, 8),))
    assert critical_path_s(Schedule(table, 2), 0.0, 1.0) == 12.0


def test_a_receive_may_have_to_wait_for_a_send() -> None:
    # 1 sends to 0 first, from 0 to 4; then 2 may send to 1, until 12, which arrives at 12.5.
    assert critical_path_s(Schedule(((by(1, 4),), (to(0, 4), by(2, 8)), (to(1, 8),)), 1), 0.5, 1.0) == 12.5


@pytest.mark.parametrize("table", [(by(1, 4), to(2, 1)), (Round(((1, 4),), ((2, 1),)),)])
def test_a_rank_is_done_when_its_last_message_is_through(table: tuple[Round, ...]) -> None:
    # 0 receives 4 bytes until 14, while the byte that it sends arrives at 11; in one round or in two at once.
    assert critical_path_s(Schedule((table, (to(0, 4),), (by(0, 1),)), 2), 10.0, 1.0) == 14.0


def test_rounds_that_wait_for_each_other_are_an_error() -> None:
    send, receive, back, forth = to(1, 4), by(1, 4), to(0, 4), by(0, 4)
    assert critical_path_s(Schedule(((send, receive), (forth, back)), 1), 0.0, 1.0) == 8.0
    with pytest.raises(Deadlock) as caught:  # both send first
        critical_path_s(Schedule(((send, receive), (back, forth)), 1), 0.0, 1.0)
    assert caught.value.waiting == ("worker 0 in round 0 of 2", "worker 1 in round 0 of 2")
    # With two rounds in flight the receives are posted in time.
    assert critical_path_s(Schedule(((send, receive), (back, forth)), 2), 0.0, 1.0) == 4.0


# --- size ---------------------------------------------------------------------------------------


def test_large_tables_share_their_rounds() -> None:
    for build in (ring_all_reduce, gloo_ring_all_reduce):
        schedule = build(256, 4_000_000)
        assert build(256, 4_000_000) is schedule
        assert len({id(one) for rounds in schedule.rounds for one in rounds}) < 2000


@pytest.mark.parametrize("n", range(1, 10))
@pytest.mark.parametrize("num_bytes", [0, 1, 7, 4099])
def test_a_reduce_scatter_and_a_gather_of_chunks_make_a_ring_all_reduce(n: int, num_bytes: int) -> None:
    first, second = ring_reduce_scatter(n, num_bytes), ring_gather_chunks(n, num_bytes)
    whole = ring_all_reduce(n, num_bytes)
    for rank in range(n):
        assert first.rounds[rank] + second.rounds[rank] == whole.rounds[rank]
    if num_bytes % n == 0:  # (n - 1) / n of the payload each, Das et al.
        assert sent(first) == sent(second) == [(n - 1) * num_bytes // n] * n
