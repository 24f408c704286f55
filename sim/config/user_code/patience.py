"""Time limit on the user's code in commands that answer at once, and its error."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from paceline.sim.config.user_code.call import is_users_file

PATIENCE_S: Final = 8
"""Largest seconds of one import, or one call, of a user's code."""
_TICK_S: Final = 0.5


@contextmanager
def patience(command: str) -> Iterator[None]:
    """End the process, status 2, when a user's code in this block does not return.

    The stack is checked periodically: an outermost frame of a user's file that stays the same for
    ``PATIENCE_S`` has waited, or computed, for that long. A C function that never returns to Python is not
    noticed, and nothing happens outside the main thread, nor where the process has an alarm of its own.
    """
    latest: FrameType | None = None
    ticks = 0
    around = len(_frames_of_user(sys._getframe()))  # a user's program that called the command

    def tick(signum: int, frame: FrameType | None) -> None:
        nonlocal latest, ticks
        own = _frames_of_user(frame)[: -around or None]
        if not own or own[-1] is not latest:
            latest, ticks = own[-1] if own else None, 0
            return
        ticks += 1
        if ticks * _TICK_S < PATIENCE_S:
            return
        file, line = os.path.basename(own[0].f_code.co_filename), own[0].f_lineno  # noqa: PTH119
        text = (
            f"paceline: {file}, line {line}: this code has not come back for {PATIENCE_S} s, and "
            f"'{command}' waits no longer for code that a scenario names; "
            "let it do less where it is imported and built\n"
        )
        os.write(2, text.encode(errors="replace"))
        os._exit(2)  # an exception might be caught by the code on the stack

    try:
        free = signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
        if free:
            signal.signal(signal.SIGALRM, tick)
    except ValueError:  # outside the main thread
        free = False
    if not free:
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, _TICK_S, _TICK_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _frames_of_user(frame: FrameType | None) -> list[FrameType]:
    """Frames on the stack whose file is the user's, the innermost first."""
    own = []
    while frame is not None:
        if frame.f_globals.get("__name__") != "__main__" and is_users_file(frame.f_code.co_filename):
            own.append(frame)
        frame = frame.f_back
    return own
