"""Runs that mappings ask for; rows that need the same one share it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from paceline import RunError, simulate


@cache
def wall_clock_s(scenario: Path, *changes: str) -> float:
    """Virtual seconds of a scenario's only run, with changes as for ``--set``.

    Raises:
        InputError: the scenario or a change is not well.
        RunError: the run did not reach its end.
    """
    (run,) = simulate(scenario, changes=changes, jobs=1, progress=False).runs
    if run.status != "completed":
        raise RunError(run.message)
    return run.wall_clock_s
