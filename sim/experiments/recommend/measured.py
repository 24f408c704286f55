"""Parts of a cluster outside what was measured and compared with predictions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ...config.units import format_plain, format_rate, format_seconds
from ...network.build import build_network
from ...scenario.schema import Scenario

MEASURED: Final[Mapping[str, tuple[tuple[float, float], ...]]] = MappingProxyType(
    {
        "gloo": ((2, 32), (0.05e-3, 50e-3), (12.5e6, 625e6)),
        "nccl": ((2, 32), (0.05e-3, 10e-3), (125e6, 625e6)),
    }
)
"""Transport -> ranges of workers, one-way latency and bandwidth, of the lab (docs/validation.md) and of
netem_collectives (docs/board.md)."""
_WORDS: Final = (("workers", format_plain), ("latency", format_seconds), ("bandwidth", format_rate))


def outside_measured(scenario: Scenario) -> list[str]:
    """Phrases for what no measurement covers; empty where all of the cluster is inside."""
    transport, workers = str(scenario.cluster.network.transport), scenario.cluster.workers
    if transport not in MEASURED:
        return [f"transport {transport}, which is no library's (write gloo or nccl)"]
    network = build_network(scenario.cluster.network, workers)
    latencies = [network.route(i, j).latency_s for i in range(workers) for j in range(workers) if i != j]
    rates = [link.bandwidth_bytes_per_s for link in network.links]
    finite = [rate for rate in rates if math.isfinite(rate)]
    here: tuple[list[float], ...] = [float(workers)], latencies, finite
    phrases = []
    for (name, written), values, (low, high) in zip(_WORDS, here, MEASURED[transport], strict=True):
        beyond = [value for value in values if not low <= value <= high]
        if beyond:
            phrases.append(f"{name} {written(max(beyond))} (measured: {written(low)} to {written(high)})")
    return phrases
