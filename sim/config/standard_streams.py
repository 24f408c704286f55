"""Standard streams whose reader may go before this process has said all."""

from __future__ import annotations

import io
import os
import stat
import sys
from typing import BinaryIO, cast

from typing_extensions import Buffer, override


class _Pipe(io.FileIO):
    """Take all output, also after its reader has gone."""

    @override
    def write(self, text: Buffer, /) -> int:
        try:
            return super().write(text)
        except BrokenPipeError:
            return memoryview(text).nbytes


def ignore_broken_pipes() -> None:
    """Let this process end as if all it says were read, where a standard stream is a pipe (``| head -1``)."""
    for name in ("stdout", "stderr"):
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
