"""Drawn networks, for laws."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from paceline.sim.collectives.algorithms import Sites
from paceline.sim.network.network import Network
from tests.support.factory import network_of


@st.composite
def networks(
    draw: Any,
    sizes: SearchStrategy[list[int]],
    gbit_per_s: SearchStrategy[float],
    within_ms: SearchStrategy[int],
) -> tuple[Sites, Network]:
    """Sites of so many hosts, perhaps of two GPUs; each pair of sites has a pipe of its own."""
    hosts, gpus = draw(sizes), draw(st.sampled_from([1, 2]))
    if sum(hosts) * gpus < 2:
        hosts = [2]
    names = [f"s{number}" for number in range(len(hosts))]
    pairs = {f"{a}-{b}": f"{draw(gbit_per_s)} Gbit/s" for a in names for b in names if a < b}
    network = network_of(
        gpus * sum(hosts),
        sites={name: gpus * each for name, each in zip(names, hosts, strict=True)},
        within={"latency": f"{draw(within_ms)} ms", "bandwidth": f"{draw(gbit_per_s)} Gbit/s"},
        between={"latency": f"{draw(st.integers(0, 100))} ms", "bandwidth": pairs | {"default": "1 Gbit/s"}},
        host={"gpus": gpus, "latency": "5 us", "bandwidth": "10 Gbit/s"},
    )  # fmt: skip
    return (tuple(hosts) if gpus == 1 else tuple((2,) * each for each in hosts)), network
