"""Hierarchical all-reduces over hosts and sites: the parts of the payload in each message."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.collectives.algorithms import (
    Sites,
    count_ranks,
    crosses,
    hierarchical_all_reduce,
    hierarchical_pieces,
    tiers,
)

laws = settings(derandomize=True, max_examples=40)
hosts = st.lists(st.integers(1, 4), min_size=1, max_size=3).map(tuple)
clusters = st.lists(hosts, min_size=1, max_size=3).map(tuple)


@laws
@given(sites=clusters, num_bytes=st.integers(1000, 5000))
def test_every_rank_ends_with_what_all_others_have(sites: Sites, num_bytes: int) -> None:
    """A round brings what its senders had before it; after the last everybody has heard of everybody."""
    schedule = hierarchical_all_reduce(sites, num_bytes)
    n = count_ranks(sites)
    held = [{rank} for rank in range(n)]
    for number in range(2 * len(tiers(sites)) + 2):
        before = [set(each) for each in held]
        for rank, rounds in enumerate(schedule.rounds):
            for source, _ in rounds[number].receives:
                held[rank] |= before[source]
    assert all(each == set(range(n)) for each in held)


@laws
@given(sites=clusters, length=st.integers(0, 100))
def test_pieces_add_up_everybodys_payload_once(sites: Sites, length: int) -> None:
    rounds = hierarchical_pieces(sites, length)
    n = count_ranks(sites)
    payloads = np.random.default_rng(1).integers(0, 1000, (n, length))
    held = payloads.copy()
    for number in range(len(rounds[0])):
        before = held.copy()
        for rank, each in enumerate(one[number] for one in rounds):
            for peer, start, stop in each.receives:
                assert (rank, start, stop) in rounds[peer][number].sends
                came = before[peer, start:stop]
                held[rank, start:stop] = held[rank, start:stop] + came if each.adds else came
    assert (held == payloads.sum(axis=0)).all()


def test_a_gpu_sends_ever_smaller_parts_further_out() -> None:
    schedule = hierarchical_all_reduce(((2, 2), (2, 2)), 8000)
    sends = [dict(one.sends) for one in schedule.rounds[0]]
    assert sends == [{1: 4000}, {2: 2000}, {4: 1000}, {4: 1000}, {2: 2000}, {1: 4000}]


def test_single_hosts_have_no_tier_inside() -> None:
    assert tiers((3, 2)) == ((3, 2),)
    assert (crosses((8,)), crosses(((8,),)), crosses(((8, 8),)), crosses((1, 1))) == (
        False,
        False,
        True,
        True,
    )
