"""A file that cannot be written leaves what was there, and nothing beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.sim.config.files import save_atomically, write_atomically
from paceline.sim.errors import InputError


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_what_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_text("old")

    def save(new: Path) -> None:
        assert new.suffix == ".png"
        new.write_text("ha")
        raise OSError(28, "No space left on device")

    with pytest.raises(InputError, match=r"cannot write .*a\.png: No space left on device"):
        save_atomically(path, save)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*: Not a directory"):
        write_atomically(tmp_path / "file" / "new.json", "text")
