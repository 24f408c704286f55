"""The record that ``paceline.attach`` makes of a run inside a user's training loop.

``paceline calibrate`` fits factors to the durations of its operations; a scenario's
``compute.trace.attached`` takes those of its gradients.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from ..config import files
from ..config.limits import MAX_MODEL_BYTES, MAX_PARAMETERS, MAX_SEED, MAX_STEPS, MAX_WORKERS, MIN_POSITIVE
from ..config.problems import mistake
from ..config.settings import Settings
from ..records.run import Event

KIND: Final = "attached run"
RECORD_VERSION: Final = 1
MAX_RECORDED_STEPS: Final = 200
"""Largest number of recorded steps: more would tell calibration little more, and cost it time."""

MAX_MOMENTS: Final = 16
"""Largest number of an optimiser's buffers as large as the model; known optimisers have two at most."""

EventTuple = tuple[int, int, int, int, str, float, float, float, int, int]
"""An ``Event``, its fields in their order."""


class AttachedRun(Settings):
    """The first steps of a run, and the facts needed to simulate them."""

    kind: Literal["attached run"] = "attached run"
    version: int = RECORD_VERSION
    made: str
    machine: str
    software: str
    hosts: tuple[str, ...] = Field(description="where each worker ran")
    settings: dict[str, str] = Field(description="of the first of them")
    scheme: dict[str, Any] = Field(description="as in a scenario")
    workers: int = Field(ge=2, le=MAX_WORKERS)
    seed: int = Field(ge=0, le=MAX_SEED)
    steps: int = Field(ge=1, le=MAX_STEPS)
    parameters: int = Field(ge=1, le=MAX_PARAMETERS)
    bytes_per_parameter: float = Field(ge=MIN_POSITIVE, le=MAX_MODEL_BYTES)
    moments: int = Field(ge=0, le=MAX_MOMENTS, description="that the optimiser keeps for every parameter")
    round_s: float | None = Field(
        default=None, ge=0, description="of an average besides its exchange, in the middle of them"
    )
    rows: tuple[EventTuple, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        seen = set()
        for number, (worker, _, _, _, operation, start_s, end_s, *_) in enumerate(self.rows):
            if not 0 <= worker < self.workers:
                raise mistake(f"there is no worker {worker}", "rows", number)
            if end_s < start_s:
                raise mistake("a duration is negative", "rows", number)
            if operation == "gradient" and end_s > start_s:
                seen.add(worker)
        if missing := set(range(self.workers)) - seen:
            raise mistake(f"there is no gradient of worker {min(missing)}", "rows")
        return self

    @property
    def events(self) -> list[Event]:
        """Events of all workers, in the order in which they resumed."""
        return [Event(*row) for row in self.rows]

    def gradients_s(self) -> tuple[tuple[float, ...], ...]:
        """Durations of each worker's gradients, in order."""
        durations_s: list[list[float]] = [[] for _ in range(self.workers)]
        for event in self.events:
            if event.operation == "gradient" and event.end_s > event.start_s:
                durations_s[event.worker].append(event.end_s - event.start_s)
        return tuple(map(tuple, durations_s))


def load(path: Path) -> AttachedRun:
    """Read a record; ``InputError`` for one that is unreadable, damaged or of another version."""
    return files.as_model(AttachedRun, files.read_json(path, "paceline.attach"), path, RECORD_VERSION)
