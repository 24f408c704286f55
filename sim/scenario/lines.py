"""Files and lines in errors about a scenario that has been read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ..config import yaml_file
from ..errors import InputError, KeyedError
from . import overrides


@contextmanager
def name_lines(path: Path, changes: Sequence[overrides.Change]) -> Iterator[None]:
    """Give an error of this block about a key the file and the line where the key stands.

    Args:
        path: the scenario's file, which is read once more.
        changes: ``dotted.key=value`` each, as when it was loaded.
    """
    try:
        yield
    except KeyedError as error:
        document = overrides.apply(yaml_file.parse(yaml_file.read_text(path), str(path)), changes)
        raise InputError(f"{document.place(error.at)}: {error}") from error
