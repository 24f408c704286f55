"""Files that are there whole or not at all, whatever happens while they are written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError
from .settings import Settings
from .yaml_file import validate_document


def write_atomically(path: Path, text: str) -> None:
    """Write ``text`` to a temporary name beside ``path``, then rename.

    Raises:
        InputError: that is not possible.
    """
    save_atomically(path, lambda new: new.write_text(text, encoding="utf-8"))


def save_atomically(path: Path, save: Callable[[Path], object]) -> None:
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


_Model = TypeVar("_Model", bound=Settings)


def write_json(settings: Settings, path: Path) -> None:
    """Write settings as JSON, the whole file or nothing. Raises as ``write_atomically``."""
    write_atomically(path, json.dumps(settings.model_dump(mode="json"), allow_nan=False) + "\n")


def read_json(path: Path, made_by: str) -> dict[str, Any]:
    """What stands in a file that ``made_by`` has written.

    Raises:
        InputError: it cannot be read, is damaged, holds numbers that are none, or is something else.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: is damaged: {error.msg} in line {error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: holds {error}, which is no measurement; measure again") from error
    if not isinstance(data, dict) or "version" not in data:
        raise InputError(f"{path}: is no file of {made_by}: it has no version")
    return data


def as_model(model: type[_Model], data: dict[str, Any], path: Path, version: int) -> _Model:
    """What was read, as ``model``.

    Raises:
        InputError: it is of another version than ``version``, or does not fit the model.
    """
    if data["version"] != version:
        raise InputError(
            f"{path}: has version {data['version']!r}, this program reads version {version}; measure again"
        )
    return validate_document(model, data, str(path))


def _refuse(name: str) -> float:
    raise ValueError(name)
