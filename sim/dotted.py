"""What users write themselves, named in scenarios as ``package.module:name``."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from typing import Any, Final

from sim.errors import InputError, nearest

_NOT_THEIRS: Final = (
    os.path.dirname(__file__) + os.sep,  # noqa: PTH120
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")},
    "<frozen ",
)
"""Beginnings of the names of files that are not the user's."""

RAISED: Final = (Exception, SystemExit)
"""What is told of a user's code: a script that calls ``sys.exit`` must not end the program without a word."""

_GIVEN: dict[str, object] = {}
"""Objects handed over from Python that no import finds: functions inside functions, lambdas."""


def is_dotted(name: str) -> bool:
    """Whether ``name`` is written like ``package.module:name``."""
    return ":" in name


def load(path: str) -> Any:
    """The object at ``package.module:name``; the current folder is searched too.

    Raises:
        InputError: there is no such module or name, or importing the module fails.
    """
    if path in _GIVEN:
        return _GIVEN[path]
    module_name, _, name = path.partition(":")
    if not (name and all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")])):
        raise InputError(f"'{path}' is not of the form package.module:name")
    here = os.getcwd()  # noqa: PTH109  (sys.path holds text)
    if here not in sys.path:
        sys.path.append(here)  # last, so that it hides nothing
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not module_name.startswith(error.name):
            raise InputError(f"importing '{module_name}' raised {said(error)}") from error
        raise InputError(
            f"there is no module '{error.name}'; it is looked for in {here} and where Python looks"
        ) from None
    except RAISED as error:
        raise InputError(f"importing '{module_name}' raised {said(error)}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise InputError(f"'{module_name}' has no '{name}'{_hint(found, part)}")
        found = getattr(found, part)
    return found


def _hint(place: Any, name: str) -> str:
    """What of its own a module or class has instead of ``name``."""
    own = [
        key
        for key, value in getattr(place, "__dict__", {}).items()
        if not key.startswith("_") and getattr(value, "__module__", None) == place.__name__
    ]
    return f"; {nearest(name, own)}" if own else ""


def name_of(thing: Any) -> str:
    """A path under which ``load`` finds ``thing`` in this process."""
    module = getattr(thing, "__module__", type(thing).__module__)
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    path = f"{module}:{name}"
    try:
        if "<" not in path and load(path) is thing:
            return path
    except InputError:
        pass
    path = f"given:{name.replace('<', '').replace('>', '')}"
    _GIVEN[path] = thing
    return path


def said(error: BaseException) -> str:
    """An exception of a user's code on one line, with the place where it was raised."""
    text = " ".join(str(error).split())
    named = type(error).__name__ + (f": {text}" if text else "")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(_NOT_THEIRS)]
    where = f" ({os.path.basename(own[-1].filename)}, line {own[-1].lineno})" if own else ""  # noqa: PTH119
    return named + where
