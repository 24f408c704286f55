"""Heartbeats beside averages: the bandwidth below which workers count as dead, or no average ends in time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from ..config.problems import mistake
from ..config.settings import Settings
from ..config.units import BoundedSeconds, Bytes

_Seconds = Annotated[BoundedSeconds, Field(gt=0)]


class Heartbeats(Settings):
    """Messages by which all workers say that they live; the times are torchft's defaults.

    Source: ``src/lighthouse.rs`` and ``torchft/manager.py`` of meta-pytorch/torchft (November 2026).
    """

    every: _Seconds = Field(default=0.1, description="time from one heartbeat to the next")
    bytes: Bytes = Field(default=200, description="bytes of one, with its headers")
    timeout: _Seconds = Field(default=5.0, description="time without one after which a worker is dead")
    queue: Bytes = Field(
        default=1_500_000,
        description="bytes that can stand before a heartbeat in a link's queue: by default Linux's 1,000 "
        "packets; 0 B: fair queues",
    )
    transfer_timeout: _Seconds = Field(
        default=60.0, description="time limit of an average, or of the state sent to a returning worker"
    )

    @model_validator(mode="after")
    def _check(self) -> Heartbeats:
        if self.timeout <= self.every:
            raise mistake("must be more than 'every', or all workers count as dead", "timeout")
        return self


def needed_bytes_per_s(heartbeat: Heartbeats, workers: int, average_bytes: float) -> float:
    """Bandwidth of a link below which heartbeats starve, or averages, of which it carries ``average_bytes``.

    At worst the queue fills just before a heartbeat, which comes ``every`` and the time of these bytes and of
    the others' heartbeats after the last. Those of all ``workers`` must fit on the link, and an average into
    its time-out.
    """
    beats = workers * heartbeat.bytes
    return max(
        (min(heartbeat.queue, average_bytes) + beats) / (heartbeat.timeout - heartbeat.every),
        beats / heartbeat.every,
        average_bytes / heartbeat.transfer_timeout,
    )
