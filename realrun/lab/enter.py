"""Start a program inside a host of a lab: ``enter.py PARENT USER_NS|-1 NET_NS PROGRAM [ARGUMENT ...]``.

Run by path with ``python -I -S``, so it imports nothing of the project. The program gets this process, dies
with its parent, and finds neither of the two file descriptors open.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_CLONE_NEWUSER, _CLONE_NEWNET, _PR_SET_PDEATHSIG = 0x1000_0000, 0x4000_0000, 1


def main(parent: int, user_namespace: int, network_namespace: int, argv: list[str]) -> None:
    """Enter the namespaces and become ``argv``."""
    libc = ctypes.CDLL(None, use_errno=True)
    for namespace, kind in ((user_namespace, _CLONE_NEWUSER), (network_namespace, _CLONE_NEWNET)):
        if namespace >= 0:
            if libc.setns(namespace, kind) != 0:
                sys.exit(f"cannot enter the lab's namespace: {os.strerror(ctypes.get_errno())}")
            os.close(namespace)
    # After setns: joining a user namespace clears it.
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        sys.exit("the lab's owner is gone")
    # Not os.environ: Python adds LC_CTYPE to that where there is no locale.
    environment = [
        line.partition(b"=") for line in Path("/proc/self/environ").read_bytes().split(b"\0") if line
    ]
    try:
        os.execvpe(argv[0], argv, {name: value for name, _, value in environment})
    except OSError as error:
        sys.exit(f"cannot start {argv[0]}: {error.strerror}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
