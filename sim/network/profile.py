"""Profiles: fitted correction factors of one kind of cluster, each with its measurements.

The scenario has nominal numbers, the default factors are neutral, and a profile holds fitted ones: three
separate things. ``paceline calibrate`` writes profiles; a prediction that uses one reports where it left
the measured range of sizes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import numpy as np
from pydantic import Field, ValidationInfo, model_validator

from .. import seeds
from ..config import yaml_file
from ..config.limits import MAX_TIME_S, MAX_WORKERS
from ..config.problems import mistake
from ..config.settings import Settings, read_beside
from ..config.yaml_file import validate_document
from ..errors import InputError, quote
from .network_settings import QueueName
from .transport import TransferModel

PROFILE_VERSION: Final = 2

_EFFICIENCIES: Final = (0.5, 1.0)
"""Bounds of a drawn efficiency; the other factors only cannot be negative."""

FACTORS: Final[Mapping[str, str]] = {
    "overhead_s": "s",
    "added_latency_s": "s",
    "efficiency": "of the nominal bandwidth",
    "buffer_bytes": "bytes",
    "copy_s_per_byte": "s/byte",
    "resume_s": "s",
    "late_s": "s",
}
"""Fields of ``TransferModel`` that a profile sets, and their units."""


MAX_VALUE: Final = 1e12
"""Upper limit of a factor: bytes have the largest numbers of all units."""


class Factor(Settings):
    """One number, how sure it is, and where it is from."""

    value: float = Field(ge=0, le=MAX_VALUE)
    low: float = Field(description="lower end of the 95 % interval")
    high: float = Field(description="upper end of it")
    unit: str
    measurements: tuple[str, ...] = Field(min_length=1, description="what it was fitted to, or read from")

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.low <= self.value <= self.high:
            raise mistake(f"{self.value:g} is not between low and high")
        return self


class HostKind(Settings):
    """The hosts that the factors hold for: a profile does not describe another kind of hosts or transport."""

    kind: Literal["lab", "cluster"]
    tuning: str = Field(default="", description="of a lab's hosts")
    queue: Literal[QueueName, ""] = Field(default="", description="discipline of a lab's links")
    transport: Literal["gloo"] = "gloo"

    def __str__(self) -> str:
        hosts = f" with {self.tuning} hosts" if self.tuning else ""
        queues = f" and {self.queue} queues" if self.kind == "lab" else ""
        return f"{self.kind}{hosts}{queues} over {self.transport}"


class MeasuredRange(Settings):
    """The range in which the factors were measured."""

    smallest_bytes: int = Field(ge=0)
    largest_bytes: int = Field(ge=0, description="of one message")
    in_flight: int = Field(ge=1, description="messages under way at one host at the same time")


class Profile(Settings):
    """Fitted factors, and their range of validity."""

    version: int
    made: str = Field(description="when the last of the measurements was made")
    machine: str
    software: str
    hosts: HostKind
    workers: int = Field(ge=1, le=MAX_WORKERS)
    factors: dict[str, Factor]
    covariance: dict[str, tuple[float, ...]] = Field(
        description="of the factors that were fitted together: a row for each, columns in the same order"
    )
    range: MeasuredRange
    residual_pct: float = Field(ge=0, description="median absolute error of the fitted durations")
    lateness_s: tuple[Annotated[float, Field(ge=-MAX_TIME_S, le=MAX_TIME_S)], ...] = Field(
        min_length=1, description="as measured: from when a gradient is due until the next operation starts"
    )
    unevenness_s: tuple[Annotated[float, Field(ge=-MAX_TIME_S, le=MAX_TIME_S)], ...] = Field(
        min_length=1,
        description="equally likely values: by how much a small exchange differs from its median",
    )
    uneven_s: tuple[Annotated[float, Field(ge=-MAX_TIME_S, le=MAX_TIME_S)], ...] = Field(
        default=(),
        description="equally likely values: how much longer hosts take for a message than for another, so "
        "that it gets less of a link that both share; absent: shares are even",
    )
    uneven_s_per_byte: tuple[Annotated[float, Field(ge=-1, le=1)], ...] = Field(
        default=(), description="equally likely values: the same for each of its bytes, in addition"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name, factor in self.factors.items():
            if name not in FACTORS:
                raise mistake(
                    f"there is no factor of this name; choose from: {', '.join(FACTORS)}", "factors", name
                )
            if factor.unit != FACTORS[name]:
                raise mistake(f"must be {quote(FACTORS[name])}", "factors", name, "unit")
        missing = [name for name in FACTORS if name not in self.factors]
        if missing:
            raise mistake(f"the factor {missing[0]} is missing", "factors")
        for name, row in self.covariance.items():
            if name not in FACTORS:
                raise mistake(
                    f"there is no factor {name}; choose from: {', '.join(FACTORS)}", "covariance", name
                )
            if len(row) != len(self.covariance):
                raise mistake(f"{len(row)} numbers for {len(self.covariance)} factors", "covariance", name)
        if not self.factors["efficiency"].value > 0:
            raise mistake("an efficiency of nothing carries nothing", "factors", "efficiency")
        return self

    @model_validator(mode="before")
    @classmethod
    def _read_file(cls, data: Any, info: ValidationInfo) -> Any:
        """Read the file, relative to the scenario's folder; a resolved scenario has its contents instead."""
        if not isinstance(data, str):
            return data
        return read_beside(info, data, load).model_dump()

    def transfer(self, model: TransferModel) -> TransferModel:
        """Apply these factors and gloo's rules to ``model``; its collectives are gloo's, too."""
        values: dict[str, Any] = {name: self.factors[name].value for name in FACTORS}
        return replace(
            model,
            announcement=1.0,
            streams=True,
            wake_up_delays_s=self.lateness_s,
            resume_jitter_s=self.unevenness_s,
            uneven_s=self.uneven_s,
            uneven_s_per_byte=self.uneven_s_per_byte,
            **values,
        )

    def drawn(self, seed: int) -> Profile:
        """Draw an equally plausible profile: its factors vary within the uncertainty of the measurements.

        Factors fitted together are jointly normal (the linearised fit), clipped to possible values. A
        forecast whose runs each have their own profile shows its error for that reason.
        """
        names = list(self.covariance)
        values, vectors = np.linalg.eigh(np.array([self.covariance[name] for name in names]))
        z = seeds.normals(seed, seeds.SHARED, "factors", 0)[: len(names)]
        off = vectors @ (np.sqrt(np.maximum(values, 0.0)) * z)
        drawn = dict(self.factors)
        for name, by in zip(names, off.tolist(), strict=True):
            least, most = _EFFICIENCIES if name == "efficiency" else (0.0, float("inf"))
            value = min(max(self.factors[name].value + by, least), most)
            known = drawn[name]
            low, high = min(known.low, value), max(known.high, value)
            drawn[name] = known.model_copy(update={"value": value, "low": low, "high": high})
        return self.model_copy(update={"factors": drawn})


@dataclass
class MessageRange:
    """Range of a prediction's messages: sizes, and number at one host at the same time."""

    smallest_bytes: float = float("inf")
    largest_bytes: float = 0.0
    in_flight: int = 0

    def outside(self, measured: MeasuredRange) -> tuple[str, ...]:
        """Sentences for every way in which this leaves the measured range."""
        low, high, most = measured.smallest_bytes, measured.largest_bytes, measured.in_flight
        warnings = []
        if self.largest_bytes > high:
            warnings.append(f"messages of up to {self.largest_bytes:.0f} bytes, at most {high} were measured")
        if self.smallest_bytes < low:
            warnings.append(f"messages of {self.smallest_bytes:.0f} bytes, at least {low} were measured")
        if self.in_flight > most:
            warnings.append(f"{self.in_flight} messages at one host at a time, at most {most} were measured")
        return tuple(warnings)


def load(path: Path) -> Profile:
    """Read a profile; ``InputError`` if unreadable, damaged or of another version."""
    document = yaml_file.parse(yaml_file.read_text(path), str(path))
    data = document.value
    if not isinstance(data, dict) or not {"version", "factors"} <= data.keys():
        raise InputError(f"{path}: is no profile of 'paceline calibrate': it has no version, or no factors")
    if data["version"] != PROFILE_VERSION:
        raise InputError(
            f"{path}: has version {data['version']!r}, this program reads {PROFILE_VERSION}; calibrate again"
        )
    return validate_document(Profile, data, str(path), document.place)


def dump(profile: Profile) -> str:
    """Profile as YAML; ``load`` reads an equal one."""
    return yaml_file.write(profile.model_dump(mode="json"))


def check_hosts(profile: Profile, wanted: HostKind, source: str) -> None:
    """Raise ``InputError`` if a profile describes other hosts than the ``wanted`` ones."""
    if profile.hosts != wanted:
        raise InputError(
            f"{source}: was measured on a {profile.hosts}, this is a {wanted}; probe and calibrate there"
        )
