"""Which number of a run answers a row: seconds of ``steps`` steps with ``averages`` averages among them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.board.collective import Collective, predict_ms
from benchmarks.board.runs import chosen, wall_clock_s
from paceline.sim.config.units import parse_bandwidth

TITLE: Final = "DDP, local SGD and DiLoCo on four L40S under a token bucket"
UNIT: Final = "s"
BLIND: Final = "31 of the 41 rows: mapping and predictions are older in the history"
FITTED: Final[Mapping[str, str]] = {}

_SCENARIO: Final = Path(__file__).with_name("four-hosts.yaml")
_PAYLOAD_OF_FRAME: Final = 8949 / 9015
"""TCP with time stamps in frames of 9,001 bytes and a header of 14, which the token bucket counts as well."""
_COMPUTE_S: Final = 25.3e-3
_BUFFERS: Final = "50331648 B"
"""Six layers' caches of rotary positions (131,072 x 8 complex numbers), registered as buffers: rank 0 sends
them in every forward pass of DDP."""
_SCHEMES: Final = {
    "diloco": "diloco: {{period: {period}}}",
    "local_sgd": "local_sgd: {{period: {period}}}",
    "ddp": "all_reduce: {{overlap: true, bucket: 25 MiB}}",
}


def predict(row: Mapping[str, str]) -> float:
    """Seconds of a row."""
    steps, averages, period = (int(row[name]) for name in ("steps", "averages", "period"))
    rate = f"{parse_bandwidth(row['rate']) * _PAYLOAD_OF_FRAME:.0f} B/s"
    scheme = chosen(_SCHEMES, row["algorithm"]).format(period=period)
    cycle_s = wall_clock_s(
        _SCENARIO, f"cluster.network.bandwidth={rate}", f"schemes=[{scheme}]", f"stop.max_iterations={period}"
    )
    seconds = steps * _COMPUTE_S + averages * (cycle_s - period * _COMPUTE_S)
    if row["algorithm"] == "ddp":
        seconds += steps * predict_ms(Collective("broadcast", 4, "0.05 ms", rate, "nccl", _BUFFERS)) / 1e3
    return seconds
