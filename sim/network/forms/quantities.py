"""Rates of links and numbers of workers, as settings."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from ...config.limits import MAX_RATE, MAX_WORKERS, MIN_RATE
from ...config.problems import mistake
from ...config.units import BytesPerSecond


def check_rate(value: float) -> float:
    """Check the bytes per second: too few of them are a mistake."""
    if value < MIN_RATE:
        raise mistake(f"must be at least 1 bit/s, not {value:g} B/s")
    return value


Rate = Annotated[BytesPerSecond, Field(gt=0, le=MAX_RATE), AfterValidator(check_rate)]
Count = Annotated[int, Field(ge=1, le=MAX_WORKERS)]
