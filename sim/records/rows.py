"""Runs as rows of ``summary.json``: each key is declared, written and read here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Final, NotRequired, cast

from pydantic import TypeAdapter
from typing_extensions import TypedDict

from ..config.units import format_seconds
from .carry.noise import NoisePoint
from .carry.score_error import ScoreSlices
from .intervals import finite
from .run import (
    Evaluation,
    Event,
    FaultCost,
    PaceRecord,
    Run,
    Source,
    Status,
    untimed,
)

_ALWAYS: Final = ("train_loss", "test_accuracy", "consensus_distance")


class Shares(TypedDict):
    """Seconds per worker; add up to the wall clock.

    ``idle``: after the first worker was done, where they do not keep step; absent where there is none.
    """

    compute: float
    communicate: float
    wait: float
    idle: NotRequired[float]
    down: NotRequired[float]


class MachineRow(TypedDict):
    """Machine of a worker, as in ``paceline.sim.records.run.Machine``."""

    host: str
    clock_error_s: float | None


class RowCounts(TypedDict):
    """Numbers of a run's rows in each table of the folder."""

    evaluations: int
    operations: int


class RowFacts(TypedDict):
    """Keys of the row of a run and of that of a scheme, which has the means over its runs.

    ``leaves_out``: costs that ``step_s`` does not count, as phrases; others: see ``Run`` and ``Pace``. Keys
    that are not required are absent in older folders.
    """

    scheme: str
    label: str
    source: Source
    wall_clock_s: float
    iterations: float
    time_s: Shares
    step_shares: NotRequired[list[float | None]]
    average_s: NotRequired[list[float | None]]
    leaves_out: NotRequired[list[str]]


class RunRow(RowFacts):
    """One run.

    ``final``: the last scores, None for a metric that the task lacks; ``steps_to_target``: at the evaluation
    that met it, None where none did; others: see ``RowFacts`` and ``Run``. Keys that are not required are
    absent in older folders, ``rows`` also in bundles.
    """

    bytes_sent: int
    seed: int
    reached_target: bool
    time_to_target_s: float | None
    steps_to_target: NotRequired[int | None]
    final: dict[str, float | None]
    status: Status
    message: NotRequired[str]
    digest: str
    machines: NotRequired[list[MachineRow]]
    hosts: NotRequired[dict[str, str]]
    exchanges: NotRequired[list[str]]
    bracket_s: NotRequired[list[float]]
    slices: NotRequired[ScoreSlices]
    steps_between: NotRequired[list[float]]
    engine: NotRequired[str]
    engine_reason: NotRequired[str]
    left_out: NotRequired[list[list[int]]]
    step_s: NotRequired[float | None]
    pace: NotRequired[PaceRecord]
    bytes_between: NotRequired[dict[str, dict[str, int]]]
    bytes_on_links: NotRequired[dict[str, int]]
    cost: NotRequired[float]
    cost_of_step: NotRequired[float | None]
    cost_to_target: NotRequired[float | None]
    gradients: NotRequired[list[NoisePoint]]
    faults: NotRequired[FaultCost]
    rows: NotRequired[RowCounts]


_RUN: Final = TypeAdapter(Run)
_NAMES: Final = {"between": "bytes_between", "on_links": "bytes_on_links"}
"""Fields of ``Run`` with another name in rows."""
_APART: Final[Any] = {"events": True, "evaluations": True, "iterates": True, "pace": {"bytes_sent"}}
"""Fields that are in tables, or nowhere."""


def row_of(run: Run) -> RunRow:
    """The row of a run: its fields that are not empty and in no table, and what follows from them."""
    last: Mapping[str, float | None] = run.evaluations[-1].metrics if run.evaluations else {}
    row = _RUN.dump_python(run, mode="json", exclude=_APART, exclude_defaults=True)
    row |= {new: row.pop(name) for name, new in _NAMES.items() if name in row}
    row["final"] = {name: finite(last.get(name)) for name in dict.fromkeys((*_ALWAYS, *last))}
    row["steps_to_target"] = None if run.met is None else run.met.step
    if (pace := run.pace) is not None:
        row |= {"step_s": pace.step_s, "step_shares": pace.shares, "average_s": pace.average_s}
        row["leaves_out"] = left_out_of([run])
    row["rows"] = RowCounts(evaluations=len(run.evaluations), operations=len(run.events))
    return cast(RunRow, row)


def run_of(row: RunRow, evaluations: Sequence[Evaluation], events: Sequence[Event]) -> Run:
    """The run of a row, inverse of ``row_of``."""
    known: Mapping[str, Any] = row
    names = {name: _NAMES.get(name, name) for name in Run.__annotations__}
    run = _RUN.validate_python(
        {name: known[key] for name, key in names.items() if key in known} | {"evaluations": ()}
    )
    return replace(run, evaluations=tuple(evaluations), events=tuple(events))


def left_out_of(group: Sequence[Run]) -> list[str]:
    """Costs that the time of a step of these runs does not count, as phrases."""
    phrases = []
    if idle_s := fmean([run.time_s.idle for run in group]):
        phrases.append(f"an idle end of {format_seconds(idle_s)}, after the first worker was through")
    if group[0].source == "simulated":
        phrases += untimed([name for run in group for name in run.exchanges or ()])
    return phrases


def mean_shares(group: Sequence[Run]) -> Shares:
    """Time shares of a worker, the mean over runs."""
    parts = {part: fmean([getattr(run.time_s, part) for run in group]) for part in Shares.__annotations__}
    return cast(Shares, {part: s for part, s in parts.items() if s or part not in ("idle", "down")})
