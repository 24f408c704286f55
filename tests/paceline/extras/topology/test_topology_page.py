"""Steps until a sequence of mixing matrices has averaged."""

from __future__ import annotations

import pytest

from paceline.extras.topology.topology_page import steps_until, transient_iterations
from paceline.sim.topology import TopologyEntry, plan


def test_steps_until() -> None:
    def steps(topology: TopologyEntry | str, n: int, rule: str, epsilon: float) -> int:
        return steps_until(plan(topology, n, rule).first, epsilon)

    assert steps(TopologyEntry.of({"ring_lattice": {"degree": 4}}), 32, "laplacian", 1e-3) == 113
    assert steps("hypercube", 32, "uniform", 1e-3) == 18
    assert steps("hypercube", 4, "uniform", 1 / 3) == 1
    assert steps("complete", 8, "uniform", 1e-9) == 1
    assert steps("one_peer_exponential", 6, "uniform", 0.3) == 3
    # the bound by whole periods: 0.2165^5 < 1e-3 < 0.2165^4
    assert steps("one_peer_exponential", 6, "uniform", 1e-3) == 15


@pytest.mark.parametrize("digits", range(1, 9))
def test_one_peer_exponential_takes_a_period(digits: int) -> None:
    assert steps_until(plan("one_peer_exponential", 2**digits).first, 1e-3) == digits


def test_transient_iterations() -> None:
    found = transient_iterations(10, 0.5)
    assert found == {"same_data": 250.0, "different_data": 1000.0}
