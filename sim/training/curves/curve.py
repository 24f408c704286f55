"""A measured curve, and the file that it stands in, as a scenario writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from ...config.limits import MAX_BATCH, MAX_LABEL, MAX_SEED
from ...config.settings import Settings
from ...records.verdict import Value

SCHEDULED: Final = ("schedule", "horizon")
"""Conditions about a run's length: the schedule of the learning rate, and the steps that it is for."""


def _unpack(value: object) -> object:
    if not isinstance(value, str):
        return value
    return tuple(None if word == "-" else float(word) for word in value.split())


def _pack(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value!r}".removesuffix(".0") for value in values)


Numbers = Annotated[
    tuple[Annotated[float, Field(allow_inf_nan=True)] | None, ...],
    BeforeValidator(_unpack),
    PlainSerializer(_pack, return_type=str),
    WithJsonSchema({"type": "string", "examples": ["0 100 200"]}),
]
"""Numbers, written as the words of one text; ``-`` where there is none."""


class CurveFile(Settings):
    """A file of curves, and what it does not say itself."""

    file: str = Field(
        min_length=1,
        description="CSV, W&B export, Parquet, JSON lines, TensorBoard event file or a folder of these, or a "
        "result folder; relative to the scenario's folder",
    )
    run: str | None = Field(default=None, description="name of the run to take (default: all)")
    scheme: str | None = Field(
        default=None,
        max_length=MAX_LABEL,
        description="label of the scheme (default: column `scheme`, else the run's name)",
    )
    seed: int | None = Field(
        default=None, ge=0, le=MAX_SEED, description="seed of the run (default: column `seed`, else 0)"
    )
    scores: tuple[str, ...] = Field(default=(), description="columns of scores (default: all with numbers)")
    tokens_per_example: int | None = Field(
        default=None, ge=1, le=MAX_BATCH, description="for curves against tokens: tokens of one example"
    )
    conditions: dict[str, Value] = Field(
        default={},
        description="what was measured: `workers`, `batch_size`, options of the scheme such as `period`, "
        "`schedule` of the learning rate and its `horizon` in steps (default: columns of these names)",
    )


class Curve(Settings):
    """Scores of one run against a worker's steps; inf where a score was not finite.

    ``under``: conditions that it was measured under, ``workers`` and ``batch_size`` among them.
    """

    scheme: str
    seed: int
    under: dict[str, Value]
    steps: Numbers
    scores: dict[str, Numbers]

    def known(self, metric: str) -> dict[float, float]:
        """Step -> score of ``metric``, in order, where it is known."""
        pairs = zip(self.steps, self.scores.get(metric, ()), strict=False)
        return {step: score for step, score in pairs if step is not None and score is not None}
