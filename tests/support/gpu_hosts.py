"""Two sites whose hosts have several GPUs: their network, and scenarios on it."""

from __future__ import annotations

from paceline.sim.network.network import Network
from tests.support.factory import network_of

HOST = {"gpus": 2, "latency": "0.25 s", "bandwidth": "64 Mbit/s"}
WITHIN = {"latency": "0.5 s", "bandwidth": "32 Mbit/s"}
BETWEEN = {"latency": "1 s", "bandwidth": "16 Mbit/s"}

_SCENARIO = """\
name: hosts
workload: {{timing_only: true, payload: 8 MB}}
cluster:
  compute: {{time: 1 s}}
  network:
    sites: {sites}
    within: {{latency: 0.5 s, bandwidth: 32 Mbit/s}}
    between: {{latency: 1 s, bandwidth: 16 Mbit/s}}
    host: {host}
collectives: {{all_reduce: halving_doubling}}
schemes: [{scheme}]
stop: {{max_iterations: {steps}}}
"""


def two_sites() -> Network:
    """Eight workers, two in every host."""
    return network_of(8, sites={"a": 4, "b": 4}, within=WITHIN, between=BETWEEN, host=HOST)


def hosts_scenario(host: str, sites: str = "{a: 4, b: 4}", scheme: str = "all_reduce", steps: int = 1) -> str:
    """A scenario about the clock alone, 8 MB at a time; ``host``, ``sites`` and ``scheme`` as in YAML."""
    return _SCENARIO.format(host=host, sites=sites, scheme=scheme, steps=steps)
