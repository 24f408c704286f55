"""Classes of like blocks: by hand, and drawn collectives that take what their messages take one by one."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.collectives.pipelines import exchange, hierarchical, ring
from paceline.sim.network.transport import TransferModel
from paceline.sim.traffic.clock import Clock
from paceline.sim.traffic.placing import Placed, _follow, place
from paceline.sim.traffic.transfers import Transfers
from tests.support.factory import network_of

laws = settings(max_examples=60)
BUILDERS = {"hierarchical": hierarchical, "exchange": exchange, "ring": ring}


def clustered(sites: int, hosts: int, gpus: int, pipe: float, first: float = 1.0) -> TransferModel:
    """Equal sites of hosts of GPUs; the pipes between the first two are ``first`` times the others."""
    pairs = combinations(range(sites), 2)
    rates = {f"s{a}-s{b}": f"{pipe * (first if b == 1 else 1.0)} Gbit/s" for a, b in pairs}
    network = network_of(
        sites * hosts * gpus, sites={f"s{number}": hosts * gpus for number in range(sites)},
        within={"latency": "1 ms", "bandwidth": "4 Gbit/s"},
        between={"latency": "20 ms", "bandwidth": rates or f"{pipe} Gbit/s"},
        host={"gpus": gpus, "latency": "0.1 ms", "bandwidth": "80 Gbit/s"},
    )  # fmt: skip
    return TransferModel(network, overhead_s=0.001, efficiency=0.9)


def one_by_one_s(placed: Placed, ready_s: tuple[float, ...]) -> list[float]:
    """Each rank's completion, message by message."""
    clock, done_s = Clock(), dict.fromkeys(range(len(ready_s)), 0.0)

    def end(rank: int) -> None:
        done_s[rank] = clock.now

    flows = placed.flows(clock, Transfers(clock, placed.model), ("alone", 0, 0), end)
    for rank, at_s in enumerate(ready_s):
        clock.at(at_s, lambda joining: flows.join(joining, joining), rank)
    while clock.peek() < float("inf"):
        clock.step()
    return [done_s[rank] for rank in range(len(ready_s))]


@laws
@given(
    name=st.sampled_from(sorted(BUILDERS)),
    shape=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(2, 3)),
    num_bytes=st.integers(1, 10**8),
    pipe=st.floats(0.1, 10.0),
    first=st.sampled_from([1.0, 0.5, 3.0]),
    late=st.lists(st.sampled_from([0.0, 0.0, 0.05]), min_size=27, max_size=27),
)
def test_a_class_takes_what_its_messages_take(
    name: str, shape: tuple[int, int, int], num_bytes: int, pipe: float, first: float, late: list[float]
) -> None:
    sites, hosts, gpus = shape
    model = clustered(*shape, pipe, first)
    cluster = ((gpus,) * hosts,) * sites
    n = sites * hosts * gpus
    placed = place(BUILDERS[name](cluster, num_bytes), tuple(range(n)), model)
    for ready_s in ((0.0,) * n, tuple(late[:n])):
        assert _follow(placed, ready_s)[0] == pytest.approx(one_by_one_s(placed, ready_s), rel=1e-9)


@pytest.mark.parametrize(("num_bytes", "classes"), [(128 * 1000, 4), (128 * 1000 + 77, 4)])
def test_a_hierarchy_of_equal_hosts_is_four_flows(num_bytes: int, classes: int) -> None:
    """Into hosts and out of them, between hosts and back, however many ranks there are."""
    placed = place(hierarchical(((8,) * 16,), num_bytes), tuple(range(128)), clustered(1, 16, 8, 1.0))
    assert placed.collective.messages == 5632
    alike = placed.alike((0.0,) * 128)
    assert alike is not None
    assert len(alike.classes.one) == placed.num_flows == classes
    assert sum(alike.classes.weight) == 5632
    assert set(alike.classes.rank.tolist()) == {0}


def test_one_late_rank_splits_the_classes() -> None:
    placed = place(hierarchical(((4,) * 4,), 16_000), tuple(range(16)), clustered(1, 4, 4, 1.0))
    alike = placed.alike((0.0,) * 15 + (1.0,))
    assert alike is not None
    ranks = alike.classes.rank
    assert np.bincount(ranks)[ranks[15]] == 1
    assert ranks[12] == ranks[13] != ranks[0]  # the host of the late one, and another


def test_a_chain_has_no_classes() -> None:
    assert place(BUILDERS["ring"](((2,),), 7), (0, 1), clustered(1, 1, 2, 1.0)).alike((0.0, 0.0)) is None
