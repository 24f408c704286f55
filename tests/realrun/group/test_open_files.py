"""A run that would wait for ever for open files is refused before it begins."""

from __future__ import annotations

import resource

import pytest

from paceline.realrun.group.group import allow_open_files
from paceline.sim.errors import InputError


@pytest.fixture
def limits(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The limits of open files: the first is that of this process, others are set by what is tested."""
    limits = [(256, 1024)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limit: limits.append(limit))
    return limits


def test_what_is_allowed_stays(limits: list[tuple[int, int]]) -> None:
    allow_open_files(4)
    assert limits == [(256, 1024)]


def test_the_own_limit_is_raised_as_far_as_needed(limits: list[tuple[int, int]]) -> None:
    allow_open_files(100)
    allowed, most = limits[-1]
    assert 256 < allowed < most == 1024


def test_a_limit_that_is_too_low_is_named(limits: list[tuple[int, int]]) -> None:
    with pytest.raises(InputError, match=r"300 workers needs up to [0-9]+ open files .*1024 are allowed"):
        allow_open_files(300)
    assert len(limits) == 1
