"""Which number of a run answers a row: milliseconds of a collective, or of a message between stock hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.board.collective import Collective, predict_ms, predict_stock_ms

TITLE: Final = "collectives over gloo and NCCL on AWS hosts with netem"
UNIT: Final = "ms"
BLIND: Final = "no row: all had been read"
FITTED: Final = {"end of NCCL's all-reduce": "five one-way latencies, on its twelve rows"}


def predict(row: Mapping[str, str]) -> float:
    """Milliseconds of a row."""
    what = Collective(
        row["collective"], int(row["workers"]), row["latency"], row["bandwidth"], row["transport"],
        row["payload"],
    )  # fmt: skip
    return predict_stock_ms(what) if what.kind == "point_to_point" else predict_ms(what)
