"""A measured curve, and a file of curves, as a scenario writes them; the conditions that curves hold for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, PlainSerializer, WithJsonSchema

from ...config.limits import MAX_BATCH, MAX_LABEL, MAX_SEED
from ...config.settings import Settings
from ...records.verdict import Value


def _unpack(value: object) -> object:
    words = value.split() if isinstance(value, str) else None
    return value if words is None else tuple(None if word == "-" else float(word) for word in words)


def _pack(values: Sequence[float | None]) -> str:
    return " ".join("-" if value is None else f"{value!r}".removesuffix(".0") for value in values)


Column = Annotated[
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
    scheme: Annotated[str, Field(max_length=MAX_LABEL)] | None = Field(
        default=None, description="label of the scheme (default: column `scheme`, else the run's name)"
    )
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = Field(
        default=None, description="seed of the run (default: column `seed`, else 0)"
    )
    scores: tuple[str, ...] = Field(default=(), description="columns of scores (default: all with numbers)")
    falls: bool | None = Field(
        default=None,
        description="whether these scores get better by falling (default: by the name, as of a loss or an "
        "accuracy, else by the curves)",
    )
    tokens_per_example: Annotated[int, Field(ge=1, le=MAX_BATCH)] | None = Field(
        default=None, description="for curves against tokens: tokens of one example"
    )
    conditions: dict[str, Value] = Field(
        default={},
        description="what was measured: `workers`, `batch_size`, options of the scheme such as `period`, "
        "`schedule` of the learning rate and its `horizon` in steps (default: columns of these names)",
    )


class Curve(Settings):
    """Scores of one run against a worker's steps; inf where a score was not finite."""

    scheme: str = Field(description="label")
    seed: int = Field(description="seed of the run")
    under: dict[str, Value] = Field(description="conditions")
    steps: Column = Field(description="steps of a worker, the mean over workers, ascending")
    scores: dict[str, Column] = Field(description="a score for each step, `-` where there is none")

    def known(self, metric: str) -> dict[float, float]:
        """Step -> score of ``metric``, in order, where it is known."""
        pairs = zip(self.steps, self.scores.get(metric, ()), strict=False)
        return {step: score for step, score in pairs if step is not None and score is not None}


TRAINED: Final = "workload."
"""Beginning of conditions about a task; a scenario without a task says nothing of them."""
_NO_CONDITIONS: Final = frozenset(
    {"payload", "layer_profile", "timing_only", "curves", "batch_size", "accumulate"}
)


def conditions_of(scenario: Mapping[str, Any]) -> dict[str, dict[str, Value]]:
    """Label -> what decides a scheme's models, whatever the clock, in a resolved scenario, as plain data."""
    workload, conditions = scenario["workload"], {}
    size = workload["batch_size"]
    for ((name, options),) in (entry.items() for entry in scenario["schemes"]):
        task = {**workload, "optimizer": options.get("optimizer") or workload["optimizer"]}
        under = {
            "scheme": name,
            "workers": scenario["cluster"]["workers"],
            "batch_size": size * workload.get("accumulate", 1) if isinstance(size, int) else size,
            "evaluate.on": scenario["evaluate"]["on"],
            **{key: value for key, value in options.items() if key not in ("label", "optimizer")},
        }
        if not workload["timing_only"]:
            under |= {TRAINED + key: value for key, value in task.items() if key not in _NO_CONDITIONS}
        conditions[options["label"]] = {
            key: value if isinstance(value, int | float | str) else repr(value)
            for key, value in under.items()
        }
    return conditions
