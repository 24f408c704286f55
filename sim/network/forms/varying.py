"""Links that change in time: traces, slow periods, outages."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from ...config.csv_tables import read_table
from ...config.limits import MAX_RATE
from ...config.problems import mistake
from ...config.settings import OneOf, Settings, read_beside
from ...config.units import (
    BoundedSeconds,
    BytesPerSecond,
    check_rate,
    parse_bandwidth,
    parse_duration,
    parse_rate,
)
from ...errors import InputError

MIN_PERIOD_S: Final = 1e-3
"""Seconds after which a bandwidth trace may begin again."""


class TraceStep(Settings):
    """From this time on, this bandwidth and this latency."""

    at: BoundedSeconds = Field(description="time on the run's clock")
    bandwidth: Annotated[
        BytesPerSecond, Field(ge=0, le=MAX_RATE), AfterValidator(lambda rate: rate and check_rate(rate))
    ] = Field(description="bandwidth until the next step; 0 Mbit/s: outage")
    latency: BoundedSeconds = Field(default=0.0, description="latency added until the next step")


class LinkTrace(Settings):
    """A piecewise constant bandwidth and latency."""

    file: str | None = Field(
        default=None,
        description="CSV with the columns time, bandwidth and perhaps latency; relative to the scenario's "
        "folder",
    )
    steps: tuple[TraceStep, ...] = Field(
        default=(), description="instead of a file: the steps, the first at 0 s"
    )
    period: BoundedSeconds | None = Field(
        default=None,
        description="time after which the table repeats (default: never, the last bandwidth stays)",
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        """Read the file once: the resolved scenario has its contents."""
        if not isinstance(data, Mapping) or not isinstance(data.get("file"), str) or data.get("steps"):
            return data
        return {**data, "steps": read_beside(info, data["file"], _trace_steps, "file")}

    @model_validator(mode="after")
    def _check(self) -> LinkTrace:
        if not self.steps:
            raise ValueError("give a file, or steps")
        if self.steps[0].at != 0:
            raise mistake("the first step has to be at 0 s", "steps", 0, "at")
        for number, (before, after) in enumerate(pairwise(self.steps)):
            if after.at <= before.at:
                raise mistake("is not later than the step before", "steps", number + 1, "at")
        if self.period is not None and self.period <= self.steps[-1].at:
            raise mistake(f"has to be longer than the last step's {self.steps[-1].at:g} s", "period")
        if self.period is not None and self.period < MIN_PERIOD_S:
            raise mistake(f"must be at least {MIN_PERIOD_S:g} s", "period")
        if not any(step.bandwidth for step in self.steps):
            raise mistake("one step at least needs a bandwidth above 0", "steps")
        return self

    @property
    def adds_latency(self) -> bool:
        """Whether any step adds to latencies."""
        return any(step.latency for step in self.steps)


def _trace_steps(path: Path) -> tuple[dict[str, str], ...]:
    table = read_table(path)
    table.refuse_others(("time", "bandwidth", "latency"))
    times = table.values("time", parse_duration)
    rates = table.values("bandwidth", lambda value: parse_rate(value) and parse_bandwidth(value))
    if not any(rates):
        raise InputError(f"{table.source}: bandwidth: one step at least needs one above 0")
    lines = [line for line, _ in table.rows]
    for line, before, at in zip(lines, [-1.0, *times], times, strict=False):
        if at <= before or (before < 0 < at):
            why = "is not later than the one before" if before >= 0 else "the first has to be 0 s"
            raise InputError(f"{table.source}:{line}: time: {why}")
    steps = [{"at": f"{at!r} s", "bandwidth": f"{rate!r} B/s"} for at, rate in zip(times, rates, strict=True)]
    if "latency" in table.names:
        for step, added_s in zip(steps, table.values("latency", parse_duration), strict=True):
            step["latency"] = f"{added_s!r} s"
    return tuple(steps)


class SlowPeriods(Settings):
    """A Markov chain in time: slow and fast periods of exponential length."""

    slow: Annotated[BoundedSeconds, Field(ge=1e-3)] = Field(description="mean length of a slow period")
    fast: Annotated[BoundedSeconds, Field(ge=1e-3)] = Field(
        description="mean length of a period at full speed"
    )
    factor: float = Field(ge=1e-6, lt=1, description="share of the nominal bandwidth in a slow period")


class Outage(Settings):
    """A time in which a link carries nothing."""

    at: BoundedSeconds = Field(description="start, on the run's clock")
    duration: Annotated[BoundedSeconds, Field(gt=0)] = Field(description="duration")


def _check_outages(outages: tuple[Outage, ...]) -> tuple[Outage, ...]:
    if not outages:
        raise ValueError("give one outage at least")
    for before, after in pairwise(outages):
        if after.at <= before.at + before.duration:
            raise mistake(f"an outage at {after.at:g} s is not later than the end of the one before")
    return outages


class Variation(OneOf):
    """Variation of links in time: a trace, markov or outages."""

    alternatives: ClassVar[tuple[str, ...]] = ("trace", "markov", "outages")

    links: str = Field(description="names as in `paceline check --why`, with * and ?: 'us->*', 'host? up'")
    trace: LinkTrace | None = Field(default=None, description="from a table")
    markov: SlowPeriods | None = Field(default=None, description="random periods, independent per link")
    outages: Annotated[tuple[Outage, ...], AfterValidator(_check_outages)] | None = Field(
        default=None, description="outages, in order; messages wait, then continue"
    )
