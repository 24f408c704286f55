"""Worker processes that do one real run after another, in a lab or on this machine's loopback.

Starting one takes seconds (torch is large), so they stay for all runs of a command. Each is
``python -m paceline.realrun --serve``; ``paceline.realrun.launch.cells`` has the protocol. A run with faults
resumes here after workers were killed.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from typing import Any, Final, Self

from torch._C._distributed_c10d import FileStore
from typing_extensions import override

from paceline.sim.config.files import make_temporary_folder
from paceline.sim.config.units import format_bytes
from paceline.sim.config.user_code.code_files import code_folders
from paceline.sim.devices import free_for_all_bytes
from paceline.sim.errors import InputError, KeyedError, RunError, shorten
from paceline.sim.experiments.prepare import churn_of
from paceline.sim.records.unfinished import NOTHING_KEPT, Parts
from paceline.sim.scenario.schema import Scenario
from paceline.sim.schemes import find_scheme

from ..driver.rank_state import Life, patience_s
from ..group.group import allow_open_files
from ..group.store import Control
from ..lab import Lab
from ..lab.lab import python_environment
from .cells import AFTER_A_RECORD_S, REQUEST, RankPool, Result, RunRequest, RunState


def check_faults(scenario: Scenario, lab: bool) -> None:
    """Raise ``InputError`` for faults without a real run on processes of this machine, or in a ``lab``."""
    faults = scenario.cluster.faults
    for number, fault in enumerate(faults):
        if fault.how == "cut" and not (lab and scenario.cluster.network.hosts == "stock"):
            raise KeyedError(
                ("cluster", "faults", number, "how"),
                "cut needs --lab and cluster.network.hosts: stock, whose TCP repeats packets in time",
            )
        if fault.warning:
            where = ("cluster", "faults", number, "warning")
            raise KeyedError(where, "real runs write no checkpoint at a warning; leave it out")
    for entry in scenario.schemes:
        churn = churn_of(scenario, entry, scenario.seed)
        policy = "wait" if churn is None else churn.policy
        kinds = {"wait": {"stop", "cut"}, "restart": {"kill"}, "shrink": {"kill"}}.get(policy, set())
        if wrong := sorted({fault.how for fault in faults} - kinds):
            raise InputError(
                f"{shorten(entry.label)}: on_fault: {policy} has no real run with how: {wrong[0]}; one "
                "waits for workers that are stopped or cut off, and restarts or shrinks after one is killed"
            )
        if policy == "shrink" and find_scheme(entry.name).inside(entry.options):
            raise InputError(f"{shorten(entry.label)}: a real run with 'inside' does not shrink")
        if churn is None or policy == "wait":
            continue
        if not find_scheme(entry.name).in_step(entry.options):
            raise InputError(f"{shorten(entry.label)}: a real run of an asynchronous scheme does not restart")
        if churn.checkpoint is not None and isinstance(churn.checkpoint.every, float):
            raise KeyedError(("checkpoint", "every"), "real runs count steps; write for example '100 steps'")


def _notes(life: Life) -> list[dict[str, Any]]:
    notes = []
    for path in Path(life.folder).glob("killed-*"):
        if text := path.read_text():  # else it was ended before it had written
            notes.append(json.loads(text))
        path.unlink()
    return notes


def next_view(life: Life, left: Mapping[int, int], back_s: dict[int, float]) -> Life:
    """The view after ``life``, which ranks have ``left`` after that number of exchanges (-1: not healed yet).
    ``back_s``: when who failed is back; brought up to date. ``RunError``: nobody has a model any more.
    """
    notes = _notes(life)
    back_s |= {note["rank"]: note["over_s"] for note in notes}
    zero_s = float(notes[0]["zero_s"] if notes else life.zero_s or 0.0)
    able = {rank: exchanges for rank, exchanges in left.items() if exchanges >= 0}
    if not able:
        raise RunError("all workers have failed, so that nobody can heal those that return")
    now_s = time.monotonic() - zero_s
    return replace(
        life, zero_s=zero_s, struck=(*life.struck, *(note["step"] for note in notes)), view=life.view + 1,
        members=tuple(rank for rank in sorted({*left, *back_s}) if back_s.get(rank, 0.0) <= now_s),
        exchanges=min(able.values()), able=tuple(able),
        hold_s=min((each for each in back_s.values() if each > now_s), default=math.inf),
    )  # fmt: skip


def next_life(life: Life, request: RunRequest) -> Life:
    """Wait until everybody who was killed is back; returns the life that begins then."""
    notes = _notes(life)
    zero_s, over_s = notes[0]["zero_s"], max(note["over_s"] for note in notes)
    for outage in () if request.churn is None else request.churn.outages():
        if outage.at_s > over_s:
            break
        over_s = max(over_s, outage.over_s)
    time.sleep(max(0.0, zero_s + over_s - time.monotonic()))
    struck = (*life.struck, *(note["step"] for note in notes))
    return Life(life.folder, life.last_checkpoint(request.workers), zero_s, over_s, struck)


RunProgress = Callable[[str, int], None]
"""Called with a run's label and rank 0's number of steps."""

Popen = Callable[..., subprocess.Popen[bytes]]
"""Starts a worker's process from its rank, arguments, environment and options of ``subprocess.Popen``."""

_START_S: Final = 300.0
"""Time limit for the processes to start: each loads torch."""
_KEPT_LINES: Final = 20
"""Lines of a process's standard error kept to explain its end."""
_LOOK_S: Final = 0.2
"""Poll interval for time-outs and stopped processes."""
_STOPPED: Final = "T"
"""State of a process that a signal has stopped, in /proc."""

_Answer = Mapping[str, Any] | None
"""A process's answer, see ``serve``; None: it has ended."""


_PROCESS_BYTES: Final = 2.5e8
"""Memory of one process; ranks of a small model took 0.29 to 0.34 GB (2026-11-23)."""


def check_processes(number: int) -> None:
    """Raise ``KeyedError`` for more processes than fit into this machine's memory: each loads torch."""
    needed, free = number * _PROCESS_BYTES, free_for_all_bytes()
    if needed > free:
        raise KeyedError(
            ("cluster", "workers"),
            f"{number} processes on this machine need about {format_bytes(needed)} of memory, and "
            f"{format_bytes(free)} are free; take fewer workers, or a cluster",
        )


_STORE_BYTES: Final = 2**20
"""Size of the store file: more than any command has written there."""


def check_room(folder: Path) -> None:
    """Raise ``InputError`` unless the store file fits into ``folder``: torch waits forever on a truncated
    one.
    """
    probe = folder / "room"
    try:
        probe.write_bytes(bytes(_STORE_BYTES))
        probe.unlink()
    except OSError as error:
        probe.unlink(missing_ok=True)
        raise InputError(
            f"cannot write {folder}: {error.strerror}; processes agree by a file there, of up to "
            f"{format_bytes(_STORE_BYTES)} (TMPDIR, ulimit -f)"
        ) from error


def popen_here(rank: int, argv: list[str], env: Mapping[str, str], **options: Any) -> subprocess.Popen[bytes]:
    """Start a worker's process on this machine, outside any lab."""
    return subprocess.Popen(argv, env=env, **options)


class Processes(RankPool):
    """Processes that do one run after another, one process per worker, for any number of workers.

    A context manager; no process outlives it, nor this process however it ends. They are started when a run
    first needs them, from the thread that calls ``run``, and reconnect for a run with another number of
    workers, or on stock hosts. After a failed run, or a worker's crash, the next one gets new processes.

    Args:
        lab: runs them in its hosts; entered and left together with this. None: on the loopback.
        popen: starts one where there is no lab.
        faults: for tests, see ``paceline.realrun.driver.one_run.run_job``.

    Raises:
        InputError: on entry, when this machine cannot run a lab.
    """

    def __init__(
        self,
        *,
        lab: Lab | None = None,
        popen: Popen = popen_here,
        timeout_s: float = 60.0,
        faults: Mapping[int, int] | None = None,
    ) -> None:
        self.lab = lab
        self._popen = popen if lab is None else lab.popen
        self._timeout_s = timeout_s
        self._faults = dict(faults or {})
        here = os.environ.get("GLOO_SOCKET_IFNAME") or "lo"
        self._environment = {
            **python_environment(),
            "GLOO_SOCKET_IFNAME": here if lab is None else lab.interface,
            "OMP_NUM_THREADS": "1",
        }
        self._stack = ExitStack()
        self._store = Path()
        self._joined = 0
        self._num_joins = 0
        self._children: list[_Child] = []
        self._answers: Queue[tuple[int, _Answer]] = Queue()

    def __enter__(self) -> Self:
        self._folder = Path(self._stack.enter_context(make_temporary_folder()))
        if self.lab is not None:
            self._stack.enter_context(self.lab)
        self._stack.callback(self._end)
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @override
    def run(self, request: RunRequest, progress: Callable[[int], None] | None = None) -> Result:
        with make_temporary_folder() as folder:
            life, back_s = Life(folder), dict[int, float]()
            while not isinstance(result := self._live(request, progress, life), Result):
                if result is not None:
                    for rank in set(life.members or range(request.workers)).difference(result):
                        self._children[rank].end()
                        self._children[rank].reap()
                        self._children[rank] = self._start(rank)  # a spare, ready when it is to return
                    life = next_view(life, result, back_s)
                else:
                    self._end()
                    life = next_life(life, request)
            if life.view or request.crashing:
                self._end()
            return result

    def _live(
        self, request: RunRequest, progress: Callable[[int], None] | None, life: Life
    ) -> Result | Mapping[int, int] | None:
        """The result, or if workers are killed before it is there, who has left the view; None: restart."""
        limit_s = self._timeout_s + patience_s(request.churn)
        shrinks = request.churn is not None and request.churn.policy == "shrink"
        members = life.members or range(request.workers)
        self._join(members, request.connects_anew or life.view > 0)
        order = {
            "request": REQUEST.dump_python(request), "timeout_s": limit_s, "faults": self._faults,
            "code": code_folders(), "life": asdict(life),
        }  # fmt: skip
        self._send(members, {"run": order})
        state = RunState(members, frozenset(members) if shrinks else request.crashing)
        while state.waited:
            # In a run its ranks watch over each other, until the first is done; this process looks seldom.
            watches = state.failed_s is not None or not state.begun or len(state.waited) < len(members)
            try:
                rank, answer = self._answers.get(timeout=_LOOK_S if watches else _LOOK_S * 5)
            except Empty:
                if state.lost_patience(limit_s):
                    break
                for rank in members:
                    self._children[rank].end_if_stopped(limit_s if watches else 2 * limit_s)
                continue
            if answer is not None and "progress" in answer and progress is not None:
                progress(answer["progress"])
            if answer is None and life.killed and not shrinks:
                return None
            self._note(state, rank, answer, members)
        if state.left or (shrinks and life.killed and state.result is None):
            return state.left
        if state.failed_s is None and state.result is not None:
            return state.result
        fates = "; ".join(self._children[rank].fate() for rank in sorted(state.lost))
        self._end()
        return state.failure(fates)

    def _note(self, state: RunState, rank: int, answer: _Answer, members: Sequence[int]) -> None:
        if answer is not None:
            state.note_answer(rank, answer)
        elif state.note_end(rank):
            Control(FileStore(str(self._store), -1), 0, len(members)).note_death(members.index(rank))

    def _join(self, members: Sequence[int], anew: bool) -> None:
        """Join these processes in a group of their own, unless they are in one.

        ``anew`` reconnects them, so that a run finds TCP as a job does that starts.
        """
        workers = len(members)
        if self._joined == workers and not anew:
            return
        if (more := members[-1] + 1 - len(self._children)) > 0:
            check_processes(more)
        allow_open_files(workers)
        try:
            check_room(self._folder)
            for rank in range(len(self._children), members[-1] + 1):
                self._children.append(self._start(rank))
        except BaseException:
            self._end()
            raise
        self._num_joins += 1
        self._store = self._folder / f"store{self._num_joins}"
        self._send(range(workers, self._joined), {"leave": {}})
        timeout_s = max(_START_S, self._timeout_s)
        for place, rank in enumerate(members):
            join = {"rank": place, "size": workers, "store": str(self._store), "timeout_s": timeout_s}
            self._send([rank], {"join": join})
        self._joined = workers

    def _start(self, rank: int) -> _Child:
        process = self._popen(
            rank,
            [sys.executable, "-m", "paceline.realrun", "--serve"],
            self._environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C goes to this process, which ends them
        )
        return _Child(rank, process, self._answers)

    def _send(self, ranks: Iterable[int], order: Mapping[str, Any]) -> None:
        line = json.dumps(order).encode() + b"\n"
        for rank in ranks:
            self._children[rank].send(line)

    def _end(self) -> None:
        for child in self._children:
            child.end()
        for child in self._children:
            child.reap()
        self._children = []
        self._answers = Queue()
        self._joined = 0


class _Child:
    """One process, with threads that read its output."""

    def __init__(
        self, rank: int, process: subprocess.Popen[bytes], answers: Queue[tuple[int, _Answer]]
    ) -> None:
        self._rank = rank
        self._process = process
        self._answers = answers
        self._stopped_since_s: float | None = None
        self._why_ended = ""
        self._last_lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read_answers, self._read_errors)
        ]
        for reader in self._readers:
            reader.start()

    def _read_answers(self) -> None:
        for line in self._process.stdout or ():
            self._answers.put((self._rank, json.loads(line)))
        self._answers.put((self._rank, None))

    def _read_errors(self) -> None:
        for line in self._process.stderr or ():
            self._last_lines.append(line.decode(errors="replace").rstrip())

    def send(self, line: bytes) -> None:
        """Send an order; note a process's end once more, in case it was before this run."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            self._answers.put((self._rank, None))

    def end_if_stopped(self, patience_s: float) -> None:
        """Kill a process once it has been stopped (SIGSTOP) for ``patience_s``; to be polled."""
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
        except OSError:
            return  # it has ended
        if stat.rpartition(")")[2].split()[0] != _STOPPED:
            self._stopped_since_s = None
        elif self._stopped_since_s is None:
            self._stopped_since_s = time.monotonic()
        elif time.monotonic() > self._stopped_since_s + patience_s:
            self._why_ended = f"was stopped for longer than {patience_s:g} s"
            self._process.kill()

    def fate(self) -> str:
        """Description of the process's end, human-readable."""
        try:
            status = self._process.wait(AFTER_A_RECORD_S)  # it has closed its standard output
        except subprocess.TimeoutExpired:
            return f"worker {self._rank} did not end"
        if self._why_ended:
            return f"worker {self._rank} {self._why_ended}"
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        last = next((line for line in reversed(self._last_lines) if line.strip()), "")
        return f"worker {self._rank} {how}" + (f": {last}" if last else "")

    def end(self) -> None:
        """Ask the process to end, and kill it."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.kill()

    def reap(self) -> None:
        """Wait for the process and its readers, and close its pipes."""
        self._process.wait()
        for reader in self._readers:
            reader.join()
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()


def measure_runs(
    scenario: Scenario,
    requests: Iterable[RunRequest],
    processes: RankPool,
    *,
    progress: RunProgress | None = None,
    parts: Parts = NOTHING_KEPT,
) -> Iterator[Result]:
    """Run a scenario's requests for real; yields each result when it is complete.

    Runs kept in ``parts`` are not measured again, and come without timings; new ones are kept there.
    """
    for number, request in enumerate(requests):
        label = scenario.schemes[request.entry].label
        run = parts.find("run", number, label, request.seed)
        if run is not None:
            yield Result(run, ())
            continue
        result = processes.run(request, None if progress is None else partial(progress, label))
        parts.keep("run", number, result.run)
        yield result
