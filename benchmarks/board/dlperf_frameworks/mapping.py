"""Which number of a run answers a row: milliseconds of a step on all GPUs, from the speed of one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from benchmarks.board.dlperf.mapping import BERT_BYTES, step_ms
from benchmarks.board.runs import chosen

TITLE: Final = (
    "BERT-base and ResNet-50 by MXNet, Paddle, PyTorch and TensorFlow on four servers of eight V100"
)
UNIT: Final = "ms"
BLIND: Final = "all rows: mapping and predictions are older in the history"
GRADES: Final = {"part": "the speed of one GPU of eight"}
FITTED: Final[Mapping[str, str]] = {}

_BUCKETS: Final = "{{all_reduce: {{overlap: true, bucket: {}}}}}"
_HOROVOD: Final = _BUCKETS.format("64 MiB")
_DDP: Final = _BUCKETS.format("25 MiB")
_PADDLE: Final = _BUCKETS.format("32 MiB")
_AT_THE_END: Final = "all_reduce"
_ALONE: Final = {
    "MxNet/BERT, 64": (156.76, _HOROVOD),
    "MxNet/BERT, 48": (153.75, _HOROVOD),
    "MxNet/BERT, 32": (150.11, _HOROVOD),
    "MxNet/RN50v1b, 128": (384.19, _HOROVOD),
    "NVIDIA/MxNet/RN50v1.5, 128": (392.24, _HOROVOD),
    "NVIDIA/TensorFlow/resnet50v1.5, 128": (362.44, _HOROVOD),
    "NVIDIA/TensorFlow/BERT, 32": (107.33, _HOROVOD),
    "NVIDIA/TensorFlow/BERT, 48": (112.76, _HOROVOD),
    "PaddlePaddle/bert, 32": (132.64, _PADDLE),
    "PaddlePaddle/bert, 64": (137.27, _PADDLE),
    "PaddlePaddle/bert, 96": (136.97, _PADDLE),
    "PaddlePaddle/resnet50v1.5, 128": (352.72, _PADDLE),
    "PyTorch/resnet50v1.5 DALI 8 workers, 128": (354.44, _DDP),
    "PyTorch/resnet50v1.5 DALI 48 workers, 128": (350.66, _DDP),
    "TensorFlow/bert, 32": (103.58, _AT_THE_END),
    "TensorFlow/bert XLA, 32": (125.37, _AT_THE_END),
    "TensorFlow/bert, 48": (108.94, _AT_THE_END),
    "TensorFlow/bert XLA, 48": (131.27, _AT_THE_END),
    "TensorFlow/bert, 64": (112.99, _AT_THE_END),
    "TensorFlow/bert XLA, 64": (138.21, _AT_THE_END),
    "TensorFlow/resnet50v1.5, 128": (321.80, _AT_THE_END),
}
"""Examples a second on one GPU, and how gradients go; the last number is how many examples a GPU has."""


def predict(row: Mapping[str, str]) -> float:
    """Milliseconds of a step."""
    alone_per_s, scheme = chosen(_ALONE, f"{row['implementation']}, {row['batch']}")
    is_bert = "bert" in row["implementation"].lower()
    changes = ("cluster.network.averaging=0",) if scheme == _HOROVOD else ()
    return step_ms(row, alone_per_s, BERT_BYTES if is_bert else None, scheme, *changes)
