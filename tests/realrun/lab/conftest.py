"""Tests marked ``lab`` run where a lab can."""

from __future__ import annotations

from functools import cache

import pytest

from paceline.realrun.lab import available

_missing = cache(available)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what this machine cannot emulate, before any fixture starts a lab."""
    if item.get_closest_marker("lab") and (reason := _missing()):
        pytest.skip(reason)
