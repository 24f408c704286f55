"""Which number of a run answers a row: seconds of ``period`` steps and an average, with its digests."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.board.runs import wall_clock_s

TITLE: Final = "torchft's DiLoCo over gloo between two namespaces with netem"
UNIT: Final = "s"
BLIND: Final = "3 of the 6 rows: mapping and predictions are older in the history"
GRADES: Final = {"measured": "a shaped rate, and the step of both replicas on their GPU"}
FITTED: Final = {"digests of an average": "0.7 s, from the time stamps of the source's log"}
SCHEME: Final = ("period",)
PER: Final = "period"

_SCENARIO: Final = Path(__file__).with_name("two-namespaces.yaml")
_DIGESTS_S: Final = 0.7


def predict(row: Mapping[str, str]) -> float:
    """Seconds of a cycle."""
    return _DIGESTS_S + wall_clock_s(
        _SCENARIO,
        f"cluster.network.bandwidth={row['rate']}",
        f"schemes=[diloco: {{period: {row['period']}}}]",
        f"stop.max_iterations={row['period']}",
    )
