"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ..errors import InputError


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` to a temporary name beside ``path``, then rename.

    Raises:
        InputError: that is not possible.
    """
    save_whole(path, lambda new: new.write_text(text, encoding="utf-8"))


def save_whole(path: Path, save: Callable[[Path], object]) -> None:
    """Have ``save`` write a temporary file beside ``path``, of the same suffix, then rename.

    Raises:
        InputError: that is not possible.
    """
    new = path.with_name(f".{path.stem}.{os.getpid()}.new{path.suffix}")
    try:
        save(new)
        new.replace(path)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with suppress(OSError):  # it may never have been there, nor its folder
            new.unlink()
