"""Which number of a run answers a row: milliseconds of a step of Horovod's, or of an all-reduce over gloo."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.board.nccl_hosts.mapping import link_of
from benchmarks.board.runs import chosen, wall_clock_s
from paceline.sim.workloads.layers.presets import PRESETS

TITLE: Final = "Horovod and gloo on the networks of public threads"
UNIT: Final = "ms"
BLIND: Final = "no row: the values stand beside the machines"
GRADES: Final = {
    "measured": "one connection's rate, and the speed of a whole host",
    "part": "the speed of one GPU of four, or of four of eight",
    "plate": "the rate of cards, and no computing",
}
FITTED: Final[Mapping[str, str]] = {}
ASSUMED: Final = {
    "one connection outside a placement group": "5 Gbit/s",
}

_SCENARIO: Final = Path(__file__).with_name("hosts.yaml")
_PARAMETERS: Final = {"inception-v3": 23_834_568, "resnet-152": 60_192_808}
"""Of networks without a preset, whose gradients go at an even pace."""
_STEPS: Final = 2


def predict(row: Mapping[str, str]) -> float:
    """Milliseconds of a row."""
    hosts, gpus = int(row["hosts"]), int(row["gpus"])
    changes = [
        *link_of(row),
        f"cluster.workers={hosts * gpus}",
        f"cluster.network.host.gpus={gpus}",
        *chosen({"horovod": _horovod, "gloo": _gloo}, row["library"])(row),
    ]
    return 1e3 * wall_clock_s(_SCENARIO, *changes) / _STEPS


def _horovod(row: Mapping[str, str]) -> list[str]:
    """NCCL of 2017 and 2018 (2.3); buckets of Horovod's 64 MiB during the backward pass."""
    model, batch = row["model"], int(row["batch"])
    alone_per_s = float(row["base_per_s"]) / int(row["base_gpus"])
    if model in PRESETS:
        what = f"layer_profile: {model}"
        flops = sum(layer.flops for layer in PRESETS[model]())
        compute = f"{{speed: {alone_per_s * flops / 1e12!r} Tflop/s}}"
    else:
        what = f"payload: {4 * chosen(_PARAMETERS, model)} B"
        compute = f"{{time: {batch / alone_per_s!r} s}}"
    return [
        f"workload={{timing_only: true, batch_size: {batch}, {what}}}",
        f"cluster.compute={compute}",
        "schemes=[{all_reduce: {overlap: true, bucket: 64 MiB}}]",
        "cluster.network.nccl='2.3'",
        "cluster.network.averaging=0",  # Horovod, and it is in the speed of a host
    ]


def _gloo(row: Mapping[str, str]) -> list[str]:
    return [f"workload.payload={row['model']}", "cluster.network.transport=gloo"]


def grade_of(row: Mapping[str, str]) -> str:
    """Which of ``GRADES`` a row has."""
    if row["library"] == "gloo":
        return "plate"
    return "measured" if row["base_gpus"] == row["gpus"] else "part"
