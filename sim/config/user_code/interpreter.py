"""What all code in a process shares, and a user's code leaves whole: builtins, modules, streams, folder."""

from __future__ import annotations

import builtins
import io
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, BinaryIO, Final, TextIO, cast

from typing_extensions import Buffer, override

from ...errors import InputError

_BUILTINS: Final = vars(builtins)
"""Known before anybody can take ``vars`` away."""
_STREAMS: Final = ("stdout", "stderr")
_SHOWN: Final = 3


class SharedState:
    """Builtins, loaded modules, standard streams and the working folder as they are now."""

    def __init__(self) -> None:
        self._builtins = {**_BUILTINS}
        self._modules = {**sys.modules}
        self._streams = {name: getattr(sys, name) for name in _STREAMS}
        self._folder = _working_folder()

    def mend(self, replaced: bool = False) -> list[str]:
        """Put back what is gone; returns what that was.

        Another function in a builtin's place, another module and another stream that takes text are left
        alone, since programs do that on purpose.

        Args:
            replaced: put back builtins in whose place another function is, too.
        """
        now = {**_BUILTINS}
        _BUILTINS.update(self._builtins)  # first of all: what follows calls them
        own = {
            name: now[name]
            for name, each in self._builtins.items()
            if name in now and (now[name] is each or (callable(now[name]) and not replaced))
        }
        _BUILTINS.update(own)
        gone = [name for name in self._builtins if name not in own]
        for name, module in self._modules.items():
            if module is not None and sys.modules.get(name) is None:
                sys.modules[name] = module
                gone.append(f"sys.modules[{name!r}]")
        for number, (name, stream) in enumerate(self._streams.items(), 1):
            if not _takes_text(getattr(sys, name, None)):
                setattr(sys, name, stream if _takes_text(stream) else _reopened(number))
                gone.append(f"sys.{name}")
        if self._folder is not None and _working_folder() != self._folder:
            with suppress(OSError):  # it has been removed
                os.chdir(self._folder)
            gone.append("the working folder")
        return gone


def _working_folder() -> str | None:
    """What relative paths begin at; None where it has been removed."""
    try:
        return os.getcwd()  # noqa: PTH109  (``Path`` may be what is gone)
    except OSError:
        return None


def _takes_text(stream: Any) -> bool:
    try:
        return callable(stream.write) and callable(stream.flush) and not getattr(stream, "closed", False)
    except Exception:  # it may be anything
        return False


def _reopened(number: int) -> TextIO | None:
    """A standard stream whose file object was closed; None where its descriptor is, too."""
    try:
        return os.fdopen(number, "w", errors="backslashreplace", closefd=False)
    except OSError:
        return None


class _Pipe(io.FileIO):
    """Takes everything that is written to it, also where whoever was to read it has gone."""

    @override
    def write(self, text: Buffer, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            return memoryview(text).nbytes


def outlast_readers() -> None:
    """Let this process end as if all it says were read, where a standard stream is a pipe (``| head -1``)."""
    for name in _STREAMS:
        stream = getattr(sys, name)
        if not isinstance(stream, io.TextIOWrapper):
            continue
        try:
            stream.flush()
            number = stream.fileno()
            piped = stat.S_ISFIFO(mode := os.fstat(number).st_mode) or stat.S_ISSOCK(mode)
        except OSError:  # it is closed, or takes nothing
            continue
        if piped:
            pipe, at_once = _Pipe(number, "wb", closefd=False), stream.write_through  # python -u
            outlasting = io.TextIOWrapper(
                cast(BinaryIO, pipe) if at_once else io.BufferedWriter(pipe),
                stream.encoding,
                stream.errors,
                line_buffering=stream.line_buffering,
                write_through=at_once,
            )
            setattr(sys, name, outlasting)


def name_some(gone: Sequence[str]) -> str:
    """What ``mend`` returned, in words; the first few of it."""
    more = len(gone) - _SHOWN
    return ", ".join(gone[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


class LeftWhole:
    """Refuses a user's code that takes away in a ``with`` block what all other code needs; it is put back.

    Args:
        what: names the code, in the error.

    Raises:
        InputError: a builtin, a loaded module or a standard stream is gone.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._before = SharedState()

    def __enter__(self) -> None:  # no generator: contextlib needs builtins
        pass

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: object) -> None:
        gone = self._before.mend()
        if gone and kind is None:
            raise InputError(
                f"{self._what} has taken away {name_some(gone)}, without which no other code can run"
            )
