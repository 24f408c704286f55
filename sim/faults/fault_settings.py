"""Faults, checkpoints and heartbeats, as written in a scenario."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, PlainSerializer, ValidationInfo, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue

from ..config.csv_tables import read_table
from ..config.limits import MAX_FACTOR, MAX_STRAGGLERS
from ..config.problems import mistake
from ..config.settings import Settings, keyed, read_beside
from ..config.units import BoundedSeconds, Bytes, Steps, format_seconds, parse_duration, parse_steps, reader
from ..errors import InputError, quote

Policy = Literal["wait", "restart", "shrink", "skip"]
"""What all do when a worker fails.

``wait``: stop until everybody is back, and repeat the step in flight; who returns has its state of the
beginning of that step. ``restart``: go back to the last complete checkpoint, once everybody is back.
``shrink``: go on among the living; who returns is healed by one of them. ``skip``: averages with a quorum or
a deadline leave out who fails, which begins its computation anew when it is back.
"""

How = Literal["kill", "stop", "cut"]
"""A process ends; it is stopped and continued; or a worker or site is cut off, and computes on.

Who is stopped or cut off keeps its state: where all wait, nobody repeats anything.
"""


class Fault(Settings):
    """Workers that fail and return: ``at`` a time, at the beginning of a step, or at random.

    Of ``workers`` each fails by itself; of ``hosts`` and ``sites`` each fails as a whole.
    """

    other_forms: ClassVar[tuple[JsonSchemaValue, ...]] = (keyed("trace", {"type": "string"}),)

    workers: tuple[int, ...] | None = Field(
        default=None,
        min_length=1,
        description="ranks (default: all workers, without hosts and sites)",
    )
    hosts: tuple[int, ...] | None = Field(
        default=None, min_length=1, description="hosts by number, of `network.host.gpus` workers each"
    )
    sites: tuple[str, ...] | None = Field(
        default=None, min_length=1, description="sites, in place of workers"
    )
    at: BoundedSeconds | None = Field(default=None, description="time of the only fault")
    at_step: Steps | None = Field(default=None, description="steps before the only fault")
    mean_time_between: Annotated[BoundedSeconds, Field(gt=0)] | None = Field(
        default=None, description="mean time from a return to the next fault, which is random"
    )
    shape: float = Field(
        default=1.0,
        ge=0.01,
        le=MAX_FACTOR,
        description="of the Weibull distribution of these times; 1: exponential, below 1: most of them early",
    )
    how: How = Field(
        default="kill",
        description="kill: a process ends; stop: it is paused; cut: it is cut off, and computes on",
    )
    back_after: BoundedSeconds = Field(description="time from a fault to the return")
    detect: BoundedSeconds = Field(
        default=0.0,
        description="time until the others notice: 0 for a killed process; the failure time-out for a dead "
        "host or a cut link",
    )
    warning: BoundedSeconds = Field(
        default=0.0, description="time from its notice; a checkpoint that can be written in it is written"
    )

    @model_validator(mode="after")
    def _check(self) -> Fault:
        when = [key for key in ("at", "at_step", "mean_time_between") if getattr(self, key) is not None]
        if not when:
            raise ValueError("say when: at, at_step or mean_time_between")
        if len(when) > 1:
            raise mistake(f"'{when[0]}' says when already; keep to one of them", when[1])
        if self.shape != 1 and self.mean_time_between is None:
            raise mistake("goes with mean_time_between", "shape")
        who = [key for key in _WHO if getattr(self, key) is not None]
        if len(who) > 1:
            raise mistake(f"'{who[0]}' says who already; leave one of them out", who[1])
        if who and len(set(named := getattr(self, who[0]))) < len(named):
            raise mistake("names one twice", who[0])
        return self


_WHO = ("workers", "hosts", "sites")
_LINKS = (
    "a cut link is network.variation: [{links: 'us->eu', outages: [...]}], where messages wait; if workers "
    "are given up meanwhile, it is a fault of theirs, whose 'detect' is the time-out"
)


def read_faults(data: Any, info: ValidationInfo) -> Any:
    """Faults as written, and after them those of their traces, which are read once."""
    if not isinstance(data, tuple | list):
        return data
    plain: list[Any] = []
    rows: list[Any] = []
    for number, fault in enumerate(data):
        match fault:
            case {"trace": str(name)} if len(fault) == 1:
                rows += read_beside(info, name, partial(_rows, info.data), number, "trace")
            case {"trace": _}:
                raise mistake("must be the name of a file; leave the other keys out", number, "trace")
            case {"links": _}:
                raise mistake(_LINKS, number, "links")
            case _:
                plain.append(fault)
    return (*plain, *rows)


def _rows(known: Mapping[str, Any], path: Path) -> list[Any]:
    table, ranks = read_table(path), {str(rank): rank for rank in range(known.get("workers", 0))}
    if len(table.rows) > MAX_STRAGGLERS:
        raise InputError(f"{path}: has {len(table.rows)} rows; a scenario has at most {MAX_STRAGGLERS}")

    def rank_of(value: object) -> float:
        if str(value) not in ranks:
            raise InputError(f"must be a number from 0 to {len(ranks) - 1}, not {quote(value)}")
        return ranks[str(value)]

    who = "host" if "host" in table.names else "worker"
    times = ["at", "back_after", *(name for name in ("detect", "warning") if name in table.names)]
    table.refuse_others((who, "at", "back_after", "detect", "warning"))
    columns = [[f"{each!r} s" for each in table.values(name, parse_duration)] for name in times]
    return [
        {f"{who}s": (int(rank),), **dict(zip(times, row, strict=True))}
        for rank, *row in zip(table.values(who, rank_of), *columns, strict=True)
    ]


def _read_every(value: object) -> object:
    """Steps, as a whole number; a time, as a float."""
    if isinstance(value, str) and value.split()[-1:] in (["step"], ["steps"]):
        return parse_steps(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise InputError(f"'{value}' has no unit; write for example '100 steps' or '10 min'")
    return parse_duration(value)


Every = Annotated[
    int | float,
    reader(_read_every),
    PlainSerializer(
        lambda n: f"{n} steps" if isinstance(n, int) else format_seconds(n, 17),
        return_type=str,
        when_used="json",
    ),
    WithJsonSchema({"type": "string", "examples": ["100 steps", "10 min"]}),
]
"""A number of steps (int), or seconds (float)."""


class Checkpoint(Settings):
    """Checkpoints of all workers."""

    every: Annotated[Every, Field(gt=0)] = Field(
        description="steps, or time of work, from one checkpoint to the next"
    )
    write: BoundedSeconds = Field(default=0.0, description="time to write one")
    restart: BoundedSeconds = Field(
        default=0.0, description="time to start from one, after everybody is back"
    )
    blocking: bool = Field(default=True, description="whether the workers stop while one is written")


# --- heartbeats beside averages -----------------------------------------------------------------

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
