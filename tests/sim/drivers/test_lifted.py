"""Tables lifted to blocks: each costs what its table costs where receives are posted ahead."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.collectives.algorithms import (
    binomial_broadcast,
    direct_reduce_scatter,
    dissemination_barrier,
    even_length,
    gloo_broadcast,
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    recursive_doubling_all_reduce,
    ring_all_reduce,
)
from paceline.sim.collectives.collective import Collective, Round, Schedule, of_rounds
from paceline.sim.collectives.pipelines import (
    barrier,
    exchange,
    halving_doubling,
    hierarchical,
    recursive_doubling,
    without_rendezvous,
)
from paceline.sim.network.transport import TransferModel
from paceline.sim.traffic.clock import Clock
from paceline.sim.traffic.placing import place, price_s
from paceline.sim.traffic.transfers import Transfers
from tests.support.factory import network_of
from tests.support.networks import networks

laws = settings(derandomize=True, max_examples=60)
many = settings(max_examples=400)

sizes = st.integers(0, 10_000_000)
rates = st.floats(1e-3, 10.0)
site_sizes = st.lists(st.integers(1, 3), min_size=1, max_size=4).filter(lambda sites: sum(sites) > 1)


@st.composite
def tables(draw: Any, n: int) -> Schedule:
    """Rounds in which anybody sends anything to anybody, or one of the library's."""
    num_bytes, kind = draw(sizes), draw(st.integers(0, 8))
    library = (
        ring_all_reduce, halving_doubling_all_reduce, recursive_doubling_all_reduce, direct_reduce_scatter,
    )  # fmt: skip
    if kind < len(library):
        return library[kind](n, num_bytes)
    if kind == len(library):
        return binomial_broadcast(n, num_bytes, n - 1)
    if kind == len(library) + 1:
        return gloo_broadcast(n, num_bytes, n - 1)
    pairs = [(a, b) for a in range(n) for b in range(n) if a != b]
    rounds = [draw(st.dictionaries(st.sampled_from(pairs), sizes)) for _ in range(draw(st.integers(1, 3)))]
    return Schedule(
        tuple(
            tuple(
                Round(
                    tuple((a, size) for (a, b), size in one.items() if b == rank),
                    tuple((b, size) for (a, b), size in one.items() if a == rank),
                )
                for one in rounds
            )
            for rank in range(n)
        ),
        1,
    )


class _Message:
    def __init__(self, run: PostedAhead, sent_in: tuple[int, int], received_in: tuple[int, int]) -> None:
        self.run, self.sent_in, self.received_in = run, sent_in, received_in

    def sent(self, time_s: float, peer_s: float) -> None:
        self.run.clock.at(time_s, self.run.end, self.sent_in)

    def received(self, slot: int, sender: object, source: int, time_s: float, peer_s: float) -> None:
        self.run.clock.at(time_s, self.run.end, self.received_in)


class PostedAhead:
    """A table message by message: a rank sends what is in a round when its rounds before are complete."""

    def __init__(self, table: Schedule, model: TransferModel) -> None:
        self.table, self.clock = table, Clock()
        self._transfers = Transfers(self.clock, model)
        self._open = {
            (rank, i): len(one.receives) + len(one.sends)
            for rank, rounds in enumerate(table.rounds)
            for i, one in enumerate(rounds)
        }
        self._receives = {
            (a, b): [i for i, one in enumerate(table.rounds[b]) for source, _ in one.receives if source == a]
            for b in range(len(table.rounds))
            for a in range(len(table.rounds))
        }
        self._sent: Counter[tuple[int, int]] = Counter()
        self._next = [0] * len(table.rounds)
        for rank in range(len(table.rounds)):
            self._advance(rank)

    def took_s(self) -> float:
        while any(self._open.values()):
            self.clock.step()
        return self.clock.now

    def end(self, of: tuple[int, int]) -> None:
        self._open[of] -= 1
        self._advance(of[0])

    def _advance(self, rank: int) -> None:
        rounds = self.table.rounds[rank]
        while self._next[rank] < len(rounds) and not any(
            self._open[rank, i] for i in range(self._next[rank])
        ):
            i = self._next[rank]
            self._next[rank] += 1
            for peer, size in rounds[i].sends:
                there = self._receives[rank, peer][self._sent[rank, peer]]
                self._sent[rank, peer] += 1
                message = _Message(self, (rank, i), (peer, there))
                self._transfers.carry(rank, peer, size, message, self.clock.now)


def lifted_s(schedule: Collective, model: TransferModel) -> float:
    return price_s(place(schedule, tuple(range(schedule.ranks)), model))


def check_lifted(data: st.DataObject) -> None:
    sites, network = data.draw(networks(site_sizes, rates, st.just(1)))
    table = data.draw(tables(network.num_hosts))
    model = TransferModel(network, data.draw(st.sampled_from(["max_min", "rtt", "none"])))
    assert lifted_s(without_rendezvous(table), model) == pytest.approx(PostedAhead(table, model).took_s())
    own = hierarchical_all_reduce(sites, data.draw(sizes))
    took_s = PostedAhead(own, model).took_s()
    assert lifted_s(without_rendezvous(own), model) == pytest.approx(took_s)


@laws
@given(data=st.data())
def test_a_lifted_table_takes_what_the_table_takes(data: st.DataObject) -> None:
    check_lifted(data)


@pytest.mark.slow
@many
@given(data=st.data())
def test_many_lifted_tables_take_what_the_tables_take(data: st.DataObject) -> None:
    check_lifted(data)


@pytest.mark.slow
@laws
@given(data=st.data())
def test_our_own_forms_take_what_their_tables_take(data: st.DataObject) -> None:
    sites, network = data.draw(networks(site_sizes, rates, st.just(1)))
    n, num_bytes, model = network.num_hosts, data.draw(sizes), TransferModel(network)
    even = num_bytes * even_length(sites)
    for blocks, table in (
        (exchange(sites, num_bytes), direct_reduce_scatter(n, num_bytes)),
        (hierarchical(sites, even), hierarchical_all_reduce(sites, even)),
        (halving_doubling(sites, num_bytes), halving_doubling_all_reduce(n, num_bytes)),
        (recursive_doubling(sites, num_bytes), recursive_doubling_all_reduce(n, num_bytes)),
        (barrier(n), dissemination_barrier(n)),
    ):
        assert lifted_s(blocks, model) == pytest.approx(PostedAhead(table, model).took_s())


def test_an_all_to_all_of_our_own_takes_what_it_takes_as_a_table() -> None:
    """Four sites, each with three pipes: all of them are in use at once, lifted or not."""
    network = network_of(
        4, sites={"a": 1, "b": 1, "c": 1, "d": 1}, within={"latency": "0.1 ms", "bandwidth": "40 Gbit/s"},
        between={"latency": "7 ms", "bandwidth": "1 Gbit/s"},
    )  # fmt: skip
    model = TransferModel(network)
    others = [[(peer, 5_000_000) for peer in range(4) if peer != rank] for rank in range(4)]
    table = Schedule(tuple((Round(tuple(each), tuple(each)),) for each in others), 1)
    assert price_s(place(of_rounds(table), tuple(range(4)), model)) == pytest.approx(0.047)
    assert lifted_s(without_rendezvous(table), model) == pytest.approx(0.047)
