"""Which number of a run answers a row: milliseconds of an iteration, over whole cycles of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.board.runs import chosen, wall_clock_s

TITLE: Final = "all-reduce, SGP and Decent-DP on hosts with A40, T4 and A100"
UNIT: Final = "ms"
BLIND: Final = "16 of the 36 rows: the mapping is older in the history"
GRADES: Final = {
    "plate": "the rate of cards",
    "contradicting": "the exponential graph's bytes are more than the stated network can carry",
}
FITTED: Final = {
    "computing": "one time for each GPU, on the first row of each alternating ring",
    "part of it that more GPUs don't shorten": "25 ms, on its other two rows",
    "deviation of computing times": "12 %, on the all-reduce among 16 T4",
}
ASSUMED: Final = {
    "latency between hosts": "30 us over Ethernet, 5 us over InfiniBand",
    "links inside hosts": "24, 12 and 240 GB/s (A40, T4, A100), 5 us",
}
SCHEME: Final = ("method",)


@dataclass(frozen=True)
class _Cluster:
    """A cluster as the paper describes it; ``shared_ms`` is divided among its GPUs."""

    gpus: int
    latency: str
    bandwidth: str
    inside: str
    shared_ms: float


_SCENARIO: Final = Path(__file__).with_name("cluster.yaml")
_FIXED_MS: Final = 25.0
_CV: Final = 0.12
_CLUSTERS: Final = {
    "A40": _Cluster(4, "0.03 ms", "25 Gbit/s", "24 GB/s", 692.0),
    "T4": _Cluster(8, "0.005 ms", "100 Gbit/s", "12 GB/s", 4288.0),
    "A100": _Cluster(4, "0.005 ms", "100 Gbit/s", "240 GB/s", 258.0),
}
_DECENT: Final = "'benchmarks.board.decent_dp.scheme:decent': "
_SCHEMES: Final = {
    "all_reduce": "all_reduce: {overlap: true, bucket: 25 MiB}",
    "sgp": "sgp: {topology: one_peer_exponential, inside: hosts, overlap: 1}",
    "exponential": _DECENT + "{graph: exponential}",
    "alternating_exponential_ring": _DECENT + "{graph: alternating_exponential_ring}",
}


def predict(row: Mapping[str, str]) -> float:
    """Milliseconds of an iteration."""
    cluster, workers = chosen(_CLUSTERS, row["cluster"]), int(row["gpus"])
    compute_ms = _FIXED_MS + cluster.shared_ms / workers
    steps = 12 if row["method"] == "all_reduce" else 25 if workers == 32 else 24
    return (1e3 / steps) * wall_clock_s(
        _SCENARIO,
        f"cluster.workers={workers}",
        f"cluster.compute={{time: {compute_ms} ms, jitter: {{gamma: {{cv: {_CV}}}}}}}",
        f"cluster.network.latency={cluster.latency}",
        f"cluster.network.bandwidth={cluster.bandwidth}",
        f"cluster.network.host={{gpus: {cluster.gpus}, latency: 5 us, bandwidth: {cluster.inside}}}",
        f"schemes=[{chosen(_SCHEMES, row['method'])}]",
        f"stop.max_iterations={steps}",
    )


def grade_of(row: Mapping[str, str]) -> str:
    """Which of ``GRADES`` a row has."""
    return "contradicting" if row["method"] == "exponential" else "plate"
