"""A file that cannot be written leaves what was there, and nothing beside it."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.sim.config.files import (
    check_out_file,
    claim,
    claim_folder,
    owner_tag,
    remove_leftovers,
    save_atomically,
    write_atomically,
    write_folder_atomically,
)
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


def full(path: Path, content: object) -> int:
    """A disk that has room for names alone."""
    path.touch()
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_told_by_the_name_that_a_file_was_to_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, full_disk = tmp_path / "r", "cannot write {}: No space left on device"
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError) as caught, claim(out):
        pass
    assert str(caught.value) == full_disk.format(out)
    with pytest.raises(InputError) as caught, write_folder_atomically(out) as new:
        save_atomically(new / "deep.png", lambda path: path.write_bytes(b""))
    assert str(caught.value) == full_disk.format(out / "deep.png")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("may", "flag", "free", "why"),
    [
        (False, 0, 5, "Permission denied"),
        (False, os.ST_RDONLY, 5, "Read-only file system"),
        (True, 0, 0, "No space left on device"),
    ],
)
def test_a_folder_that_takes_no_files_is_told_before_any_work(
    may: bool, flag: int, free: int, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda *of: may)
    disk = SimpleNamespace(f_flag=flag, f_blocks=9, f_bfree=free)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    with pytest.raises(InputError, match=f"cannot write .*: {why}"):
        check_out_file(tmp_path / "page.html", ())
    with pytest.raises(InputError, match=f"cannot write .*: {why}"), write_folder_atomically(tmp_path):
        pass


def dead_owner() -> str:
    """The tag of a process of this host that is gone."""
    with subprocess.Popen(["true"]) as child:
        child.wait()
    return owner_tag().rpartition("-")[0] + f"-{child.pid}"


def test_what_a_dead_process_has_left_is_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.b.json"
    left = tmp_path / f".a.b.{dead_owner()}.new.json"
    others = [
        tmp_path / f".a.b.{owner_tag()}0.new.txt",  # of another file
        tmp_path / f".a.b.elsewhere{dead_owner()}.new.json",  # on another host, where it may be alive
        tmp_path / f".a.b.{owner_tag().rpartition('-')[0]}-1.new.json",  # of a process that lives
    ]
    for each in (left, *others):
        each.write_text("ha")
    write_atomically(path, "text")
    assert set(tmp_path.iterdir()) == {path, *others}


def test_temporary_folders_of_a_dead_process_are_removed(tmp_path: Path) -> None:
    for owner in (dead_owner(), owner_tag()):
        (tmp_path / f"paceline-{owner}-x1_y" / "deep").mkdir(parents=True)
    remove_leftovers(tmp_path, "paceline-", "-[a-z0-9_]+")
    assert [path.name for path in tmp_path.iterdir()] == [f"paceline-{owner_tag()}-x1_y"]


CLAIM = """
import sys
from pathlib import Path
from paceline.sim.config.files import claim
with claim(Path(sys.argv[1])):
    print("mine", flush=True)
    sys.stdin.readline()
"""


def test_who_comes_second_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r"
    command = [sys.executable, "-c", CLAIM, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"mine\n"
        with (
            pytest.raises(InputError, match=rf"r is in use: .*process {first.pid} on .* writes to it"),
            claim(path),
        ):
            pass
        first.kill()
        first.wait()
    with claim(path):  # a claim ends with its process
        pass
    assert list(path.parent.iterdir()) == []


def test_a_path_whose_links_lead_in_a_circle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(InputError, match="circle"), claim_folder(tmp_path / "circle" / "r"):
        pass


def test_a_lock_that_a_dead_process_has_left_is_taken_and_a_foreign_one_is_not(tmp_path: Path) -> None:
    lock = tmp_path / ".r.lock"
    for content in ("process 1 on elsewhere", ""):
        lock.write_text(content)
        with claim(tmp_path / "r"):
            assert lock.read_text().startswith("process ")
        assert not lock.exists()
    lock.write_text("mine")
    with pytest.raises(InputError, match=r"\.r\.lock is there, and is no lock"), claim(tmp_path / "r"):
        pass
    assert lock.read_text() == "mine"


def test_a_path_that_leads_back_out_of_nothing_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("old")
    nothing = tmp_path / "nothing"
    for path in (nothing / ".." / "mine", nothing / ".." / ".."):
        with pytest.raises(InputError, match=r"cannot write .*: there is no folder .*nothing$"):
            write_atomically(path, "new")
        with pytest.raises(InputError, match="there is no folder"), claim_folder(path):
            pass
        with pytest.raises(InputError, match="there is no folder"), write_folder_atomically(path):
            pass
    assert (tmp_path / "mine").read_text() == "old"
    nothing.mkdir()
    write_atomically(nothing / ".." / "mine", "new")
    assert (tmp_path / "mine").read_text() == "new"
