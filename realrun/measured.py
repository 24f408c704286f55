"""Files of measurements, of either kind."""

from __future__ import annotations

from pathlib import Path

from realrun import probe
from realrun.attached import TrainingRun
from realrun.evidence import Evidence
from sim import attached, json_file
from sim.errors import InputError
from sim.scenario import Scenario


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
        return probe.checked(found, path)
    record = attached.checked(found, path)
    if nominal is None:
        raise InputError(
            f"{path}: was recorded by paceline.attach; say on what network with --nominal SCENARIO"
        )
    return TrainingRun(record, nominal, path)
