"""Files and lines in errors about a scenario after it was read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..config import yaml_file
from ..errors import InputError, KeyedError
from . import overrides


@contextmanager
def name_lines(path: Path, changes: Sequence[overrides.Change]) -> Iterator[None]:
    """Add file and line of the key to a ``KeyedError`` of the block; the file is read again for it."""
    try:
        yield
    except KeyedError as error:
        document = overrides.apply(yaml_file.parse(yaml_file.read_text(path), str(path)), changes)
        raise InputError(f"{document.place(error.at)}: {error}") from error
