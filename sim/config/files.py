"""Atomic writes of files and folders, and locks on them."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeVar

from filelock import FileLock, Timeout
from pydantic_core import from_json

from ..errors import InputError, quote, shorten
from .settings import Settings
from .yaml_file import read_bytes, read_text, validate_document


@contextmanager
def trying_to(what: str) -> Iterator[None]:
    """Raise an ``OSError`` of the block as ``InputError``: ``cannot``, ``what``, and the reason."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot {what}: {error.strerror or error}") from error


def is_file(path: Path) -> bool:
    """Whether a file exists; False for names too long to ask."""
    try:
        return path.is_file()
    except OSError:
        return False


def holds_all(path: Path, marks: Sequence[bytes]) -> bool:
    """Whether a file is empty or contains all ``marks``; False if it is irregular or too long."""
    try:
        content = read_bytes(path, _MAX_SEARCHED_BYTES)
    except InputError:
        return False
    return not content or all(mark in content for mark in marks)


_MAX_SEARCHED_BYTES: Final = 64 * 2**20


def check_out_file(
    out: Path, marks: Sequence[bytes], kind: str = "older file of this command", sources: Sequence[Path] = ()
) -> None:
    """Refuse, before any work, an output file that cannot be written or would replace one of ``sources``.

    ``marks``: contents of all files of a ``kind``; no other file is replaced.
    """
    with trying_to(f"write {shorten(out)}"):
        if not out.name or out.is_dir():
            raise InputError(f"{out} is a folder: name a file")
        if not out.parent.is_dir():
            raise InputError(f"cannot write {out}: there is no folder {out.parent}")
        _check_access(follow_links(out).parent)
        if out.exists() and any(each.exists() and each.samefile(out) for each in sources):
            raise InputError(f"{out} would replace what is read: choose another name")
        if out.exists() and not holds_all(out, marks):
            raise InputError(f"{out} is there already, and it is no {kind}: choose another name")


def _check_access(folder: Path) -> None:
    """Raise ``OSError`` if this process cannot write into ``folder``: rights, a read-only or a full disk."""
    disk, may = os.statvfs(folder), os.access(folder, os.W_OK | os.X_OK)
    if not may or (disk.f_blocks and not disk.f_bfree):
        refused = errno.EROFS if disk.f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(number := errno.ENOSPC if may else refused, os.strerror(number))


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to a temporary name beside ``path``, then rename; ``InputError`` if impossible."""
    save_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))


def save_atomically(path: Path, save: Callable[[Path], object]) -> None:
    """Have ``save`` write a temporary file of the same suffix, then rename it to ``path`` or a link's target.

    Raises ``InputError`` if that is not possible.
    """
    target = follow_links(path)
    start, end = f".{target.stem}.", f".new{target.suffix}"
    remove_leftovers(target.parent, start, re.escape(end))
    new = target.with_name(f"{start}{owner_tag()}{end}")
    try:
        with trying_to(f"write {path}"):
            if target.exists() and not target.is_file():
                raise InputError(f"cannot write {path}: a folder, a device or a pipe is there")
            save(new)
            new.replace(target)
    finally:
        with suppress(OSError):  # it may never have existed, nor its folder
            new.unlink()


MAX_NAME_BYTES: Final = 255
"""Longest file name on all usual file systems."""
_NO_LOCKS: Final = frozenset({errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK})
"""Errors of file systems without locks."""


def owner_tag() -> str:
    """Name this process, by host and number, for use in the name of a temporary file."""
    return f"{socket.gethostname()}-{os.getpid()}"


def _temporary(path: Path, end: str) -> Path:
    return path.with_name(f".{path.name}.{owner_tag()}.{end}")


def remove_leftovers(folder: Path, start: str, end: str) -> None:
    """Remove temporary files START<owner>END (a regular expression) of this host's dead processes."""
    pattern = re.compile(f"{re.escape(start + socket.gethostname())}-([0-9]+){end}")
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            match = pattern.fullmatch(entry.name)
            if match is not None and _is_dead(int(match[1])):
                remove(entry)


_TEMPORARY: Final = "paceline-"
"""Prefix of temporary folders."""


def make_temporary_folder() -> tempfile.TemporaryDirectory[str]:
    """Make a temporary folder named after its owner; remove those of dead processes."""
    remove_leftovers(Path(tempfile.gettempdir()), _TEMPORARY, "-[a-z0-9_]+")
    return tempfile.TemporaryDirectory(prefix=f"{_TEMPORARY}{owner_tag()}-")


def remove(path: Path) -> None:
    """Remove a file, or a folder with its contents, as far as possible."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


def _is_dead(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:  # another user's
        return False
    return False


def follow_links(path: Path) -> Path:
    """Resolve ``path`` to the file or folder that a write would change.

    Raises ``InputError`` for circular links, too long names, and ``..`` out of a missing folder.
    """
    try:
        for number, part in enumerate(path.parts):
            if part == ".." and not (out_of := Path(*path.parts[:number])).is_dir():
                raise InputError(f"cannot write {path}: there is no folder {out_of}")
        target = path.resolve()
        if target.is_symlink():  # Python 3.13 keeps circular links
            raise RuntimeError
    except (OSError, RuntimeError) as error:  # RuntimeError: Python 3.11 and 3.12
        why = getattr(error, "strerror", None) or "its links lead in a circle"
        raise InputError(f"cannot write {path}: {why}") from error
    return target


@contextmanager
def claim(path: Path) -> Iterator[Path]:
    """Lock ``path`` against other processes, by a locked file beside it that the block's end removes.

    Yields the path without links. The lock ends with this process; file systems without locks refuse nobody.
    Raises ``InputError`` if another process has claimed it, or nothing can be written there.
    """
    path = follow_links(path)
    if not path.name:
        raise InputError(f"{path} is the top of all folders: choose another")
    lock = path.with_name(f".{path.name}.lock")
    with ExitStack() as held:
        try:
            if len(os.fsencode(_temporary(path, "new").name)) > MAX_NAME_BYTES:  # needed later
                raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
            lock.parent.mkdir(parents=True, exist_ok=True)
            _lock(lock, held)
        except Timeout:
            owner = read_bytes(lock, _OWNER_BYTES).decode(errors="replace") if is_file(lock) else ""
            raise InputError(
                f"{path} is in use: another command{owner and f' ({owner})'} writes to it; wait for that, or "
                "choose another folder"
            ) from None
        except OSError as error:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)  # not the lock's fault
            where = f" ({lock})" if os.path.lexists(lock) and not full else ""
            raise InputError(f"cannot write {path}: {error.strerror or error}{where}") from error
        yield path


_OWNER: Final = b"process "
"""Beginning of a lock's content."""
_OWNER_BYTES: Final = 300
_WAIT_S: Final = 0.2
"""Seconds to wait for a lock whose owner may be about to remove it."""


def _lock(lock: Path, held: ExitStack) -> None:
    """Lock a file and write its owner into it, until ``held`` ends; refuse a file that is no lock."""
    try:
        held.enter_context(FileLock(lock, timeout=_WAIT_S, fallback_to_soft=False))
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
    if not _OWNER.startswith(read_bytes(lock, _OWNER_BYTES)[: len(_OWNER)]):
        raise InputError(
            f"{lock} is there, and is no lock of Paceline's: remove it, or choose another folder"
        )
    held.callback(remove, lock)  # before the lock ends
    lock.write_bytes(_OWNER + f"{os.getpid()} on {socket.gethostname()}".encode())


MAX_JSON_BYTES: Final = 256 * 2**20
"""Largest file of measurements that is read."""

_Model = TypeVar("_Model", bound=Settings)


def format_json(settings: Settings) -> str:
    """Settings as the JSON that ``write_json`` writes."""
    return json.dumps(settings.model_dump(mode="json"), allow_nan=False) + "\n"


def write_json(settings: Settings, path: Path) -> None:
    """Write settings as JSON, the whole file or nothing. Raises as ``write_atomically``."""
    write_atomically(path, format_json(settings))


def read_json(path: Path, made_by: str) -> dict[str, Any]:
    """Contents of a file that ``made_by`` has written.

    Raises ``InputError`` if unreadable, damaged, with non-finite numbers, or of another kind.
    """
    try:
        data = parse_json(read_text(path, MAX_JSON_BYTES, (".json",)), once=True)
    except ValueError as error:
        raise InputError(f"{path}: is damaged: {error}") from error
    if not isinstance(data, dict) or "version" not in data:
        raise InputError(f"{path}: is no file of {made_by}: it has no version")
    return data


def as_model(model: type[_Model], data: dict[str, Any], path: Path, version: int) -> _Model:
    """Validate ``data`` as ``model`` of ``version``; ``InputError`` otherwise."""
    if data["version"] != version:
        raise InputError(
            f"{path}: is of another version, or of another kind: {data['version']!r}, not {version}"
        )
    return validate_document(model, data, str(path))


def parse_json(text: str, once: bool = False) -> Any:
    """Parse JSON with finite numbers, bounded nesting, each key ``once``; ``ValueError`` says where."""
    value = from_json(text, allow_inf_nan=False)
    json.dumps(value, allow_nan=False)  # "1e999" parses as infinite
    if once:
        json.loads(text, object_pairs_hook=distinct)
    return value


def distinct(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The keys and values of a JSON object; ``ValueError`` for a key that it has twice."""
    keys, mapping = [key for key, _ in pairs], dict(pairs)
    if len(mapping) < len(keys):
        raise ValueError(f"has the key {quote(next(key for key in keys if keys.count(key) > 1))} twice")
    return mapping


@contextmanager
def claim_folder(folder: Path) -> Iterator[None]:
    """Lock a result folder against other commands, and finish or undo a dead command's interrupted write.

    Raises ``InputError`` if another command writes to it, or nothing can be written there.
    """
    with claim(folder) as real:
        remove_unfinished_writes(real)
        yield


def remove_unfinished_writes(folder: Path) -> None:
    """Undo interrupted ``write_folder_atomically`` of dead processes; the caller has claimed the folder."""
    pattern = re.compile(f"{re.escape(f'.{folder.name}.')}.+-[0-9]+\\.(old|new)")
    with trying_to(f"look into {folder.parent}"):
        for entry in sorted(folder.parent.iterdir()):
            match = pattern.fullmatch(entry.name)
            if match is not None and match[1] == "old" and not folder.exists():
                entry.rename(folder)
            elif match is not None:
                remove(entry)


@contextmanager
def write_folder_atomically(folder: Path) -> Iterator[Path]:
    """Yield a new folder that replaces ``folder`` if the block succeeds; ``InputError``: not writable."""
    folder = follow_links(folder)
    remove_leftovers(folder.parent, f".{folder.name}.", r"\.(old|new)")
    new, old = _temporary(folder, "new"), _temporary(folder, "old")
    with trying_to(f"write {folder}"):
        if folder.is_dir():  # else it would stay under another name
            _check_access(folder)
        new.mkdir(parents=True)
        try:
            yield new
            for path in new.rglob("*"):
                if path.is_file():
                    with path.open("rb") as file:  # to disk before it gets its name: this machine may fail
                        os.fsync(file.fileno())
            if folder.exists():
                folder.rename(old)
            new.rename(folder)
        except BaseException as error:
            if old.exists() and not folder.exists():
                old.rename(folder)
            if isinstance(error, InputError):  # of a file within
                raise InputError(str(error).replace(str(new), str(folder))) from error
            raise
        finally:
            remove(new)
            remove(old)
