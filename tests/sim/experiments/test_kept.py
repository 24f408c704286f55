"""Files of kept gradients that are damaged or made up: nothing is believed, run or waited for."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from paceline.sim.experiments.sweep.kept import KeptTrajectory, read_trajectory, write_trajectory
from paceline.sim.workloads.workload import Evaluated


class Evil:
    """Leaves a file where it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> tuple[Callable[[str], None], tuple[str]]:
        return os.mkdir, (self.mark,)


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def objects(path: Path) -> None:
    arrays = dict(np.load(path))
    arrays["gradients"] = np.array([Evil(path.with_name("hacked"))], dtype=object)
    np.savez(path, **arrays)


def other_member(method: int, content: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        with zipfile.ZipFile(path) as old:
            names = old.namelist()
        with zipfile.ZipFile(path, "w", method) as new:
            for name in names:
                new.writestr(name, content)

    return damage


def unknown_method(path: Path) -> None:
    """Have the members say that they are packed in a way that nobody knows."""
    content = path.read_bytes()
    for start, at in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        place = content.find(start)
        while place >= 0:
            content = content[: place + at] + b"\x63\x00" + content[place + at + 2 :]
            place = content.find(start, place + 1)
    path.write_bytes(content)


HEAD = b"\x93NUMPY\x01\x00v\x00"
HUGE = HEAD + b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000000,), }".ljust(117) + b"\n"


@pytest.mark.parametrize(
    "damage",
    [
        pipe,
        objects,
        unknown_method,
        other_member(zipfile.ZIP_STORED, b"rubbish"),
        other_member(zipfile.ZIP_DEFLATED, HUGE),
        lambda path: path.write_bytes(path.read_bytes()[:100]),
        lambda path: path.write_bytes(b""),
    ],
)
def test_a_file_that_is_none_is_passed_over(damage: Callable[[Path], None], tmp_path: Path) -> None:
    path, kept = tmp_path / "t.npz", KeptTrajectory()
    kept.add(0, bytes(32), Evaluated(torch.zeros(2, 3), torch.zeros(2, 1)))
    write_trajectory(path, "this", kept)
    assert read_trajectory(path, "this") is not None
    assert read_trajectory(path, "that") is None
    damage(path)
    assert read_trajectory(path, "this") is None
    assert not (tmp_path / "hacked").exists()
