"""Users' own objects, named in scenarios as ``package.module:name``."""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import os
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from pydantic import create_model
from pydantic.errors import PydanticSchemaGenerationError

from ...errors import InputError, PacelineError, did_you_mean, quote, shorten
from ..problems import format_value, one_line
from ..settings import Settings
from . import code_files

_T = TypeVar("_T")

_NOT_USERS: Final = (
    str(Path(__file__).parents[3]) + os.sep,
    *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")},
    "<",
)
"""Prefixes of file names that are not the user's; "<": of code that has no file."""
_PACKAGE_FOLDERS: Final = ("/site-packages/", "/dist-packages/")

RAISED: Final = (Exception, SystemExit)
"""Errors of a user's code to report: a script that calls ``sys.exit`` must not end the program in silence."""
MAX_RAISED: Final = 300
"""Most characters of an exception's text in a message."""

_GIVEN: dict[str, object] = {}
"""Objects passed from Python, by the paths under which scenarios of this process name them."""
_given_here: ContextVar[Mapping[str, object]] = ContextVar("_given_here", default=_GIVEN)
"""Objects given to this thread: another may be given something else under the same path."""
_CHECKED: dict[str, object] = {}
"""Objects that scenarios may name, by their paths."""
_OF_PYTHON: Final = ("given", "__main__")
"""Modules in the paths of objects passed from Python, which only this process has."""
_OWN_CODE: Final = frozenset({"paceline.realrun.calibration.probes:PROBE"})
"""Names in Paceline's own scenarios."""


def is_users_file(file: str) -> bool:
    """Whether a file of this name is neither ours, nor Python's, nor that of an installed package."""
    return not file.startswith(_NOT_USERS) and not any(folder in file for folder in _PACKAGE_FOLDERS)


def is_import_path(name: str) -> bool:
    """Whether ``name`` is written like ``package.module:name``."""
    return ":" in name


def load_object(path: str) -> Any:
    """Load the object at ``package.module:name``.

    A scenario may come from a stranger: only objects of the user, or of an installed package that declares
    them (``paceline.sim.config.user_code.code_files``), count, by the file that defines them. ``InputError``
    otherwise.
    """
    for given in (_given_here.get(), _GIVEN):
        if path in given:
            return given[path]
    module_name, _, name = path.partition(":")
    if not (name and all(part.isidentifier() for part in [*module_name.split("."), *name.split(".")])):
        raise InputError(f"{quote(path)} is not of the form package.module:name")
    if module_name in _OF_PYTHON:
        raise InputError(
            f"{quote(path)} was handed over from Python, in another process; put it into a module beside the "
            "scenario, and name that"
        )
    if path in _OWN_CODE:
        return getattr(importlib.import_module(module_name), name)
    thing = _import(module_name)
    for part in name.split("."):
        with report_errors(quote(path)):
            has_part = hasattr(thing, part)
        if not has_part:
            raise InputError(f"{quote(module_name)} has no {quote(name)}{_hint(thing, part)}")
        thing = getattr(thing, part)
    if _CHECKED.get(path) is not thing:
        _check_defined(path, thing)
        _CHECKED[path] = thing
    return thing


def _import(module_name: str) -> Any:
    try:
        return code_files.load_module(module_name)
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise InputError(f"importing {quote(module_name)} raised {format_error(error)}") from error


def names_given(text: str) -> bool:
    """Whether a scenario's text names an object passed from Python, in this process alone."""
    return any(path in text for path in _GIVEN)


@contextmanager
def report_errors(where: str, error: type[PacelineError] = InputError, hint: str = "") -> Iterator[None]:
    """Raise errors of a user's code in this block as ``error``: where, what, file and line, and a hint."""
    try:
        yield
    except KeyboardInterrupt:
        raise
    except BaseException as raised:
        raise error(f"{where} raised {format_error(raised)}{hint}") from raised


def call(path: str, arguments: Mapping[str, Any], read: Callable[[Any], _T], expected: str) -> _T:
    """Call the user's function at ``package.module:name``, and check its result.

    ``read`` converts the result, and raises if it is not as ``expected``, in words. Raises ``InputError`` as
    ``load_object``, or if the object is no function, raises, or returns something else.
    """
    where, form = format_call(path, arguments), f"({', '.join(arguments)}) and return {expected}"
    function = load_object(path)
    if not callable(function):
        raise InputError(f"{quote(path)} is {format_value(function)}; it must be a function, take {form}")
    with report_errors(where, hint=f"; it must take {form}"):
        value = function(*arguments.values())
    try:
        return read(value)
    except RAISED:
        place = format_place(function)
        raise InputError(f"{where} returned {format_value(value)}; it must take {form}{place}") from None


def instance_of(kind: type[_T]) -> Callable[[object], _T]:
    """A reader for ``call`` that accepts instances of a class."""

    def read(value: object) -> _T:
        if not isinstance(value, kind):
            raise TypeError
        return value

    return read


def format_call(path: str, arguments: Mapping[str, Any]) -> str:
    """A call as errors name it: ``'package.module:name' with workers=4``; numbers are shown."""
    shown = [f"{name}={value}" for name, value in arguments.items() if isinstance(value, int)]
    return f"'{path}' with {', '.join(shown)}"


def _check_defined(path: str, thing: Any) -> None:
    """Refuse a callable defined where scenarios may take no code from; plain values pass."""
    if not callable(thing):
        return
    inner = thing
    try:
        while True:
            within = inner.func if isinstance(inner, functools.partial) else inspect.unwrap(inner)
            if within is inner:
                break
            inner = within
        defined = inner if inspect.isroutine(inner) or inspect.isclass(inner) else type(inner)
        file = inspect.getfile(defined)
    except (TypeError, ValueError):  # a builtin; wrapped in itself
        file = ""
    if not os.path.isfile(file):  # noqa: PTH113
        raise InputError(
            f"{quote(path)} is defined in Python itself, or in no file, so that no scenario can name it; "
            "write a function of your own"
        )
    code_files.check_file(quote(path), Path(file))


def _hint(place: Any, name: str) -> str:
    own = [
        key
        for key, value in getattr(place, "__dict__", {}).items()
        if not key.startswith("_") and getattr(value, "__module__", None) == place.__name__
    ]
    return f"; {did_you_mean(name, own)}" if own else ""


def import_path_of(thing: Any) -> str:
    """A path under which ``load_object`` finds ``thing`` here; that of its module, if it has one."""
    module = getattr(thing, "__module__", type(thing).__module__)
    name = getattr(thing, "__qualname__", type(thing).__qualname__)
    inner: Any = sys.modules.get(module)
    for part in name.split("."):
        inner = getattr(inner, part, None)
    path = f"{module}:{name}" if inner is thing else f"given:{name.replace('<', '').replace('>', '')}"
    _GIVEN[path] = thing
    _given_here.set({**_given_here.get(), path: thing})
    return path


def with_import_paths(entries: Sequence[Any]) -> str:
    """JSON of names, objects, by ``import_path_of``, and ``{name or object: options}``; or ``InputError``."""
    if not isinstance(entries, list | tuple):
        raise InputError(f"schemes: must be a list, not {format_value(entries)}")
    things: dict[str, object] = {}

    def name_of(thing: Any) -> str:
        path = thing if isinstance(thing, str) else import_path_of(thing)
        if things.setdefault(path, thing) is not thing and path is not thing:
            raise InputError(f"schemes: two are called {quote(path)}; give each a __qualname__ of its own")
        return path

    given = [entry if isinstance(entry, Mapping) else {entry: None} for entry in entries]
    return json.dumps([{name_of(key): each[key] for key in each} for each in given], default=str)


def format_place(function: object) -> str:
    """`` (FILE, line N)`` of a user's function; "" if unknown."""
    code = getattr(inspect.unwrap(function) if callable(function) else function, "__code__", None)
    return format_line(code.co_filename, code.co_firstlineno) if code else ""


def format_line(file: str, line: int | None) -> str:
    """`` (FILE, line N)``, a place in a user's code for the end of a sentence."""
    return f" ({os.path.basename(file)}, line {line})"  # noqa: PTH119


def format_error(error: BaseException) -> str:
    """An exception of a user's code on one line, shortened, with the place where it was raised."""
    text = one_line(" ".join(str(error).split()), MAX_RAISED)
    named = shorten(type(error).__name__) + (f": {text}" if text else "")
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users_file(frame.filename)]
    if isinstance(error, ModuleNotFoundError) and code_files.is_neighbour(error.name or ""):
        named += (
            "; a module's folder is searched only while it is loaded: import what lies beside it at the top "
            "of the file"
        )
    where = format_line(own[-1].filename, own[-1].lineno) if own else ""
    return named + where


def with_line(text: str, coroutine: object) -> str:
    """``text`` prefixed once by the current line of a user's coroutine, if known."""
    line = getattr(coroutine, "place", "")
    return f"{line}: {text}" if line and not text.startswith(line) else text


_ANYTHING = bool | int | float | str | tuple[Any, ...] | None


def options_of(
    path: str, function: Callable[..., Any], skip: int = 0, without: tuple[str, ...] = ()
) -> type[Settings]:
    """A settings model with one key per parameter, from the ``skip``-th on, ``without`` some by name.

    Types come from annotations, else from defaults. A parameter without a default is a required key. Raises
    ``InputError``, which names the function's ``path``, if the signature cannot be read, or cannot be given
    by name.
    """
    try:
        parameters = list(inspect.signature(function).parameters.values())
        options = [p for p in parameters[skip:] if p.name not in without]
        types = _types_of(function, options)
    except RAISED as error:  # annotations as text are evaluated
        raise InputError(f"{quote(path)}: its signature cannot be read: {format_error(error)}") from None
    if len(parameters) < skip:
        raise InputError(
            f"{quote(path)}: it takes {len(parameters)} parameters; it needs {skip} before its options"
        )
    fields: dict[str, Any] = {}
    for parameter in options:
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise InputError(f"{quote(path)}: its parameter '{parameter.name}' cannot be given by name")
        default = ... if parameter.default is parameter.empty else parameter.default
        kind = _type_of(path, parameter, types.get(parameter.name, Any))
        fields[parameter.name] = (kind, tuple(default) if isinstance(default, list) else default)
    try:
        return create_model("Options", __base__=Settings, **fields)
    except (PydanticSchemaGenerationError, NameError) as error:
        text = str(error).splitlines()[0]
        raise InputError(f"{quote(path)}: its parameters cannot be options of a scenario: {text}") from None


def _types_of(function: Callable[..., Any], parameters: Sequence[inspect.Parameter]) -> dict[str, Any]:
    """Types of these parameters, by name; annotations of others may name imports for mypy alone."""
    written = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    holder = type("Holder", (), {"__annotations__": written})
    inner = inspect.unwrap(function)
    return get_type_hints(holder, getattr(inner, "__globals__", {}))


def _type_of(path: str, parameter: inspect.Parameter, written: Any) -> Any:
    if written is Any and parameter.default is not parameter.empty and parameter.default is not None:
        written = type(parameter.default)
    # Scenarios are hashed, so that lists are tuples in them.
    if written is list or get_origin(written) is list:
        return tuple.__class_getitem__((*(get_args(written) or (_ANYTHING,)), ...))
    if written is dict or get_origin(written) is dict:
        raise InputError(
            f"{quote(path)}: its parameter '{parameter.name}' is a mapping, which no option is; use several "
            "parameters"
        )
    return _ANYTHING if written is Any else written
