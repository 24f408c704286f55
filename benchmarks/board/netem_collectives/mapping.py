"""Which number of a run answers a row: milliseconds of a collective, or of a message between stock hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.board.collective import Collective, predict_ms, predict_stock_ms

TITLE: Final = "collectives over gloo and NCCL on AWS hosts with netem"
UNIT: Final = "ms"
BLIND: Final = "108 of the 162 rows; of the 54 over gloo 36 changed afterwards, its page says how"
GRADES: Final = {"measured": "a shaped rate, and no computing"}
FITTED: Final = {
    "end of NCCL's all-reduce": "five one-way latencies, on twelve rows",
    "gloo's software overhead of a message": "1.35 ms, on six rows; packaged since",
}
ASSUMED: Final = {
    "hosts without a limit": "5 Gbit/s over gloo, 10 over NCCL",
    "TCP of that time": "half of 6 MiB as window, 16 connections over NCCL",
}


def predict(row: Mapping[str, str]) -> float:
    """Milliseconds of a row."""
    what = Collective(
        row["collective"], int(row["workers"]), row["latency"], row["bandwidth"], row["transport"],
        row["payload"],
    )  # fmt: skip
    if what.kind == "point_to_point":
        return predict_stock_ms(what)
    return predict_ms(what)
