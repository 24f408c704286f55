"""Child processes: they end with the process that started them, however it ends.

Keep this module cheap to import: child processes call it first.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Final

from .code_files import add_folders

_PR_SET_PDEATHSIG: Final = 1
_LOOK_MS: Final = 500
"""Interval between checks that the parent lives."""


def end_with_parent(parent: int | None = None, *, orders: bool = False) -> None:
    """End this process when its parent dies; call it before slow imports.

    By the kernel on Linux (prctl(2), PR_SET_PDEATHSIG). A thread watches too: for a parent that died before
    this call, and for other systems, where a stopped process ends once it is continued.

    Args:
        parent: its process number, if known: it may have died already.
        orders: whether standard input is a pipe from the parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    parent = os.getppid() if parent is None else parent
    threading.Thread(target=_watch, args=(parent, orders), daemon=True).start()


def prepare(parent: int, folders: Sequence[str]) -> None:
    """Set up a process that works for ``parent``, a process number, which handles interrupts.

    ``folders`` hold the user's code.
    """
    end_with_parent(parent)
    from joblib.externals.loky import process_executor

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process_executor._MAX_MEMORY_LEAK_SIZE = sys.maxsize  # models are no leak: no new process after 300 MB
    os.dup2(2, 1)  # keep prints of the user's code out of the parent's output
    add_folders(folders)


def _watch(parent: int, orders: bool) -> None:
    poll = select.poll()
    if orders:
        poll.register(0, 0)  # only to notice its end
    while os.getppid() == parent and not poll.poll(_LOOK_MS):
        pass
    os._exit(1)
