"""Durations of computations, as written in a scenario, and how they grow with the batch."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field, ValidationInfo, model_validator
from pydantic.json_schema import JsonSchemaValue

from .. import seeds
from ..config.limits import MAX_BATCH, MAX_FACTOR, MAX_TIME_S
from ..config.problems import mistake, place_errors
from ..config.settings import OneOf, Settings, read_beside
from ..config.units import BoundedSeconds, BytesPerSecond, FlopsPerSecond, Steps
from ..config.user_code import call as user_code
from ..jitter import Jitter
from ..seeds import Floats


@dataclass(frozen=True)
class BatchLaw:
    """``max(floor_s, fixed_s + per_example_s * batch_size)``."""

    floor_s: float
    fixed_s: float
    per_example_s: float

    def seconds(self, batch_sizes: Floats) -> Floats:
        """Durations [m] at batch sizes [m]."""
        return np.maximum(self.floor_s, self.fixed_s + self.per_example_s * batch_sizes)


def fit_batch_law(batch_sizes: Sequence[int], times_s: Sequence[float]) -> BatchLaw:
    """Fit the law to positive seconds [m] at ascending batch sizes [m], m >= 1, robust to one disturbed time.

    Least sum of relative errors (differences of logarithms) over every line through two of the measurements,
    with every floor through one; times neither fall with the batch nor are negative.
    """
    sizes, times = np.array(batch_sizes, dtype=np.float64), np.array(times_s)
    rising = [
        (times[i] - slope * sizes[i], slope)
        for i, j in itertools.combinations(range(len(sizes)), 2)
        if (slope := (times[j] - times[i]) / (sizes[j] - sizes[i])) > 0
    ]
    lines = [(time, 0.0) for time in times] + rising
    laws = [
        BatchLaw(float(floor), float(fixed), float(slope))
        for floor, (fixed, slope) in itertools.product([0.0, *times], lines)
        if floor > 0 or fixed >= 0
    ]
    errors = [np.abs(np.log(law.seconds(sizes) / times)).sum() for law in laws]
    return laws[int(np.argmin(errors))]


def seconds_at(batch_size: float, batch_sizes: Sequence[int], times_s: Sequence[float]) -> float:
    """Seconds of a gradient at ``batch_size``, by measured ones, extrapolated beyond them."""
    law = fit_batch_law(batch_sizes, times_s)
    sizes = np.array([*batch_sizes, batch_size], dtype=np.float64)
    *known, here = law.seconds(sizes)
    factors = np.log(np.array(times_s) / np.array(known))
    factor = np.interp(np.log(batch_size), np.log(sizes[:-1]), factors)
    return float(here * np.exp(factor))


def user_duration_s(path: str, seed: int, worker: int, index: int) -> float:
    """Seconds of gradient ``index`` of ``worker`` by the user's function ``path(worker, index, random)``;
    ``InputError`` if that fails or returns no duration.
    """
    random = seeds.generator(seed, worker, "own compute", index)
    arguments = {"worker": worker, "index": index, "random": random}
    return user_code.call(path, arguments, _read_duration, f"seconds: a number from 0 to {MAX_TIME_S:g}")


def _read_duration(value: Any) -> float:
    if isinstance(value, bool | str | bytes):
        raise TypeError
    seconds = float(value)
    if not 0 <= seconds <= MAX_TIME_S:
        raise ValueError
    return seconds


_WHEN = ("probability", "markov", "at")


class Trace(Settings):
    """Durations measured elsewhere; every computation draws one of them."""

    file: str | None = Field(
        default=None,
        description="CSV, or the JSON trace of a torch profiler; relative to the scenario's folder",
    )
    column: str | None = Field(default=None, description="CSV: column (default: the only one)")
    event: str = Field(
        default="ProfilerStep", description="profiler: name of the events; a '#number' behind it is ignored"
    )
    durations: tuple[Annotated[BoundedSeconds, Field(gt=0)], ...] = Field(
        default=(), description="instead of a file: the durations"
    )
    attached: str | None = Field(
        default=None,
        description="instead of a file: a record of `paceline.attach`, with durations for each worker",
    )
    workers: tuple[tuple[Annotated[BoundedSeconds, Field(gt=0)], ...], ...] = Field(
        default=(), description="instead of that: a list of durations for each worker"
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        """Read a file once: the resolved scenario has its contents."""
        if not isinstance(data, Mapping) or data.get("durations") or data.get("workers"):
            return data
        if isinstance(data.get("attached"), str):
            from .attached import load

            record = read_beside(info, data["attached"], load, "attached")
            return {**data, "workers": tuple(map(_as_text, record.gradients_s()))}
        column, event = data.get("column"), data.get("event", "ProfilerStep")
        if not isinstance(column, str | None) or not isinstance(event, str):
            return data
        if not isinstance(data.get("file"), str):
            return data
        from .traces import read_durations

        seconds = read_beside(info, data["file"], lambda path: read_durations(path, column, event), "file")
        return {**data, "durations": _as_text(seconds)}

    @model_validator(mode="after")
    def _check(self) -> Trace:
        if bool(self.durations) == bool(self.workers):
            raise ValueError("give one of file, durations, attached, workers")
        if not all(self.workers):
            raise mistake("a worker needs at least one duration", "workers")
        return self


def _as_text(seconds: Iterable[float]) -> tuple[str, ...]:
    return tuple(f"{value!r} s" for value in seconds)


class MeasuredCompute(Settings):
    """One gradient, timed on this device; at several batch sizes, to predict it at others too."""

    other_forms: ClassVar[tuple[JsonSchemaValue, ...]] = ({"const": True},)

    batch_sizes: tuple[Annotated[int, Field(ge=1, le=MAX_BATCH)], ...] = Field(
        default=(), description="batch sizes to measure, ascending (default: the scenario's)"
    )
    times: tuple[Annotated[BoundedSeconds, Field(gt=0)], ...] = Field(
        default=(), description="written by Paceline: measured time per batch size"
    )
    device: str | None = Field(default=None, description="written by Paceline: measured device")

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        return {} if data is True else data

    @model_validator(mode="after")
    def _check(self) -> MeasuredCompute:
        if any(a >= b for a, b in pairwise(self.batch_sizes)):
            raise mistake("write them in ascending order, each once", "batch_sizes")
        if self.times and len(self.times) != len(self.batch_sizes):
            text = f"{len(self.times)} times for {len(self.batch_sizes)} batch sizes; give one for each"
            raise mistake(text, "times")
        return self

    def known_at(self, batch_size: int) -> bool:
        """Whether the duration of a gradient of this batch size is measured or can be predicted."""
        return len(self.batch_sizes) != 1 or self.batch_sizes == (batch_size,)

    def seconds(self, batch_size: float) -> float:
        """Duration of a gradient; needs ``times``."""
        return seconds_at(batch_size, self.batch_sizes, self.times)

    def outside(self, batch_size: int) -> str:
        """A sentence where a batch size is outside the measured range, else ""."""
        if not self.times or self.batch_sizes[0] <= batch_size <= self.batch_sizes[-1]:
            return ""
        low, high = self.batch_sizes[0], self.batch_sizes[-1]
        return f"the time of a gradient at batch size {batch_size} is extrapolated from {low} to {high}"


class Encoding(Settings):
    """Speed of encoding and decoding on a worker, by codec; rounding to 16 bits takes no time."""

    qsgd: Annotated[BytesPerSecond, Field(gt=0)] | None = Field(
        default=None,
        description="rate in bytes of the plain value (default: takes no time)",
    )
    top_k: Annotated[BytesPerSecond, Field(gt=0)] | None = Field(
        default=None,
        description="rate; decoding counts the received elements only (default: takes no time)",
    )


class Compute(OneOf):
    """Duration of one gradient: a ``time``, a ``speed``, a ``trace``, ``measured`` here, or a ``model``."""

    alternatives: ClassVar[tuple[str, ...]] = ("time", "speed", "trace", "measured", "model")
    other_forms: ClassVar[tuple[JsonSchemaValue, ...]] = ({"const": "measured"},)

    time: BoundedSeconds | None = Field(default=None, description="mean duration of one gradient")
    speed: FlopsPerSecond | None = Field(
        default=None,
        description="instead of a time: divisor of the operations of `workload.layer_profile`, the peak of "
        "a worker's device times its utilisation; with `cluster.island` the peak of one GPU",
    )
    jitter: Jitter | None = Field(default=None, description="variation of that time (default: constant)")
    spread: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="permanent differences between workers: standard deviation over mean of lognormal "
        "factors, drawn from the seed (default: none)",
    )
    trace: Trace | None = Field(default=None, description="instead of a time: recorded durations")
    measured: MeasuredCompute | None = Field(
        default=None,
        description="instead of a time: measure a gradient on this device (`true`, or batch sizes); in "
        "short `compute: measured`",
    )
    model: str | None = Field(
        default=None,
        description="instead of a time: your function of (worker, index, random), as package.module:name",
    )

    encoding: Encoding = Field(
        default=Encoding(), description="speed of encoding and decoding for `compression`"
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        return {"measured": True} if data == "measured" else data

    @model_validator(mode="after")
    def _check_source(self) -> Compute:
        if self.jitter is not None and (self.trace is not None or self.model is not None):
            source = "trace" if self.trace is not None else "model"
            raise mistake(f"a {source} varies by itself; leave one of them out", "jitter")
        if self.spread is not None and (self.trace is not None or self.model is not None):
            raise mistake("goes with a time, or with measured; leave it out", "spread")
        if self.model is not None:
            with place_errors("model"):
                user_duration_s(self.model, 0, 0, 0)
        return self

    def at(self, batch_size: float, flops: float | None = None) -> Compute:
        """These settings with the measured, or predicted, time for this batch size.

        ``flops``: operations of a forward and backward pass for one example, where known.
        """
        if self.speed is not None and flops is not None:
            return self.model_copy(update={"time": batch_size * flops / self.speed, "speed": None})
        if self.measured is None or not self.measured.times:
            return self
        return self.model_copy(update={"time": self.measured.seconds(batch_size), "measured": None})


class Markov(Settings):
    """Slow and fast periods of a worker, as a Markov chain over its computations."""

    slow: Annotated[Steps, Field(ge=2)] = Field(description="mean length of a slow period, in computations")
    fast: Annotated[Steps, Field(ge=2)] = Field(description="mean length of a fast one")


class Straggler(Settings):
    """A straggler: its workers, its slow periods, and its slowdown.

    Workers: ``workers``. Periods: ``probability``, ``markov`` or ``at``; else permanent. Effect:
    ``slowdown``, ``pause`` or both; or ``crash``.
    """

    workers: tuple[int, ...] | None = Field(
        default=None, min_length=1, description="ranks (default: all workers)"
    )
    probability: float | None = Field(
        default=None, ge=0, le=1, description="chance that a computation begins a slow period"
    )
    markov: Markov | None = Field(default=None, description="slow and fast periods of random lengths")
    at: Steps | None = Field(default=None, description="computations before the slow period")
    duration: Annotated[Steps, Field(ge=1)] = Field(
        default=1, description="with probability or at: length of a slow period, in computations"
    )
    slowdown: float | None = Field(default=None, ge=1, le=MAX_FACTOR, description="factor on the duration")
    pause: BoundedSeconds | None = Field(
        default=None, description="time added to the duration, after factors"
    )
    crash: Literal[True] | None = Field(
        default=None, description="with workers and at: the workers die at that computation"
    )

    @property
    def always(self) -> bool:
        """Whether it holds for every computation of its workers."""
        return self.probability is None and self.markov is None and self.at is None

    @model_validator(mode="after")
    def _check(self) -> Straggler:
        when = [key for key in _WHEN if getattr(self, key) is not None]
        if len(when) > 1:
            raise mistake(f"'{when[0]}' says when already; keep to one of {', '.join(_WHEN)}", when[1])
        if not when and self.workers is None:
            raise ValueError(f"say who is slow (workers) or when ({', '.join(_WHEN)})")
        if self.duration != 1 and self.probability is None and self.at is None:
            raise mistake("goes with probability or at", "duration")
        if self.crash and (self.slowdown is not None or self.pause is not None or self.duration != 1):
            raise mistake("a crash takes no slowdown, pause or duration: leave them out", "crash")
        if self.crash and (self.workers is None or self.at is None):
            raise mistake("say who (workers) and after how many computations (at)", "crash")
        if self.slowdown is None and self.pause is None and not self.crash:
            raise ValueError("say by how much: slowdown, pause or both; or crash")
        return self
