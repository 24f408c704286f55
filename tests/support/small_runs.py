"""A short training for processes that measure it and a simulation that predicts it."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.cluster_jobs import run_scheme
from tests.support.cluster_pool import Pool

WORKLOAD: dict[str, Any] = {
    "task": "digits-mlp",
    "compute_s": 0.004,
    "momentum": 0.9,
    "every": 4,
    "max_iterations": 12,
}
PADDED: dict[str, Any] = {"bytes_per_parameter": 37.0}
QSGD: dict[str, Any] = {"compression": {"qsgd": {"bits": 4, "bucket": 64}}}
TOP_K: dict[str, Any] = {"compression": {"top_k": {"share": 0.1}}}


def measure(
    pool: Pool, scheme: str, options: dict[str, Any], **job: Any
) -> tuple[dict[str, Any], list[torch.Tensor]]:
    """The record of a run on processes, and each worker's last model."""
    answers = pool.ask(run_scheme, scheme=scheme, options=options, **job)
    assert answers[0]["error"] is None
    record: dict[str, Any] = answers[0]["run"]
    assert (record["source"], record["status"]) == ("measured", "completed")
    return record, [torch.tensor(answer["final"]) for answer in answers]
