"""The limit of open files: without one left, gloo waits for ever for a connection."""

from __future__ import annotations

import resource
from typing import Final

from paceline.sim.errors import InputError

_FILES: Final = 64
"""Open files of any process of a run: its streams, gloo's devices, files being read."""
_FILES_OF_A_WORKER: Final = 4
"""Open files for each worker: pipes to its process, or connections to it in a few groups."""


def allow_open_files(workers: int) -> None:
    """Raise the limit of open files, also for children; ``InputError``: the hard limit is lower."""
    needed = _FILES + _FILES_OF_A_WORKER * workers
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY or allowed >= needed:
        return
    if most != resource.RLIM_INFINITY and most < needed:
        raise InputError(
            f"a run of {workers} workers needs up to {needed} open files in a process, and {most} are "
            f"allowed; raise that (ulimit -n {needed}), or take fewer workers"
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))
