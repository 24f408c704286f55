"""What mappings ask for: runs, which rows share that need the same one, and what a word stands for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TypeVar

from paceline import InputError, RunError, simulate
from paceline.sim.errors import did_you_mean

T = TypeVar("T")


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


def chosen(choices: Mapping[str, T], word: str) -> T:
    """What a row's word stands for.

    Raises:
        InputError: it is none of the choices.
    """
    if word not in choices:
        raise InputError(f"there is no {word!r}; {did_you_mean(word, choices)}")
    return choices[word]
