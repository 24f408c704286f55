"""Tests marked ``lab`` run where a lab can."""

from __future__ import annotations

import sys
from functools import cache

import pytest

from paceline.realrun.lab import Lab
from paceline.sim.errors import InputError
from paceline.sim.network.network import Link, Network


@cache
def _missing() -> str | None:
    """Why this machine can make no lab of one host; None: it can."""
    if sys.platform != "linux":
        return f"no lab on {sys.platform}: it needs Linux"
    nowhere = Network(("here",), (0,), (Link("unused", 1.0),), ((0.0,),), ((1.0,),))
    try:
        with Lab(nowhere):
            return None
    except InputError as error:
        return str(error)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot emulate, before any fixture starts a lab."""
    if item.get_closest_marker("lab") and (reason := _missing()):
        pytest.skip(reason)
