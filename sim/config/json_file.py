"""JSON files of measurements: they have a version, and only numbers that are numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeVar

from ..errors import InputError
from .files import write_whole
from .settings import Settings
from .validated import validated

Model = TypeVar("Model", bound=Settings)


def write(found: Settings, path: Path) -> None:
    """Write the file, whole or not at all."""
    write_whole(path, json.dumps(found.model_dump(mode="json"), allow_nan=False) + "\n")


def read(path: Path, made_by: str) -> dict[str, Any]:
    """What stands in a file that ``made_by`` has written.

    Raises:
        InputError: it cannot be read, is damaged, holds numbers that are none, or is something else.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=_refuse)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from error
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: is damaged: {error.msg} in line {error.lineno}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: holds {error}, which is no measurement; measure again") from error
    if not isinstance(found, dict) or "version" not in found:
        raise InputError(f"{path}: is no file of {made_by}: it has no version")
    return found


def as_model(model: type[Model], found: dict[str, Any], path: Path, version: int) -> Model:
    """What was read, checked.

    Raises:
        InputError: it is of another version than ``version``, or not what the model says.
    """
    if found["version"] != version:
        raise InputError(
            f"{path}: has version {found['version']!r}, this program reads version {version}; measure again"
        )
    return validated(model, found, str(path))


def _refuse(name: str) -> float:
    raise ValueError(name)
