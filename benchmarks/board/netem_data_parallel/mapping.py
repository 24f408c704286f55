"""Which number of a run answers a row: seconds in which all workers average a tensor in one of three ways."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.board.collective import Collective, predict_ms
from benchmarks.board.runs import chosen
from paceline.sim.config.units import parse_bytes

TITLE: Final = "three ways to average gradients over NCCL on AWS hosts with netem"
UNIT: Final = "s"
BLIND: Final = "71 of the 72 rows: mapping and predictions are older in the history"
GRADES: Final = {"contradicting": "one all-reduce takes 3.30 s in one of its files and 4.22 s in another"}
FITTED: Final[Mapping[str, str]] = {}
SCHEME: Final = ("way",)

_WAYS: Final = {
    "all_reduce": ("all_reduce",),
    "central_server": ("reduce", "broadcast"),
    "sharded_server": ("all_to_all", "all_to_all"),
}
"""Collectives of the whole tensor, in turn; the script's own all-gather sends as an all-to-all does."""


def predict(row: Mapping[str, str]) -> float:
    """Seconds of a row. All-reduces are of one part of the tensor at a time, a part for each worker."""
    workers, payload_bytes = int(row["workers"]), parse_bytes(row["payload"])
    parts = workers if row["way"] == "all_reduce" else 1
    return parts * sum(
        predict_ms(
            Collective(
                kind, workers, row["latency"], row["bandwidth"], "nccl", f"{payload_bytes / parts:.0f} B"
            )
        )
        / 1e3
        for kind in chosen(_WAYS, row["way"])
    )
