"""Parts of a cluster outside what was measured and compared with predictions."""

from __future__ import annotations

import math

from ...network.build import build_network
from ...records.scenario_facts import MEASURED, beyond_measured
from ...scenario.schema import Scenario


def outside_measured(scenario: Scenario) -> list[str]:
    """Phrases for what no measurement covers; empty where all of the cluster is inside."""
    transport, workers = str(scenario.cluster.network.transport), scenario.cluster.workers
    if transport not in MEASURED:
        return [f"transport {transport}, which is no library's (write gloo or nccl)"]
    network = build_network(scenario.cluster.network, workers)
    rates = (link.bandwidth_bytes_per_s for link in network.links)
    here = {
        "workers": [float(workers)],
        "latency": [network.route(i, j).latency_s for i in range(workers) for j in range(workers) if i != j],
        "bandwidth": [rate for rate in rates if math.isfinite(rate)],
    }
    return [text for name, values in here.items() for text in beyond_measured(transport, name, values)]
