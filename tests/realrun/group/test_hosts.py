"""Ranks become workers by the machines that they are on."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.realrun.group.hosts import boot_id, host_name, workers_of
from paceline.sim.errors import InputError
from tests.sim.scenario.test_schema import FLAT, refusal

NAMES = st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, max_size=12)


def test_by_hand() -> None:
    names = ["b", "a", "b", "c", "a"]
    assert workers_of(names, None) == [0, 2, 1, 4, 3]
    assert workers_of(names, {"a": 2, "c": 1, "b": 2}) == [3, 0, 4, 2, 1]


def test_names_with_and_without_a_domain_are_the_same() -> None:
    assert workers_of(["b.lab", "a.lab"], {"a": 1, "b": 1}) == [1, 0]
    assert workers_of(["b", "a"], {"a": 1, "b": 1}) == [1, 0]
    assert workers_of(["b.lab", "b.home"], {"b.home": 1, "b.lab": 1}) == [1, 0]


@given(NAMES)
def test_workers_of_a_host_follow_one_another(names: list[str]) -> None:
    found = workers_of(names, None)
    assert sorted(found) == list(range(len(names)))
    by_worker = [names[found.index(worker)] for worker in range(len(names))]
    changes = sum(a != b for a, b in pairwise(by_worker))
    assert changes == len(set(names)) - 1
    for host in set(names):  # and within a host keep the order of the ranks
        mine = [found[rank] for rank, name in enumerate(names) if name == host]
        assert mine == sorted(mine)


@given(NAMES)
def test_any_order_of_hosts_can_be_asked_for(names: list[str]) -> None:
    wanted = dict(sorted(Counter(names).items(), reverse=True))
    found = workers_of(names, wanted)
    by_worker = [names[found.index(worker)] for worker in range(len(names))]
    assert by_worker == [host for host, count in wanted.items() for _ in range(count)]


@pytest.mark.parametrize(
    ("names", "wanted", "message"),
    [
        (["a", "a"], {"a": 1, "b": 1}, "a runs 2 processes (ranks 0, 1), cluster.hosts wants 1; "
         "b runs no process, cluster.hosts wants 1"),
        (["a", "c"], {"a": 2}, "a runs 1 process (rank 0), cluster.hosts wants 2; "
         "c runs 1 process (rank 1), and is not in cluster.hosts"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_named(names: list[str], wanted: dict[str, int], message: str) -> None:
    with pytest.raises(InputError) as caught:
        workers_of(names, wanted)
    assert str(caught.value) == message


def test_this_machine_has_a_name() -> None:
    assert host_name()
    assert len(boot_id()) == 36


def test_hosts_hold_all_workers() -> None:
    hosts = FLAT.replace("  workers: 4\n", "  workers: 4\n  hosts: {a: 2, b: 3}\n")
    assert refusal(hosts) == (
        "f.yaml:8: cluster.hosts: name places for 5 workers, there are 4; make them agree"
    )
