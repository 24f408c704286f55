"""Files of measurements, of either kind."""

from __future__ import annotations

from pathlib import Path

from paceline.sim.config import json_file
from paceline.sim.errors import InputError
from paceline.sim.records import attached
from paceline.sim.scenario.schema import Scenario

from . import measure
from .evidence import Evidence
from .training_run import TrainingRun


def load(path: Path, nominal: Scenario | None) -> Evidence:
    """What ``paceline probe`` or ``paceline.attach`` has written.

    Args:
        path: of the file.
        nominal: says what network an attached run had; probes know theirs.

    Raises:
        InputError: the file will not do, or nobody says what network its run had.
    """
    found = json_file.read(path, "'paceline probe' or paceline.attach")
    if found.get("kind") != attached.KIND:
        return measure.checked(found, path)
    record = attached.checked(found, path)
    if nominal is None:
        raise InputError(
            f"{path}: was recorded by paceline.attach; say on what network with --nominal SCENARIO"
        )
    return TrainingRun(record, nominal, path)
