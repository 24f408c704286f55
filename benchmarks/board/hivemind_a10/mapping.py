"""Which number of a run answers a row: seconds of a round, all peers together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.board.runs import chosen, wall_clock_s

TITLE: Final = "hivemind with eight models on two to eight A10 of one site"
UNIT: Final = "s"
BLIND: Final = "45 of the 46 rows: mapping and predictions are older in the history"
FITTED: Final = {
    "cost of a round beside computing and sending": "on one row",
    "what a peer sends": "on one row",
}

_SCENARIO: Final = Path(__file__).with_name("one-site.yaml")
_CONSTANT_S: Final = 2.26
_PEER_RATE: Final = "285.3 Mbit/s"
_STEP_EXAMPLES: Final = 32
_MODELS: Final = {
    "ResNet18": (11_689_512, 0.0275),
    "ResNet50": (25_557_032, 0.0455),
    "ResNet152": (60_192_808, 0.1140),
    "WideResNet101_2": (126_886_696, 0.0881),
    "ConvNextLarge": (197_767_336, 0.21705),
    "RoBERTaBase": (124_697_433, 0.02885),
    "RoBERTaLarge": (355_412_057, 0.0601),
    "RoBERTaXLM": (560_100_000, 0.08265),
}
"""Parameters, sent in 16 bits; seconds of a step on one A10 of two, the mean of those without an average."""


def predict(row: Mapping[str, str]) -> float:
    """Seconds of a round."""
    parameters, step_s = chosen(_MODELS, row["model"])
    compute_s = int(row["round_examples"]) / (int(row["peers"]) * _STEP_EXAMPLES) * step_s
    return _CONSTANT_S + wall_clock_s(
        _SCENARIO,
        f"workload.payload={2 * parameters} B",
        f"cluster.workers={row['peers']}",
        f"cluster.compute.time={compute_s!r} s",
        f"cluster.network.bandwidth={_PEER_RATE}",
    )
