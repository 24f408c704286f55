"""Whether a cluster lies inside what was measured and compared with predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ...config.units import format_rate, format_seconds
from ...network.build import build_network
from ...scenario.schema import Scenario

Range = tuple[float, float]
MEASURED: Final[Mapping[str, Mapping[str, Range]]] = MappingProxyType(
    {
        "gloo": {"workers": (2, 32), "latency_s": (0.05e-3, 50e-3), "bytes_per_s": (12.5e6, 625e6)},
        "nccl": {"workers": (2, 32), "latency_s": (0.05e-3, 10e-3), "bytes_per_s": (125e6, 625e6)},
    }
)
"""Transport -> ranges of the lab (docs/validation.md) and of netem_collectives (docs/board.md)."""
_WORDS: Final = {"workers": "workers", "latency_s": "latencies", "bytes_per_s": "bandwidths"}
_FORMATS: Final = {"workers": str, "latency_s": format_seconds, "bytes_per_s": format_rate}


def outside_measured(scenario: Scenario) -> list[str]:
    """Phrases for what no measurement covers; empty where all of the cluster is inside."""
    transport, workers = scenario.cluster.network.transport, scenario.cluster.workers
    if transport not in MEASURED:
        return [f"transport {transport} is no library's: name gloo or nccl for what was measured"]
    network = build_network(scenario.cluster.network, workers)
    latencies = [network.route(i, j).latency_s for i in range(workers) for j in range(workers) if i != j]
    rates = [rate for link in network.links if math.isfinite(rate := link.bandwidth_bytes_per_s)]
    here = {"workers": [workers], "latency_s": latencies, "bytes_per_s": rates}
    phrases = []
    for name, (low, high) in MEASURED[transport].items():
        written = _FORMATS[name]
        beyond = [value for value in here[name] if not low <= value <= high]
        if beyond:
            span = f"{written(low)} to {written(high)}"
            phrases.append(f"{_WORDS[name]} of {written(max(beyond))} (measured: {span})")
    return phrases
