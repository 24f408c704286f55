"""Hierarchical all-reduces over hosts and sites: who sends what, and the closed form of equal clusters."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.collectives.hierarchy import (
    Sites,
    count_ranks,
    crosses,
    hierarchical_all_reduce,
    hierarchical_pieces,
    tiers,
)
from paceline.sim.collectives.symmetric import (
    EqualLinks,
    SymmetricSharing,
    alone_s,
    bytes_of_rounds,
    symmetric_rounds,
)

laws = settings(deadline=None, derandomize=True, max_examples=40)
FREE = math.inf
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


def test_no_rounds_stand_for_clusters_that_are_uneven() -> None:
    links = EqualLinks((1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (FREE, FREE, FREE))
    assert symmetric_rounds(((2, 2), (2,)), 100, links) is None
    assert symmetric_rounds(((2, 1), (2, 1)), 100, links) is None
    assert symmetric_rounds((2, 2), 100, links) is None


@laws
@given(sites=st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(2, 4)), parts=st.integers(1, 50))
def test_rounds_are_those_of_the_messages(sites: tuple[int, int, int], parts: int) -> None:
    number, in_site, gpus = sites
    cluster: Sites = ((gpus,) * in_site,) * number
    num_bytes = parts * count_ranks(cluster)
    links = EqualLinks((1.0, 1.0, 1.0, 1.0), (0.0, 0.0, 0.0), (FREE, FREE, FREE))
    rounds = symmetric_rounds(cluster, num_bytes, links)
    assert rounds is not None
    for rank_rounds in hierarchical_all_reduce(cluster, num_bytes).rounds:
        sent = [one.sends for one in rank_rounds if one.sends]
        assert [(len(each), {size for _, size in each}) for each in sent] == [
            (one.messages, {one.num_bytes}) for one in rounds
        ]
        assert sum(size for each in sent for _, size in each) == bytes_of_rounds(rounds)


def test_two_collectives_share_a_card_fairly() -> None:
    """Cards of 4 B/s with two messages each: alone 1 B/s... of two rounds at once each message gets 1 B/s."""
    links = EqualLinks((FREE, 4.0, FREE, FREE), (0.0, 0.0, 0.0), (FREE, FREE, FREE))
    rounds = symmetric_rounds(((2, 2),), 16, links)
    assert rounds is not None
    one = rounds[1]
    assert (one.num_bytes, one.loads) == (4, (0, 2, 0, 0))
    sharing = SymmetricSharing(links)
    first = sharing.start(one, 0.0)
    assert sharing.next_end() == (2.0, first)  # 2 B/s each
    second = sharing.start(one, 1.0)  # 2 B are left of the first, at 1 B/s from now on
    assert sharing.next_end() == (3.0, first)
    sharing.end(first, 3.0)
    assert sharing.next_end() == (4.0, second)  # 2 B are left of it
    assert alone_s((one,), links) == 2.0


def test_unlimited_links_take_no_time() -> None:
    links = EqualLinks((FREE, FREE, FREE, FREE), (0.5, 1.0, 2.0), (FREE, FREE, FREE))
    rounds = symmetric_rounds(((2, 2), (2, 2)), 800, links)
    assert rounds is not None
    assert alone_s(rounds, links) == 7.0
    sharing = SymmetricSharing(links)
    assert sharing.next_end() == (FREE, 0)
    number = sharing.start(rounds[0], 3.0)
    assert sharing.next_end() == (3.0, number)


@pytest.mark.parametrize("sites", [(), ((2, 0),), (0, 2)])
def test_empty_groups_are_refused(sites: Sites) -> None:
    with pytest.raises(ValueError, match="no collective has sites"):
        hierarchical_all_reduce(sites, 10)
