"""Files of a result folder: names, greatest sizes, and checksums in the format of ``sha256sum --check``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...config.files import write_atomically
from ...config.problems import refuse_foreign
from ...config.yaml_file import read_text
from ...errors import InputError, shorten

if TYPE_CHECKING:
    import pyarrow.parquet as pq

METRICS_FILE: Final = "metrics.parquet"
EVENTS_FILE: Final = "events.parquet"

RUN_KEY: Final = ["label", "seed", "source"]
"""Columns that identify a run within a folder."""
STEP_VECTOR: Final = "steps"
"""Column of step vectors; missing in a folder that was written before they were recorded."""

MAX_FILE_BYTES: Final = 4 * 2**30


def check_size(path: Path, head: pq.FileMetaData, file_bytes: int, most: int) -> None:
    """``InputError``: a table in Parquet unfolds to more values than ``most``."""
    groups = (head.row_group(number) for number in range(head.num_row_groups))
    values = sum(group.column(number).num_values for group in groups for number in range(head.num_columns))
    if values > most:
        text = f"unfolds from {file_bytes} bytes to {values} values; at most {most} are read"
        raise InputError(f"{path} {text}")


CHECKSUMS_FILE: Final = "checksums.sha256"
"""SHA-256 of the other files."""
TRACE_FILE: Final = "trace.json"
"""The one file that may be removed: it is large, and Paceline does not read it."""
MAX_CHECKSUMS_BYTES: Final = 2**20


def write_checksums(folder: Path) -> None:
    """Write the SHA-256 of each file of a folder into ``CHECKSUMS_FILE``; ``InputError`` if that fails."""
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.name != CHECKSUMS_FILE]
    lines = [f"{_sha256(path)}  {path.name}\n" for path in files]
    write_atomically(folder / CHECKSUMS_FILE, "".join(lines))


def verify_checksums(folder: Path, needed: Sequence[str], added: Sequence[str] = ()) -> None:
    """Compare the files of a folder with their checksums; ``added`` files need one only if they are there.

    Raises ``InputError`` without checksums, or for a file that was changed, removed or added.
    """
    path = folder / CHECKSUMS_FILE
    if not os.path.lexists(path):
        raise InputError(f"{folder} has no {CHECKSUMS_FILE}: no change would show; make these results again")
    try:
        text = read_text(path, MAX_CHECKSUMS_BYTES, ())
        lines = [line.split("  ", 1) for line in text.splitlines()]
        if not all(len(line) == 2 for line in lines) or not {line[1] for line in lines}.issuperset(needed):
            raise InputError(f"{path} is damaged")
        for checksum, name in lines:
            part = folder / Path(name).name
            if not os.path.lexists(part):
                if name == TRACE_FILE:
                    continue
                raise InputError(f"{folder} is damaged: {shorten(name)} is missing; make these results again")
            check_kind(part)
            if _sha256(part) != checksum:
                refuse_foreign(part)
                raise InputError(
                    f"{part} is damaged, or was changed after it was written: its checksum is not the one in "
                    f"{CHECKSUMS_FILE}; make these results again"
                )
        for name in added:
            if os.path.lexists(folder / name) and all(line[1] != name for line in lines):
                raise InputError(
                    f"{folder / name} was not written with these results: it has no checksum in "
                    f"{CHECKSUMS_FILE}; remove it, or make these results again"
                )
    except OSError as error:
        raise InputError(f"cannot read {folder}: {error}") from error


def check_kind(path: Path) -> None:
    """Raise ``InputError`` unless ``path`` is a regular file of at most ``MAX_FILE_BYTES``."""
    if not path.is_file():
        raise InputError(f"{path} is no regular file, but a folder, a device, a pipe or a link to nothing")
    if path.stat().st_size > MAX_FILE_BYTES:
        raise InputError(f"{path} is larger than {MAX_FILE_BYTES >> 30} GiB, which is too much")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
