"""Which number of a run answers a row: seconds of an epoch, from its steps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.board.runs import chosen, wall_clock_s
from paceline.sim.config.units import parse_bandwidth, parse_duration

TITLE: Final = "DDP, Horovod and Bagua with 128 V100 by bandwidth and latency"
UNIT: Final = "s"
BLIND: Final = "24 of the 39 rows: mapping and predictions are older in the history"
GRADES: Final = {"measured": "rates and latencies set by hand, and computing of all 16 hosts"}
FITTED: Final = {
    "computing": "720 ms, on the decentralised system at 100 Gbit/s",
    "most that a host sends over TCP": "25 Gbit/s, on DDP at 100 Gbit/s",
}
ASSUMED: Final = {
    "latency between hosts": "50 us one way",
    "most that a pair of hosts has in flight": "4 MiB, for decentralised averages",
}
SCHEME: Final = ("system",)

_SCENARIO: Final = Path(__file__).with_name("sixteen-hosts.yaml")
_STEPS: Final = 88_524 / (128 * 6)
_PAYLOAD_BYTES: Final = 1340.6e6
_RING: Final = (127 / 128) / (15 / 16)
"""Bytes that a ring of 128 GPUs sends over a card, per byte of a ring of 16 hosts."""
_HOST_BYTES_PER_S: Final = 25e9 / 8
_BUFFER_BYTES: Final = 4 * 2**20
"""What a pair of hosts is assumed to have in flight at most."""
_HOST_LATENCY_S: Final = 50e-6
_SCHEMES: Final = {
    "ddp": f"all_reduce: {{overlap: true, bucket: {25 * 2**20 * _RING:.0f} B}}",
    "horovod": f"all_reduce: {{overlap: true, bucket: {64 * 2**20 * _RING:.0f} B}}",
    "decentralised": "gossip: {topology: one_peer_hypercube, order: combine_while_adapting}",
}


def predict(row: Mapping[str, str]) -> float:
    """Seconds of an epoch."""
    scheme = chosen(_SCHEMES, row["system"])
    latency_s = _HOST_LATENCY_S + parse_duration(row["latency"])
    rate, payload = min(parse_bandwidth(row["bandwidth"]), _HOST_BYTES_PER_S), _PAYLOAD_BYTES * _RING
    if row["system"] == "decentralised":
        rate, payload = min(rate, _BUFFER_BYTES / (2 * latency_s)), _PAYLOAD_BYTES
    share = ", averaging: 0" if row["system"] == "horovod" else ""
    return (_STEPS / 2) * wall_clock_s(
        _SCENARIO,
        f"workload.payload={payload:.0f} B",
        f"cluster.network={{latency: {latency_s} s, bandwidth: {rate} B/s, transport: nccl{share}}}",
        f"schemes=[{scheme}]",
    )
