"""A collective priced as a whole takes what its messages take one by one; by a recursion where that holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.collectives.algorithms import (
    Sites,
    binomial_broadcast,
    direct_reduce_scatter,
    dissemination_barrier,
    gloo_all_gather,
    gloo_broadcast,
    gloo_ring_all_reduce,
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    recursive_doubling_all_reduce,
    ring_all_reduce,
)
from paceline.sim.collectives.collective import CollectiveBlock, Schedule, of_blocks, of_rounds
from paceline.sim.collectives.pipelines import exchange
from paceline.sim.network.network import Network
from paceline.sim.network.network_settings import TcpSettings
from paceline.sim.network.transport import TransferModel
from paceline.sim.traffic.clock import Clock
from paceline.sim.traffic.placing import Placed, place
from paceline.sim.traffic.streams import Streams
from paceline.sim.traffic.transfers import Transfers
from tests.support.collectives import PIPELINES
from tests.support.factory import flat_network, network_of
from tests.support.networks import networks

laws = settings(derandomize=True, max_examples=150)
many = settings(max_examples=800)

TABLES: dict[str, Callable[[Sites, int, int], Schedule]] = {
    "binomial": lambda sites, n, size: binomial_broadcast(n, size, n - 1),
    "barrier": lambda sites, n, size: dissemination_barrier(n),
    "direct": lambda sites, n, size: direct_reduce_scatter(n, size),
    "gloo_all_gather": lambda sites, n, size: gloo_all_gather(n, size),
    "gloo_broadcast": lambda sites, n, size: gloo_broadcast(n, size, 0),
    "gloo_ring": lambda sites, n, size: gloo_ring_all_reduce(n, size),
    "halving_doubling": lambda sites, n, size: halving_doubling_all_reduce(n, size),
    "hierarchical": lambda sites, n, size: hierarchical_all_reduce(sites, size),
    "recursive_doubling": lambda sites, n, size: recursive_doubling_all_reduce(n, size),
    "stop_and_wait": lambda sites, n, size: ring_all_reduce(n, size),
}
BLOCKS = PIPELINES | {"exchange": exchange}


site_sizes = st.lists(st.integers(1, 3), min_size=1, max_size=3)
rates = st.sampled_from([0.1, 1.0, 1.0, 3.7, 40.0])


@st.composite
def models(draw: Any, network: Network) -> TransferModel:
    """Messages that overtake each other, or gloo's streams."""
    gloo = draw(st.booleans())
    return TransferModel(
        network,
        sharing=draw(st.sampled_from(["max_min", "max_min", "max_min", "rtt", "none"])),
        overhead_s=draw(st.sampled_from([0.0, 0.002])),
        announcement=draw(st.sampled_from([1.0, 2.0] if gloo else [0.0, 1.0])),
        streams=gloo,
        buffer_bytes=draw(st.sampled_from([0.0, 1e5, 4e6])) if gloo else 0.0,
        copy_s_per_byte=draw(st.sampled_from([0.0, 1e-10])) if gloo else 0.0,
        device_copy_s_per_byte=draw(st.sampled_from([0.0, 2e-10])) if gloo else 0.0,
        launch_s=draw(st.sampled_from([0.0, 0.001])),
    )


@st.composite
def placed_late(draw: Any) -> tuple[Placed, tuple[float, ...]]:
    """A collective on hosts whose members join at different times."""
    sites, network = draw(networks(site_sizes, rates, st.sampled_from([0, 1, 7])))
    n, size = network.num_hosts, draw(st.one_of(st.integers(0, 99), st.integers(0, 30_000_000)))
    name = draw(st.sampled_from([*BLOCKS, *TABLES]))
    collective = BLOCKS[name](sites, size) if name in BLOCKS and draw(st.booleans()) else None
    if collective is None:
        collective = of_rounds(TABLES.get(name, TABLES["stop_and_wait"])(sites, n, size))
    late_s = st.one_of(st.just(0.0), st.sampled_from([-0.1, -0.25]), st.floats(-0.3, 0.0))
    ready_s = draw(st.lists(late_s, min_size=n, max_size=n))
    return place(collective, tuple(range(n)), draw(models(network))), tuple(ready_s)


def one_by_one_s(placed: Placed, ready_s: tuple[float, ...]) -> list[float]:
    """Each rank's completion, message by message, on a clock that begins a second earlier."""
    clock, done_s = Clock(), dict[int, float]()

    def end(rank: int) -> None:
        done_s[rank] = clock.now - 1.0

    streams = placed.model.streams and placed.model.sharing != "none"
    transfers = (Streams if streams else Transfers)(clock, placed.model)
    flows = placed.flows(clock, transfers, ("alone", 0, 0), end)
    for rank, at_s in enumerate(ready_s):
        clock.at(1.0 + at_s, lambda joining: flows.join(joining, joining), rank)
    while clock.peek() < float("inf"):
        clock.step()
    return [done_s[rank] for rank in range(len(ready_s))]


def check(placed: Placed, ready_s: tuple[float, ...]) -> None:
    done_s, idle_s = placed.completion(ready_s)
    assert done_s == pytest.approx(one_by_one_s(placed, ready_s), rel=1e-9, abs=1e-12)
    assert all(idle >= ready for idle, ready in zip(idle_s, ready_s, strict=True))


@laws
@given(case=placed_late())
def test_a_collective_takes_what_its_messages_take(case: tuple[Placed, tuple[float, ...]]) -> None:
    check(*case)


@pytest.mark.slow
@many
@given(case=placed_late())
def test_many_collectives_take_what_their_messages_take(case: tuple[Placed, tuple[float, ...]]) -> None:
    check(*case)


TWO_SITES = {
    "sites": {"a": 2, "b": 2},
    "within": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
    "between": {"latency": "10 ms", "bandwidth": "1 Gbit/s"},
}


@pytest.mark.parametrize("streams", [False, True])
def test_without_the_look_the_law_would_fail(streams: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both members of a site send over its pipe, and announce receives against the bytes of their peers."""
    model = TransferModel(network_of(4, **TWO_SITES), announcement=1.0, streams=streams)
    schedule = of_rounds(halving_doubling_all_reduce(4, 8_000_000))
    ready_s = (0.0, -0.01, 0.0, -0.02)
    check(place(schedule, (0, 1, 2, 3), model), ready_s)
    monkeypatch.setattr(Placed, "_meet", lambda placed, times: False)
    with pytest.raises(AssertionError):
        check(place(schedule, (0, 1, 2, 3), model), ready_s)


@pytest.mark.parametrize(("table", "apart"), [("recursive_doubling", True), ("gloo_ring", False)])
def test_announcements_meet_bytes_of_the_other_way(table: str, apart: bool) -> None:
    """Two ranks swap once, all receives announced before; or in segments, the later ones announced beside."""
    model = TransferModel(flat_network(2, 0.001, 1.25e8), announcement=1.0, streams=True)
    placed = place(of_rounds(TABLES[table]((2,), 2, 8_000_000)), (0, 1), model)
    assert not placed.always_apart
    assert (placed._by_recursion((0.0, 0.0)) is not None) == apart
    check(placed, (0.0, 0.0))


def test_whether_blocks_meet_depends_on_who_joins_when() -> None:
    """Two pairs over one pipe: apart if the second one joins when the first one's bytes are through."""
    model = TransferModel(network_of(4, **TWO_SITES))
    across = of_blocks(4, [CollectiveBlock(0, 2, 125_000_000), CollectiveBlock(1, 3, 125_000_000)])
    placed = place(across, (0, 1, 2, 3), model)
    assert not placed.always_apart
    assert placed._by_recursion((0.0, 0.0, 0.0, 0.0)) is None
    assert placed.completion((0.0,) * 4)[0] == pytest.approx([2.0, 2.0, 2.01, 2.01])
    for begin_s, apart in ((0.999, False), (1.0, True), (1.5, True)):
        ready_s = (0.0, begin_s, 0.0, begin_s)
        assert (placed._by_recursion(ready_s) is not None) == apart
        check(placed, ready_s)


@pytest.mark.parametrize("change", [{"queue": "fifo"}, {"tcp": TcpSettings()}])
def test_other_links_are_followed_message_by_message(change: dict[str, Any]) -> None:
    model = replace(TransferModel(flat_network(4, 0.01, 1.25e8)), **change)
    placed = place(BLOCKS["ring"]((4,), 1_000_000), (0, 1, 2, 3), model)
    assert not placed.always_apart
    assert placed._by_recursion((0.0,) * 4) is None
    check(placed, (0.0,) * 4)
