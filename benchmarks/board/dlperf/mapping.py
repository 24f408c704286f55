"""Which number of a run answers a row: milliseconds of a step on all GPUs, from the speed of one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from benchmarks.board.runs import chosen, wall_clock_s
from paceline.sim.workloads.layers.presets import PRESETS

TITLE: Final = "BERT-base and ResNet-50 on four servers of eight V100 with InfiniBand"
UNIT: Final = "ms"
BLIND: Final = "all rows; the simulator has changed since, its page says how"
GRADES: Final = {"part": "the speed of one GPU of eight"}
FITTED: Final[Mapping[str, str]] = {}
ASSUMED: Final = {
    "latency between hosts": "5 us one way",
    "links inside hosts": "1200 Gbit/s, 5 us",
}

_SCENARIO: Final = Path(__file__).with_name("four-servers.yaml")
_ALONE_PER_S: Final = {
    "BERT-base, single precision, 32": 119.6,
    "BERT-base, single precision, 48": 121.94,
    "BERT-base, half precision, dynamic scale, 64": 444.51,
    "BERT-base, half precision, static scale, 64": 426.53,
    "ResNet-50, single precision, 128": 367.29,
}
"""Examples a second on one GPU; the last number is how many a GPU has in a step."""
BERT_BYTES: Final = 4 * 110_106_428
"""A gradient in single precision, with those of the heads for pre-training."""
_BUCKETS: Final = "{all_reduce: {overlap: true, bucket: 40 MB, send_order: ready_first}}"
"""What apex's DistributedDataParallel puts together: ten million elements. The script for BERT raises that to
250 million, so that all its gradients go after the backward pass."""
_STEPS: Final = 2


def predict(row: Mapping[str, str]) -> float:
    """Milliseconds of a step."""
    alone_per_s = chosen(_ALONE_PER_S, f"{row['model']}, {row['batch']}")
    payload_bytes = (
        None if row["model"].startswith("ResNet") else BERT_BYTES // (1 + ("half" in row["model"]))
    )
    return step_ms(row, alone_per_s, payload_bytes, "all_reduce" if payload_bytes else _BUCKETS)


def step_ms(
    row: Mapping[str, str], alone_per_s: float, payload_bytes: int | None, scheme: str, *changes: str
) -> float:
    """Milliseconds of a step on all GPUs of a row.

    Args:
        row: ``batch`` (examples a GPU), ``servers``, ``gpus`` (in use of each).
        alone_per_s: examples a second on one GPU.
        payload_bytes: of a gradient; None: ResNet-50, layer by layer.
        scheme: in YAML.
        changes: others.
    """
    servers, gpus, batch = (int(row[name]) for name in ("servers", "gpus", "batch"))
    if payload_bytes is None:
        flops = alone_per_s * sum(layer.flops for layer in PRESETS["resnet-50"]())
        compute, what = f"{{speed: {flops / 1e12!r} Tflop/s}}", "layer_profile: resnet-50"
    else:
        compute, what = f"{{time: {batch / alone_per_s!r} s}}", f"payload: {payload_bytes} B"
    seconds = wall_clock_s(
        _SCENARIO,
        f"workload={{timing_only: true, batch_size: {batch}, {what}}}",
        f"cluster.workers={servers * gpus}",
        f"cluster.compute={compute}",
        f"cluster.network.host.gpus={gpus}",
        f"schemes=[{scheme}]",
        *changes,
    )
    return 1e3 * seconds / _STEPS
