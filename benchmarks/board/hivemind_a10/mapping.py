"""Which number of a run answers a row: seconds of a round, all peers together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.board.runs import chosen, wall_clock_s

TITLE: Final = "hivemind with eight models on two to eight A10 of one site"
UNIT: Final = "s"
BLIND: Final = "no row: a blind try had read its input wrongly, its page says how"
GRADES: Final = {"measured": "a measured rate, and the speed of hosts of one GPU"}
FITTED: Final = {"cost of a round beside computing and sending": "1.5 s, on eight rows"}
ASSUMED: Final = {
    "rate of a peer": "1.1 Gbit/s",
    "latency between peers": "0.15 ms one way",
}

_SCENARIO: Final = Path(__file__).with_name("one-site.yaml")
_CONSTANT_S: Final = 1.5
_MODELS: Final = {
    "ResNet18": (11_689_512, 987.9),
    "ResNet50": (25_557_032, 519.9),
    "ResNet152": (60_192_808, 228.8),
    "WideResNet101_2": (126_886_696, 208.9),
    "ConvNextLarge": (197_767_336, 88.77),
    "RoBERTaBase": (124_697_433, 808.5),
    "RoBERTaLarge": (355_412_057, 359.5),
    "RoBERTaXLM": (560_100_000, 248.5),
}
"""Parameters, sent in 16 bits; examples a second of one A10 while a round of two peers fills."""


def predict(row: Mapping[str, str]) -> float:
    """Seconds of a round."""
    parameters, per_s = chosen(_MODELS, row["model"])
    return _CONSTANT_S + wall_clock_s(
        _SCENARIO,
        f"workload.payload={2 * parameters} B",
        f"cluster.workers={row['peers']}",
        f"cluster.compute.time={int(row['round_examples']) / (int(row['peers']) * per_s)!r} s",
    )
