"""Ctrl-C and SIGTERM: an exception for this process, and its end where that comes too late."""

from __future__ import annotations

import signal
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

END_S: Final = 1.5
"""Seconds from a signal to the end of a process that has not ended by itself."""


@contextmanager
def interruptible(end: Callable[[], object]) -> Iterator[None]:
    """Raise ``KeyboardInterrupt`` in this block at the first SIGINT or SIGTERM that no outer program handles.

    Where the block lasts ``END_S`` longer (C code, a user's code, much to clean up), a thread calls ``end``.
    """
    usual: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    ours = [number for number in usual if signal.getsignal(number) is usual[number]]
    say = sys.unraisablehook
    signals, noted = socket.socketpair()
    over = threading.Event()

    def interrupt(*_: Any) -> None:
        for number in ours:
            signal.signal(number, signal.SIG_IGN)
        warnings.simplefilter("ignore", RuntimeWarning)  # of coroutines that nobody will await
        raise KeyboardInterrupt

    def say_unless_interrupted(lost: sys.UnraisableHookArgs) -> None:  # in a finalizer, or while modules load
        if lost.exc_type is not KeyboardInterrupt:
            say(lost)

    def watch() -> None:
        with signals:
            while (number := signals.recv(1)) and number[0] not in ours:
                pass
        if number and not over.wait(END_S):
            end()

    threading.Thread(target=watch, daemon=True).start()
    noted.setblocking(False)
    with noted:
        outer = signal.set_wakeup_fd(noted.fileno(), warn_on_full_buffer=False)
        try:
            sys.unraisablehook = say_unless_interrupted
            for number in ours:
                signal.signal(number, interrupt)
            yield
        finally:
            sys.unraisablehook = say
            over.set()
            signal.set_wakeup_fd(outer)
            for number in ours:
                signal.signal(number, usual[number])
