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
BLIND: Final = "31 of the 41 rows; tensors and connecting were added afterwards, its page says how"
GRADES: Final = {"measured": "a shaped rate, and steps on all hosts"}
FITTED: Final = {"first average of a process": "420 ms more, on DiLoCo's one at 1 Gbit/s"}
ASSUMED: Final = {
    "latency between hosts": "50 us one way",
}
SCHEME: Final = ("algorithm", "period", "averages")
PER: Final = "steps"

SCENARIO: Final = Path(__file__).with_name("four-hosts.yaml")
PAYLOAD_OF_FRAME: Final = 8949 / 9015
"""TCP with time stamps in frames of 9,001 bytes and a header of 14, which the token bucket counts as well."""
COMPUTE_S: Final = 25.3e-3
_BUFFERS: Final = "50331648 B"
"""Six layers' caches of rotary positions (131,072 x 8 complex numbers), registered as buffers: rank 0 sends
them in every forward pass of DDP."""
_CONNECT_S: Final = 0.42
_WARM_UP_STEPS: Final = 10
_TENSORS: Final = {51_463_168: 2, 786_432: 18, 262_144: 24, 1_024: 13}
"""Bytes of a tensor -> how many of them: vocabulary 50,257, width 256, feed-forward 768, six layers."""
_IS_DDP: Final = {"ddp": True, "diloco": False, "local_sgd": False}
_DDP: Final = f"all_reduce: {{overlap: true, bucket: 25 MiB, buffers: {_BUFFERS}}}"


def predict(row: Mapping[str, str]) -> float:
    """Seconds of a row."""
    steps, averages, period = (int(row[name]) for name in ("steps", "averages", "period"))
    rate = f"{parse_bandwidth(row['rate']) * PAYLOAD_OF_FRAME:.0f} B/s"
    if chosen(_IS_DDP, row["algorithm"]):
        return steps * wall_clock_s(SCENARIO, f"cluster.network.bandwidth={rate}", f"schemes=[{_DDP}]")
    connects = period > _WARM_UP_STEPS  # the first average is among those counted
    return steps * COMPUTE_S + averages * average_s(rate) + connects * _CONNECT_S


def average_s(rate: str) -> float:
    """Seconds of an average: an all-reduce for each tensor, one after the other."""
    each_ms = {
        size: predict_ms(Collective("all_reduce", 4, "0.05 ms", rate, "nccl", f"{size} B"))
        for size in _TENSORS
    }
    return 1e-3 * sum(number * each_ms[size] for size, number in _TENSORS.items())
