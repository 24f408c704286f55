"""Which number of a run answers a row: milliseconds of one all-reduce by NCCL."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.board.runs import chosen, wall_clock_s
from paceline.sim.config.units import parse_bandwidth
from paceline.sim.network.network_settings import payload_share

TITLE: Final = "NCCL's all-reduce by hosts and cards, from public logs of nccl-tests"
UNIT: Final = "ms"
BLIND: Final = "34 of the 38 rows: mapping and predictions are older in the history"
GRADES: Final = {"plate": "the line rate of cards, and links inside hosts by data sheets"}
FITTED: Final[Mapping[str, str]] = {}
ASSUMED: Final = {
    "latency between hosts": "5 us over RDMA, 30 us over TCP",
    "share of a card over RDMA": "all of it",
    "links inside hosts": "16, 150, 300 and 450 GB/s by data sheets, 5 us",
}
SCHEME: Final = ("algorithm",)

_SCENARIO: Final = Path(__file__).with_name("hosts.yaml")
_TRANSPORTS: Final = {
    "RDMA": (1.0, "5 us"),
    "TCP, MTU 1500": (payload_share(1500), "30 us"),
    "TCP, MTU 9000": (payload_share(9000), "30 us"),
}
"""Share of the card's rate left for data, and the latency one way."""
_INSIDE: Final = {
    "": "16 GB/s",
    "PCIe 3": "16 GB/s",
    "NVLink of V100": "150 GB/s",
    "NVLink of A100": "300 GB/s",
    "NVLink of H100": "450 GB/s",
}
"""A GPU's link inside its host, one way, by its data sheet; none: one GPU a host."""
_ALGORITHMS: Final = {"own": None, "ring": "nccl_ring", "tree": "nccl_tree"}


def predict(row: Mapping[str, str]) -> float:
    """Milliseconds of a row."""
    hosts, gpus = int(row["hosts"]), int(row["gpus"])
    algorithm = chosen(_ALGORITHMS, row["algorithm"])
    return 1e3 * wall_clock_s(
        _SCENARIO,
        f"workload.payload={row['payload']}",
        f"cluster.workers={hosts * gpus}",
        *link_of(row),
        f"cluster.network.host={{gpus: {gpus}, latency: 5 us, bandwidth: {chosen(_INSIDE, row['inside'])}}}",
        *([f"collectives={{all_reduce: {algorithm}}}"] if algorithm else []),
    )


def link_of(row: Mapping[str, str]) -> tuple[str, str]:
    """Changes that give hosts the link of a row's ``card`` and ``transport``."""
    share, latency = chosen(_TRANSPORTS, row["transport"])
    rate = share * parse_bandwidth(row["card"])
    return f"cluster.network.latency={latency}", f"cluster.network.bandwidth={rate!r} B/s"
