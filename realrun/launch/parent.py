"""A rank ends with the process that started it, however that ends."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_LOOK_MS: Final = 500
"""How often it is looked whether the parent is there."""


def end_with_parent(orders: bool) -> None:
    """End this process when its parent dies; call it before anything is imported that takes long.

    On Linux the kernel does that (prctl(2), PR_SET_PDEATHSIG), also to a process that is stopped or busy. A
    thread watches besides: for a parent that died before this call, and on other systems, where a stopped
    process ends once it is continued.

    Args:
        orders: whether standard input is a pipe from the parent, which hangs up when that dies.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    threading.Thread(target=_watch, args=(os.getppid(), orders), daemon=True).start()


def _watch(parent: int, orders: bool) -> None:
    poll = select.poll()
    if orders:
        poll.register(0, 0)  # no event but its end
    while os.getppid() == parent and not poll.poll(_LOOK_MS):
        pass
    os._exit(1)
