"""Where workers start: at one common model, or each somewhere else around it."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from ..program.worker import Worker

Spread = Annotated[
    float,
    Field(
        ge=0,
        allow_inf_nan=False,
        description="standard deviation of every worker's own start around the common one",
    ),
]


def scattered(worker: Worker, spread: float) -> torch.Tensor:
    """This worker's first model: x(0) + ``spread`` times standard normal numbers of its own, [..., d]."""
    if spread == 0:
        return worker.start
    return worker.start + spread * worker.normal("start", 0, worker.start.shape[-1:])
