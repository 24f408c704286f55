"""A process that the launcher has started: it joins the others, then runs what it is asked to.

Requests come as lines on standard input, answers go as lines of JSON to what was standard output:
``{"ready"}`` once joined, ``{"progress": steps}`` from rank 0, ``{"run", "timings"}`` from the rank that
collected, ``{"done"}`` from every rank, or ``{"error": [kind, text]}``. Whatever else prints goes to
standard error.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, NoReturn

from pydantic import TypeAdapter

from paceline.sim.errors import InputError, PacelineError
from paceline.sim.records.run import Run

from ..group.group import Group, join
from ..group.store import file_store
from .cells import RunRequest, run_request

STORE: Final = "PACELINE_STORE"
RANK: Final = "PACELINE_RANK"
SIZE: Final = "PACELINE_SIZE"
TIMEOUT: Final = "PACELINE_TIMEOUT_S"
FAULTS: Final = "PACELINE_FAULTS"
"""Names of the environment variables with which the launcher tells a process who it is."""

JOIN_S: Final = 300.0
"""How long the processes may take to start: each loads torch."""

RUN: Final = TypeAdapter(Run)

_PR_SET_PDEATHSIG = 1
_TELL_EVERY_S = 0.2


def serve(environment: Mapping[str, str]) -> NoReturn:
    """Join, answer requests until standard input ends, and exit."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def tell(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")

    status = 1
    try:
        rank, size = int(environment[RANK]), int(environment[SIZE])
        group = join(file_store(Path(environment[STORE]), size), rank, size, JOIN_S)
        tell({"ready": rank})
        status = _answer(group, tell, environment)
    except PacelineError as error:
        kind = "InputError" if isinstance(error, InputError) else "RunError"
        tell({"error": [kind, str(error)]})
    answers.flush()
    os._exit(status)  # helper threads of a failed run may still block in gloo


def _answer(group: Group, tell: Callable[[Mapping[str, Any]], None], environment: Mapping[str, str]) -> int:
    """Answer requests; returns the exit status."""
    faults = {int(rank): number for rank, number in json.loads(environment.get(FAULTS, "{}")).items()}
    timeout_s = float(environment[TIMEOUT])
    for line in sys.stdin:
        progress = _Progress(tell) if group.rank == 0 else None
        measured = run_request(group, RunRequest.from_json(line), timeout_s, progress, faults=faults)
        if measured.run is not None:
            told = {
                "run": RUN.dump_python(measured.run, mode="json"),
                "timings": [asdict(t) for t in measured.timings],
            }
            tell(told)
        tell({"done": group.rank})
        if group.broken:
            return 1
    return 0


class _Progress:
    """Tells the number of steps done, now and then."""

    def __init__(self, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._tell = tell
        self._told_s = 0.0

    def __call__(self, steps: int) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s >= _TELL_EVERY_S:
            self._told_s = now_s
            self._tell({"progress": steps})
