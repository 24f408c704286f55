"""Which number of a run answers a row: milliseconds of a step, over whole cycles of a graph."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.board.runs import chosen, wall_clock_s

TITLE: Final = "Horovod and BlueFog with up to 128 V100"
UNIT: Final = "ms"
BLIND: Final = "21 of the 36 rows: mapping and predictions are older in the history"
GRADES: Final = {"part": "computing by four of a host's eight GPUs"}
FITTED: Final = {
    "computing": "2.86 ms an image, on the rows of 4 GPUs with 64 images",
    "rate between hosts": "10 Gbit/s, on Horovod's 64 GPUs with 64 images",
}
ASSUMED: Final = {
    "latency between hosts": "30 us one way",
    "links inside hosts": "100 GB/s, 5 us",
}
SCHEME: Final = ("method",)

_SCENARIO: Final = Path(__file__).with_name("hosts.yaml")
_IMAGE_S: Final = 4 / 1400
_GPUS: Final = 8
_BLUEFOG: Final = "'benchmarks.board.bluefog.scheme:bluefog': "
_SCHEMES: Final = {
    "horovod": "all_reduce: {overlap: true, bucket: 64 MiB}",
    "neighbour": _BLUEFOG + "{hierarchical: false}",
    "hierarchical_neighbour": _BLUEFOG + "{hierarchical: true}",
}


def predict(row: Mapping[str, str]) -> float:
    """Milliseconds of a step."""
    workers, steps = int(row["gpus"]), _GPUS
    return (1e3 / steps) * wall_clock_s(
        _SCENARIO,
        f"cluster.workers={workers}",
        f"cluster.compute.time={_IMAGE_S * int(row['batch'])} s",
        "cluster.network.averaging=0",  # it is in the rows of 4 GPUs
        f"cluster.network.host={{gpus: {min(workers, _GPUS)}, latency: 5 us, bandwidth: 100 GB/s}}",
        f"schemes=[{chosen(_SCHEMES, row['method'])}]",
        f"stop.max_iterations={steps}",
    )
