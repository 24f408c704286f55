"""Processes that others start: they end with the one that started them, however that ends.

Nothing is imported here that takes long, so that this can be the first that such a process does.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Final

from .code_files import add_folders

_PR_SET_PDEATHSIG: Final = 1
_LOOK_MS: Final = 500
"""How often it is looked whether the parent is there."""

_to_parent: Connection | None = None
"""Where this process says how far it is."""


def end_with_parent(parent: int | None = None, *, orders: bool = False) -> None:
    """End this process when its parent dies; call it before anything is imported that takes long.

    On Linux the kernel does that (prctl(2), PR_SET_PDEATHSIG), also to a process that is stopped or busy. A
    thread watches besides: for a parent that died before this call, and on other systems, where a stopped
    process ends once it is continued.

    Args:
        parent: its process number, where that is known: it may have died before this call.
        orders: whether standard input is a pipe from the parent, which hangs up when that dies.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = os.getppid() if parent is None else parent
    threading.Thread(target=_watch, args=(parent, orders), daemon=True).start()


def prepare(parent: int, folders: Sequence[str], to_parent: Connection) -> None:
    """Begin a process that works for ``parent``, which sees to interrupts.

    Args:
        parent: the number of the process that has started this one.
        folders: where the user's code lies.
        to_parent: what ``tell_parent`` writes to.
    """
    global _to_parent
    end_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(2, 1)  # what the user's code prints must not come between what the parent does
    add_folders(folders)
    os.set_blocking(to_parent.fileno(), False)
    _to_parent = to_parent


def tell_parent(message: bytes) -> None:
    """Send a short message to the parent of a process that is prepared; it is lost where nobody reads."""
    assert _to_parent is not None
    with suppress(BlockingIOError):
        _to_parent.send_bytes(message)


def _watch(parent: int, orders: bool) -> None:
    poll = select.poll()
    if orders:
        poll.register(0, 0)  # no event but its end
    while os.getppid() == parent and not poll.poll(_LOOK_MS):
        pass
    os._exit(1)
