"""The ranks of a job started by torchrun or Slurm: they do one run after another.

Worker 0 gives orders and takes part itself; the others obey. Orders and answers (see
``paceline.realrun.launch.cells``) go through the job's control store. An idle connection between worker 0
and each other worker reveals the death of a process, whatever it was doing.
"""

from __future__ import annotations

import hashlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping
from contextlib import suppress
from types import FrameType
from typing import Any, Final, Self

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store
from typing_extensions import override

from paceline.sim.config.user_code.code_files import code_files
from paceline.sim.errors import InputError, PacelineError, RunError
from paceline.sim.records.unfinished import code_version
from paceline.sim.scenario.schema import Scenario, dump, parse

from ..group.group import Group, join, leave, meet
from ..group.hosts import host_name, workers_of
from ..group.job_store import JobStore
from ..group.store import Control, SignsOfLife, check_timeout, torchrun_store
from ..transport.connections import PROBE_TAG, PeerGone, finish, receive
from .cells import REQUEST, RankPool, Result, RunRequest, RunState, error_answer, obey, run_order

_IDLE_LOOK_S: Final = 0.1
"""Poll interval for orders on an idle rank."""
_ANSWER_LOOK_S: Final = 0.02
"""Poll interval for answers on worker 0, after its own part of a run."""
_ENDS: Final = (signal.SIGTERM, signal.SIGINT)
"""Signals by which torchrun and Slurm announce the end, also after the death of another rank on the host."""
_ENDED: Final = "the job was ended from outside, or one of its ranks on this host has died"


_TO_READ_S: Final = 300.0
"""Time limit for a rank to read a scenario while the others wait; a silent rank has the timeout."""


def meet_ranks(
    environment: MutableMapping[str, str],
    how: str,
    read: Callable[[], Scenario],
    timeout_s: float,
    every_rank: bool,
) -> tuple[JobStore, int, int, Scenario]:
    """Meet a job's other ranks; returns its store, this rank's worker, their number and the scenario.

    Args:
        how: advice in the error about starting the processes.
        read: reads the scenario, which must be alike on all ranks.
        timeout_s: time limit of any wait.
        every_rank: whether each rank must be a worker.

    Raises:
        InputError: a rank cannot read the scenario, reads another one, or the ranks do not fit it.
        RunError: a rank did not come.
    """
    check_timeout("--timeout", timeout_s)
    store, rank, size = torchrun_store(environment, timeout_s, how)
    control = Control(store, rank, size, life=SignsOfLife(store, rank, timeout_s, "rank"))
    text = problem = ""
    try:
        text = dump(read())
    except InputError as error:
        problem = str(error)
    problems = control.meet("scenario", problem, max(timeout_s, _TO_READ_S))
    if any(problems):
        first, why = next((rank, text) for rank, text in enumerate(problems) if text)
        raise InputError(why if len(set(problems)) == 1 else f"rank {first}: {why}")
    own = b"".join(path.read_bytes() for _, path in sorted(code_files().items()))
    hashed, hashed_own = (hashlib.sha256(each).hexdigest()[:12] for each in (text.encode(), own))
    facts = {
        "a scenario with hash": hashed,
        "schemes and tasks with hash": hashed_own,
        "Paceline's code with hash": code_version().partition(",")[0],
    }
    control.agree("arguments", facts, timeout_s)
    scenario = parse(text)
    workers = scenario.cluster.workers
    if workers > size or (every_rank and workers != size):
        raise InputError(f"the scenario has {workers} workers, but {size} processes were started")
    if scenario.cluster.faults or any(straggler.crash for straggler in scenario.cluster.stragglers):
        raise InputError(
            "torchrun ends all processes when one crashes: let 'paceline realrun --processes' or --lab start "
            "them, or leave out cluster.faults, and crash of cluster.stragglers"
        )
    names = control.meet("hosts", host_name(), timeout_s)
    return store, workers_of(names, scenario.cluster.hosts)[rank], size, scenario


class Mailbox:
    """A one-way queue of values between two ranks; each side has one, under the same ``name``."""

    def __init__(self, control: Control, name: str) -> None:
        self._control, self._name, self._next = control, name, 0

    def put(self, value: Mapping[str, Any]) -> None:
        """Send a value that JSON can hold."""
        self._control.put(self._key(), value)
        self._next += 1

    def take(self) -> Mapping[str, Any] | None:
        """Receive the next value; None if it is not there yet."""
        if not self._control.has(self._key()):
            return None
        value: Mapping[str, Any] = self._control.get(self._key())
        self._next += 1
        return value

    def _key(self) -> str:
        return f"{self._name}/{self._next}"


def watch_peers(gloo: dist.ProcessGroupGloo, peers: Iterable[int], lost: Callable[[int], None]) -> None:
    """Call ``lost`` with each peer whose connection closes, from a thread per peer.

    Each thread waits in a receive without a sender.
    """

    def watch(peer: int) -> None:
        try:
            finish(receive(gloo, torch.empty(1, dtype=torch.uint8), peer, PROBE_TAG), peer)
        except PeerGone:
            lost(peer)

    for peer in peers:
        threading.Thread(target=watch, args=(peer,), daemon=True).start()


class _JobMember:
    """One side of a job: its idle connections and the ``lost`` workers."""

    def __init__(self, store: Store, worker: int, size: int, timeout_s: float, peers: Iterable[int]) -> None:
        self.control = Control(PrefixStore("orders", store), worker, size)
        self.lost: set[int] = set()
        self._store = store
        self._latest: Control | None = None
        self._idle = meet(PrefixStore("idle connections", store), worker, size, timeout_s)
        watch_peers(self._idle.gloo, peers, self._lose)

    def open_store(self, name: str, size: int) -> Store:
        store = PrefixStore(name, self._store)
        self._latest = Control(store, self.control.rank, size)
        for worker in self.lost:
            self._latest.note_death(worker)
        return store

    def _lose(self, worker: int) -> None:
        self.lost.add(worker)
        if self._latest is not None:  # others may wait for it in a run, or at its start
            with suppress(RunError):  # the store may be lost as well
                self._latest.note_death(worker)


class JobRanks(RankPool):
    """The ranks of a job, as seen by worker 0: a context manager.

    A job's ranks cannot be restarted: a failed run is the last one. Inside the block the signals that
    announce the job's end raise ``RunError`` between runs; during one this rank continues, to collect what
    there is. ``timeout_s`` limits any wait in a run. Raises ``RunError`` where a rank did not come.
    """

    def __init__(self, store: Store, size: int, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._member = _JobMember(store, 0, size, timeout_s, range(1, size))
        self._orders = [Mailbox(self._member.control, f"orders/{worker}") for worker in range(size)]
        self._answers = [Mailbox(self._member.control, f"answers/{worker}") for worker in range(size)]
        self._group: Group | None = None
        self._num_joins = 0
        self._running = self._ended = False

    def __enter__(self) -> Self:
        for number in _ENDS:
            signal.signal(number, self._end_soon)
        return self

    def __exit__(self, *error: object) -> None:
        for number in _ENDS:  # only the results are left to write
            signal.signal(number, signal.SIG_IGN)

    @override
    def run(self, request: RunRequest, progress: Callable[[int], None] | None = None) -> Result:
        if self._ended:
            raise RunError(_ENDED)
        self._running = True
        try:
            return self._run(request, progress)
        finally:
            self._running = False

    def _run(self, request: RunRequest, progress: Callable[[int], None] | None) -> Result:
        workers = request.workers
        group = self._join(workers, request.connects_anew)
        order = {
            "request": REQUEST.dump_python(request), "timeout_s": self._timeout_s, "faults": {}, "code": [],
            "life": {},
        }  # fmt: skip
        self._send(range(1, workers), {"run": order})
        state = RunState(range(workers), frozenset())

        def report(answer: Mapping[str, Any]) -> None:
            _note(state, 0, answer)
            if "progress" in answer and progress is not None:
                progress(answer["progress"])

        try:
            run_order(group, report, **order)
        except PacelineError as error:
            report(error_answer(error))
        self._await_answers(state)
        if state.failed_s is None and state.result is not None:
            return state.result
        group.broken = True
        lost = ", ".join(f"worker {worker}" for worker in sorted(state.lost))
        return state.failure(f"{lost} ended" if lost else "")

    def end(self, status: int) -> None:
        """Have all other ranks end with an exit status; this one is to end next."""
        with suppress(RunError):  # without the store they notice this rank's end
            self._send(range(1, self._member.control.size), {"end": {"status": status}})

    def _await_answers(self, state: RunState) -> None:
        while state.waited and not state.lost_patience(self._timeout_s):
            for worker in sorted(state.waited):
                while (answer := self._answers[worker].take()) is not None:
                    _note(state, worker, answer)
                if worker in self._member.lost:
                    state.note_end(worker)
            time.sleep(_ANSWER_LOOK_S)

    def _join(self, workers: int, anew: bool) -> Group:
        """Join the first ``workers`` ranks in a group of their own, unless they are in one.

        ``anew`` reconnects them, so that a run finds TCP as a job does that starts.
        """
        if self._group is not None:
            if self._group.broken:
                raise RunError("a run has failed, and the ranks of a job are not started anew")
            if self._group.size == workers and not anew:
                return self._group
            self._send(range(workers, self._group.size), {"leave": {}})
        self._num_joins += 1
        name = f"group {self._num_joins}"
        for worker in range(1, workers):
            order = {"rank": worker, "size": workers, "store": name, "timeout_s": self._timeout_s}
            self._send([worker], {"join": order})
        if self._group is not None:
            leave(self._group)
        self._group = join(self._member.open_store(name, workers), 0, workers, self._timeout_s)
        return self._group

    def _send(self, workers: Iterable[int], order: Mapping[str, Any]) -> None:
        for worker in workers:
            self._orders[worker].put(order)

    def _end_soon(self, number: int, frame: FrameType | None) -> None:
        self._ended = True
        if not self._running:
            raise RunError(_ENDED)


def _note(state: RunState, worker: int, answer: Mapping[str, Any]) -> None:
    state.note_answer(worker, answer)
    if "error" in answer:  # a job's rank survives, and waits for the end
        state.waited.discard(worker)


def follow(store: Store, worker: int, size: int, timeout_s: float) -> int:
    """Obey worker 0 until it ends the job; returns the exit status. ``RunError``: worker 0 was lost."""
    member = _JobMember(store, worker, size, timeout_s, [0])
    orders, answers = (Mailbox(member.control, f"{way}/{worker}") for way in ("orders", "answers"))
    status: int | None = None

    def incoming() -> Iterator[Mapping[str, Any]]:
        nonlocal status
        while status is None:
            lost = 0 in member.lost  # read first: its last order may come just before its end
            order = orders.take()
            if order is None:
                if lost:
                    raise RunError("worker 0, which gives the orders, was lost")
                time.sleep(_IDLE_LOOK_S)
            elif "end" in order:
                status = order["end"]["status"]
            else:
                yield order

    try:
        obey(incoming(), answers.put, member.open_store)
    except PacelineError as error:
        if 0 in member.lost:
            raise
        answers.put(error_answer(error))
    for _ in incoming():  # after a failure only the end matters
        pass
    assert status is not None
    return status
