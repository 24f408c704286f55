"""What schemes with a leader or a server share."""

from __future__ import annotations

from typing import Annotated, Any

import torch
from pydantic import Field

from paceline.sim.config.limits import MAX_FACTOR
from paceline.sim.program.worker import Worker
from paceline.sim.records.run import On

Spread = Annotated[
    float,
    Field(
        ge=0,
        le=MAX_FACTOR,
        description="standard deviation of workers' initial models around the common one",
    ),
]


def scattered(worker: Worker, spread: float) -> torch.Tensor:
    """This worker's first model, [..., d]: x(0) + ``spread`` times its own standard normal numbers."""
    if spread == 0:
        return worker.start
    return worker.start + spread * worker.normal("start", 0, worker.start.shape[-1:])


def publishes_leader(options: Any) -> On:
    """``publishes`` of a scheme with a leader or servers."""
    return "leader"


def on_a_server(visitors: int) -> float:
    """In flight on a server's host: for each visitor a receive, its value, and the reply."""
    return 3.0 * visitors + 2.0
