"""Runs as rows of ``summary.json``: each key is declared, written and read here."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final, NotRequired, cast

from typing_extensions import TypedDict

from ..config.units import format_seconds
from .gradients.noise import NoisePoint
from .intervals import finite
from .run import (
    Evaluation,
    Event,
    FaultCost,
    Machine,
    Pace,
    PaceRecord,
    Run,
    Source,
    Status,
    TimeShare,
    untimed,
)

_ALWAYS: Final = ("train_loss", "test_accuracy", "consensus_distance")
_SAME: Final = (
    "scheme", "label", "seed", "source", "status", "reached_target", "time_to_target_s", "wall_clock_s",
    "iterations", "bytes_sent", "digest",
)  # fmt: skip
"""Fields of a run that its row has as they are."""


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


class RunRow(TypedDict):
    """One run.

    ``final``: the last scores, None for a metric that the task lacks; ``leaves_out``: costs that ``step_s``
    does not count, as phrases; ``steps_to_target``: at the evaluation that met it, None where none did;
    others: see ``Run`` and ``Pace``. Keys that are not required are absent in older folders, ``rows`` also in
    bundles.
    """

    scheme: str
    label: str
    seed: int
    source: Source
    reached_target: bool
    time_to_target_s: float | None
    steps_to_target: NotRequired[int | None]
    wall_clock_s: float
    iterations: float
    final: dict[str, float | None]
    bytes_sent: int
    time_s: Shares
    status: Status
    message: NotRequired[str]
    digest: str
    machines: NotRequired[list[MachineRow]]
    hosts: NotRequired[dict[str, str]]
    exchanges: NotRequired[list[str]]
    bracket_s: NotRequired[list[float]]
    steps_between: NotRequired[list[float]]
    engine: NotRequired[str]
    engine_reason: NotRequired[str]
    left_out: NotRequired[list[list[int]]]
    step_s: NotRequired[float | None]
    step_shares: NotRequired[list[float | None]]
    average_s: NotRequired[list[float | None]]
    leaves_out: NotRequired[list[str]]
    pace: NotRequired[PaceRecord]
    bytes_between: NotRequired[dict[str, dict[str, int]]]
    bytes_on_links: NotRequired[dict[str, int]]
    cost: NotRequired[float]
    cost_of_step: NotRequired[float | None]
    cost_to_target: NotRequired[float | None]
    gradients: NotRequired[list[NoisePoint]]
    faults: NotRequired[FaultCost]
    rows: NotRequired[RowCounts]


def row_of(run: Run) -> RunRow:
    """The row of a run."""
    last: Mapping[str, float | None] = run.evaluations[-1].metrics if run.evaluations else {}
    names = dict.fromkeys((*_ALWAYS, *last))
    row = RunRow(
        scheme=run.scheme,
        label=run.label,
        seed=run.seed,
        source=run.source,
        reached_target=run.reached_target,
        time_to_target_s=run.time_to_target_s,
        steps_to_target=None if run.met is None else run.met.step,
        wall_clock_s=run.wall_clock_s,
        iterations=run.iterations,
        final={name: finite(last.get(name)) for name in names},
        bytes_sent=run.bytes_sent,
        time_s=mean_shares([run]),
        status=run.status,
        digest=run.digest,
    )
    if run.pace is not None:
        row |= {
            "step_s": run.pace.step_s, "step_shares": run.pace.shares, "average_s": run.pace.average_s,
            "leaves_out": left_out_of([run]), "pace": run.pace.record(),
        }  # fmt: skip
    optional: dict[str, Any] = {  # those that are None are left out
        "message": run.message or None,
        "machines": [MachineRow(host=m.host, clock_error_s=m.clock_error_s) for m in run.machines] or None,
        "hosts": dict(run.hosts) or None,
        "exchanges": None if run.exchanges is None else list(run.exchanges),
        "bracket_s": None if run.bracket_s is None else list(run.bracket_s),
        "steps_between": None if run.steps_between is None else list(run.steps_between),
        "engine": run.engine or None,
        "engine_reason": run.engine_reason or None,
        "left_out": [list(each) for each in run.left_out] or None,
        "bytes_between": {name: dict(row) for name, row in run.between.items()} or None,
        "bytes_on_links": dict(run.on_links) or None,
        "gradients": list(run.gradients) or None,
        "faults": run.faults,
    }
    row |= cast(RunRow, {key: value for key, value in optional.items() if value is not None})
    row["rows"] = RowCounts(evaluations=len(run.evaluations), operations=len(run.events))
    return row


def run_of(row: RunRow, evaluations: Sequence[Evaluation], events: Sequence[Event]) -> Run:
    """The run of a row, inverse of ``row_of``."""
    known: Mapping[str, Any] = row
    return Run(
        **{name: known[name] for name in _SAME},
        time_s=TimeShare(**row["time_s"]),
        evaluations=tuple(evaluations),
        events=tuple(events),
        message=row.get("message", ""),
        machines=tuple(Machine(**each) for each in row.get("machines", [])),
        hosts=row.get("hosts", {}),
        exchanges=tuple(row["exchanges"]) if "exchanges" in row else None,
        bracket_s=(row["bracket_s"][0], row["bracket_s"][1]) if "bracket_s" in row else None,
        steps_between=(row["steps_between"][0], row["steps_between"][1]) if "steps_between" in row else None,
        engine=row.get("engine", ""),
        engine_reason=row.get("engine_reason", ""),
        left_out=tuple((late, of) for late, of in row.get("left_out", ())),
        pace=Pace.read(row["pace"]) if "pace" in row else None,
        between=row.get("bytes_between", {}),
        on_links=row.get("bytes_on_links", {}),
        gradients=tuple(row.get("gradients", ())),
        faults=row.get("faults"),
    )


def left_out_of(group: Sequence[Run]) -> list[str]:
    """Costs that the time of a step of these runs does not count, as phrases."""
    phrases = []
    if idle_s := mean([run.time_s.idle for run in group]):
        phrases.append(f"an idle end of {format_seconds(idle_s)}, after the first worker was through")
    if group[0].source == "simulated":
        phrases += untimed([name for run in group for name in run.exchanges or ()])
    return phrases


def mean_shares(group: Sequence[Run]) -> Shares:
    """Time shares of a worker, the mean over runs."""
    parts = {part: mean([getattr(run.time_s, part) for run in group]) for part in Shares.__annotations__}
    return cast(Shares, {part: s for part, s in parts.items() if s or part not in ("idle", "down")})


def mean(values: Sequence[float]) -> float:
    """The mean of a few numbers."""
    return math.fsum(values) / len(values)
