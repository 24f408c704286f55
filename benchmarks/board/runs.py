"""What mappings ask for: runs, which rows share that need the same one, and what a word stands for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Final, TypeVar

from paceline import InputError, RunError, Scenario, load, simulate
from paceline.sim.errors import did_you_mean

T = TypeVar("T")
Clock = Callable[[Scenario, str], float]
"""Seconds of a scenario's run, or of one collective on its network, where one is named."""
_CLOCK: Final[ContextVar[Clock | None]] = ContextVar("clock", default=None)


@contextmanager
def timed_by(clock: Clock | None) -> Iterator[None]:
    """Let a spreadsheet answer what mappings ask of the simulator; None: the simulator itself."""
    token = _CLOCK.set(clock)
    try:
        yield
    finally:
        _CLOCK.reset(token)


def other_clock() -> Clock | None:
    """The spreadsheet in the place of the simulator, if there is one."""
    return _CLOCK.get()


def wall_clock_s(scenario: Path, *changes: str) -> float:
    """Virtual seconds of a scenario's only run, with changes as for ``--set``.

    Raises:
        InputError: the scenario or a change is not well.
        RunError: the run did not reach its end.
    """
    clock = other_clock()
    return _simulated_s(scenario, *changes) if clock is None else clock(load(scenario, changes), "")


@cache
def _simulated_s(scenario: Path, *changes: str) -> float:
    (run,) = simulate(scenario, changes=changes, jobs=1, progress=False).runs
    if run.status != "completed":
        raise RunError(run.message)
    return run.wall_clock_s


def chosen(choices: Mapping[str, T], word: str) -> T:
    """What a row's word stands for.

    Raises:
        InputError: it is none of the choices.
    """
    if word not in choices:
        raise InputError(f"there is no {word!r}; {did_you_mean(word, choices)}")
    return choices[word]
