"""Both ends of a process that does blocks of work on order, so that several can take turns.

An order is a line with a number of steps; the answer is a line of JSON with the seconds that the block took,
by the wall clock and of processors, and the memory so far. What a library prints on standard output goes to
standard error. Between its blocks the process is stopped, with all that it has started: 64 processes that
wait wake up now and then, and would hold up the one that is measured.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

WARM_UP_STEPS: Final = 20
"""A run has hundreds of steps, and all use what is prepared in the first of them."""
END_LIMIT_S: Final = 10.0
"""Seconds that a child has for its end."""
_READY: Final = "ready\n"

Block = Callable[[int], None]
"""Does so many steps on all workers."""


Usage = Callable[[], tuple[float, float]]
"""Seconds of processors used so far, and the most memory in GiB."""


def own_usage() -> tuple[float, float]:
    """What this process has used."""
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def serve(block: Block, usage: Usage = own_usage) -> None:
    """Do blocks until standard input ends; the first is done before any order, and not timed."""
    sys.stdout.flush()  # or what is left in it would come after an error's own words
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    block(WARM_UP_STEPS)
    answers.write(_READY)
    for line in sys.stdin:
        before_s, begin_s = usage()[0], time.perf_counter()
        block(int(line))
        seconds = time.perf_counter() - begin_s
        after_s, gib = usage()
        answer = {"seconds": seconds, "processor_s": after_s - before_s, "gib": gib}
        answers.write(json.dumps(answer) + "\n")


@dataclass(frozen=True)
class BlockTime:
    """What a block took.

    Attributes:
        seconds: on this machine's clock.
        processor_s: of all processors, by the process and those that it has started.
        gib: memory that the process, with those it has started, has had resident at most.
    """

    seconds: float
    processor_s: float
    gib: float


class ChildError(Exception):
    """A child ended; the text is the last line that it wrote on standard error."""


class Child:
    """A process that serves blocks.

    Args:
        command: what to start.
        environment: added to this process's.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        # A pipe that nobody reads would fill up.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, text=True,
            env={**os.environ, **environment}, process_group=0,
        )  # fmt: skip

    def wait_until_ready(self) -> None:
        """Wait for the end of the block before the first order.

        What libraries print while they are imported, some at their first import only, comes before.

        Raises:
            ChildError: there is none.
        """
        while self._answer() != _READY:
            pass
        self._signal(signal.SIGSTOP)

    def run(self, steps: int) -> BlockTime:
        """Order a block.

        Raises:
            ChildError: it was not done.
        """
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        try:
            self._process.stdin.write(f"{steps}\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass
        answer = json.loads(self._answer())
        self._signal(signal.SIGSTOP)
        return BlockTime(answer["seconds"], answer["processor_s"], answer["gib"])

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            status = self._process.wait()  # its last words may come after its answers' end
            self._errors.seek(0)
            written = [each.strip() for each in self._errors.read().splitlines() if each.strip()]
            raise ChildError(written[-1] if written else f"exit status {status}")
        return line

    def _signal(self, number: signal.Signals) -> None:
        """Send a signal to the process and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """End the process, by the end of its orders."""
        self._signal(signal.SIGCONT)
        try:
            self._process.communicate(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.communicate()
        self._errors.close()
