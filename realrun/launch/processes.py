"""Start the processes of a real run on this machine, watch over them, and ask them to run cells."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from types import TracebackType
from typing import Any, Final, Protocol, Self

from paceline.sim.errors import InputError, RunError
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import Scenario

from ..driver.rank_log import Timing
from ..group.store import Control, file_store
from . import serve
from .cells import RunRequest, crashing

RunProgress = Callable[[str, int], None]
"""Called with a run's label and the number of steps that rank 0 has done."""

_LAST_LINES: Final = 20
_AFTER_A_FAILURE_S: Final = 15.0
"""How long processes may go on once one has failed, beyond the time-out of a wait."""
_AFTER_A_RECORD_S: Final = 1.0


class Popen(Protocol):
    """Starts a process for a worker: ``subprocess.Popen`` with the worker's number in front."""

    def __call__(
        self, rank: int, argv: list[str], env: Mapping[str, str], /, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Start ``argv``; ``options`` as for ``subprocess.Popen``."""


def _popen_here(
    rank: int, argv: list[str], env: Mapping[str, str], /, **options: Any
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(argv, env=env, **options)


@dataclass(frozen=True)
class Result:
    """A finished cell.

    Attributes:
        run: its record; ``partial`` where it failed, ``message`` says why.
        timings: how well each worker kept to the compute model.
    """

    run: Run
    timings: tuple[Timing, ...]


class Processes:
    """A pool of ``size`` processes, one per worker, that runs one cell after another.

    A context manager; no process outlives it, nor this process however it ends. After a run that failed the
    next one gets new processes.

    Args:
        size: how many.
        popen: starts one; the lab's, for example. Called from the thread that calls ``run``.
        environment: variables to set for them, such as GLOO_SOCKET_IFNAME.
        timeout_s: how long any wait in a run may last.
        faults: for tests, see ``paceline.realrun.driver.run.run_job``.
    """

    def __init__(
        self,
        size: int,
        *,
        popen: Popen = _popen_here,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        faults: Mapping[int, int] | None = None,
    ) -> None:
        self._size = size
        self._popen = popen
        self._timeout_s = timeout_s
        here = str(Path(__file__).parents[3])
        self._environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([here, *filter(None, [os.environ.get("PYTHONPATH")])]),
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME") or "lo",
            "OMP_NUM_THREADS": "1",
            serve.SIZE: str(size),
            serve.TIMEOUT: str(timeout_s),
            serve.FAULTS: json.dumps(faults or {}),
            **(environment or {}),
        }
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._children: list[_Child] = []
        self._heard: Queue[tuple[int, dict[str, Any] | None]] = Queue()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, cell: RunRequest, progress: Callable[[int], None] | None = None) -> Result:
        """Run a cell.

        Raises:
            InputError: the cell cannot be run for real.
            RunError: it failed so early that there is no record of it.
        """
        if not self._children:
            self._start()
        for child in self._children:
            child.ask(cell.to_json())
        watched = _Watched(self._size, crashing(cell))
        while not watched.over():
            try:
                rank, answer = self._heard.get(timeout=0.2)
            except Empty:
                if watched.failed_s is not None and self._lost_patience(watched, watched.failed_s):
                    break
                continue
            if answer is None:
                if watched.left(rank):
                    self._note_death(rank)
            elif "progress" in answer:
                if progress is not None:
                    progress(answer["progress"])
            else:
                watched.hear(rank, answer)
        if watched.failed_s is None and watched.run is not None:
            return Result(watched.run, watched.timings)
        fates = "; ".join(self._children[rank].fate() for rank in sorted(watched.lost))
        self.close()
        return watched.result(fates)

    def _lost_patience(self, watched: _Watched, failed_s: float) -> bool:
        """Whether the others have had time enough after a failure; with a record there, they have ended."""
        more_s = _AFTER_A_RECORD_S if watched.run is not None else self._timeout_s + _AFTER_A_FAILURE_S
        return time.monotonic() > failed_s + more_s

    def close(self) -> None:
        """End all processes."""
        for child in self._children:
            child.end()
        for child in self._children:
            child.reap()
        self._children = []
        self._heard = Queue()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-")
        store = str(Path(self._folder.name) / "store")
        try:
            for rank in range(self._size):
                environment = {**self._environment, serve.STORE: store, serve.RANK: str(rank)}
                process = self._popen(
                    rank,
                    [sys.executable, "-m", "paceline.realrun", "--serve"],
                    environment,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    start_new_session=True,  # Ctrl-C is for this process, which ends them
                )
                self._children.append(_Child(rank, process, self._heard))
        except BaseException:
            self.close()
            raise

    def _note_death(self, rank: int) -> None:
        assert self._folder is not None
        store = file_store(Path(self._folder.name) / "store", -1)
        Control(store, rank, self._size).note_death(rank)


class _Child:
    """One process, with threads that read what it says."""

    def __init__(
        self,
        rank: int,
        process: subprocess.Popen[bytes],
        heard: Queue[tuple[int, dict[str, Any] | None]],
    ) -> None:
        self._rank = rank
        self._process = process
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._readers = [
            threading.Thread(target=self._read_answers, args=(heard,), daemon=True),
            threading.Thread(target=self._read_errors, daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def _read_answers(self, heard: Queue[tuple[int, dict[str, Any] | None]]) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            heard.put((self._rank, json.loads(line)))
        heard.put((self._rank, None))

    def _read_errors(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last.append(line.decode(errors="replace").rstrip())

    def ask(self, line: str) -> None:
        """Send a request; a process that is gone is noticed by its silence."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return

    def fate(self) -> str:
        """How the process ended, for people."""
        try:
            status = self._process.wait(_AFTER_A_RECORD_S)  # it has closed its standard output
        except subprocess.TimeoutExpired:
            return f"worker {self._rank} did not end"
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        said = next((line for line in reversed(self._last) if line.strip()), "")
        return f"worker {self._rank} {how}" + (f": {said}" if said else "")

    def end(self) -> None:
        """Ask the process to end, or make it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.kill()

    def reap(self) -> None:
        """Wait until nothing is left of it."""
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


class _Watched:
    """What has been heard about one run; the ``planned`` ranks end on their own, and the others go on."""

    def __init__(self, size: int, planned: frozenset[int]) -> None:
        self._waited = set(range(size))
        self._planned = planned
        self.lost: set[int] = set()
        self.run: Run | None = None
        self.timings: tuple[Timing, ...] = ()
        self.failed_s: float | None = None
        self._errors: dict[int, tuple[str, str]] = {}

    def over(self) -> bool:
        """Whether every rank is done, one way or another."""
        return not self._waited

    def hear(self, rank: int, answer: Mapping[str, Any]) -> None:
        """A rank has answered."""
        if "run" in answer:
            self.run = serve.RUN.validate_python(answer["run"])
            self.timings = tuple(Timing(**each) for each in answer["timings"])
            if self.run.status == "partial":
                self._fail()
        elif "error" in answer:
            kind, text = answer["error"]
            self._errors[rank] = (kind, text)
            self._fail()
        elif "done" in answer:
            self._waited.discard(rank)

    def left(self, rank: int) -> bool:
        """A rank's process has ended; returns whether that was unexpected."""
        if rank not in self._waited:
            return False
        self._waited.discard(rank)
        if rank in self._planned:
            return True
        self._fail()
        if rank in self._errors:
            return False
        self.lost.add(rank)
        return True

    def _fail(self) -> None:
        if self.failed_s is None:
            self.failed_s = time.monotonic()

    def result(self, fates: str) -> Result:
        """The record of a run that failed, with one message that says it all."""
        if self.run is not None:
            message = self.run.message + (f" ({fates})" if fates else "")
            return Result(replace(self.run, status="partial", message=message), self.timings)
        for kind, text in (self._errors[rank] for rank in sorted(self._errors)):
            raise (
                InputError(text)
                if kind == "InputError"
                else RunError(text + (f" ({fates})" if fates else ""))
            )
        raise RunError(fates or "the processes ended without a word")


def measure_runs(
    scenario: Scenario,
    cells: Iterable[RunRequest],
    processes: Processes,
    *,
    progress: RunProgress | None = None,
) -> Iterator[Result]:
    """Run the cells of a scenario for real; yields each when it is complete."""
    for cell in cells:
        tell = None if progress is None else partial(progress, scenario.schemes[cell.entry].label)
        yield processes.run(cell, tell)
