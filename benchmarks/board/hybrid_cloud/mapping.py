"""Which number of a run answers a row: seconds of a round of 32,768 examples, all peers together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.board.multi_cloud.mapping import MODELS, round_s
from benchmarks.board.runs import chosen

TITLE: Final = "hivemind on an office's RTX8000 and T4s of a cloud"
UNIT: Final = "s"
BLIND: Final = "12 of the 14 rows: mapping and predictions are older in the history"
GRADES: Final = {"measured": "rates by iperf3, and the speed of hosts of one GPU"}
FITTED: Final = {"speed of the RTX8000": "one for each model, on its first row"}

_ROUND_EXAMPLES: Final = 32_768
_RTX8000_PER_S: Final = {"ConvNextLarge": 82.8, "RoBERTa-XLM": 190.9}
"""Examples a second under hivemind: with them the first rows come out."""


def predict(row: Mapping[str, str]) -> float:
    """Seconds of a round; the faster a peer, the more examples are its own."""
    model, t4s = chosen(MODELS, row["model"]), int(row["t4s"])
    per_s = chosen(_RTX8000_PER_S, row["model"]) + t4s * _ROUND_EXAMPLES / model.work_s
    return round_s(model, f"1 office + {t4s} {row['where']}", _ROUND_EXAMPLES / per_s)
