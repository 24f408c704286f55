"""Parallel runs: each goes to an executor as text and comes back as bytes, the same as one by one.

The executor is this machine's processes, or a Dask cluster of the user's.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import platform
import re
import signal
import socket
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache, partial
from itertools import islice
from multiprocessing import resource_tracker
from queue import SimpleQueue
from typing import Any, Final, Protocol, Self

import torch
from pydantic import ConfigDict, TypeAdapter

from ..config.problems import one_line
from ..config.tracking import track
from ..config.user_code import call as user_code
from ..config.user_code.child_process import prepare
from ..config.user_code.code_files import add_folders, code_folders
from ..devices import one_thread
from ..errors import InputError, PacelineError, RunError, shorten
from ..records.run import Run
from ..records.unfinished import NOTHING_KEPT, PartKind, Parts, code_version
from ..scenario.entries import SchemeEntry
from ..scenario.schema import Scenario, dump, parse

MIN_WORK_S: Final = 6.0
"""Seconds of remaining work below which no processes begin: importing torch would take about as long."""

MAX_OUT: Final = 1_000
"""Runs handed out to a given executor at a time."""

MAX_LOST: Final = 3
"""Executors that one run may break."""


@dataclass(frozen=True, eq=False)
class PlannedRun:
    """One scheme, perhaps none of the resolved scenario's, under one seed; kept by kind and number."""

    kind: PartKind
    number: int
    scenario: Scenario
    entry: SchemeEntry
    seed: int
    parts: Parts = NOTHING_KEPT

    def find(self) -> Run | None:
        """The run, if it is kept."""
        return self.parts.find(self.kind, self.number, self.entry.label, self.seed)

    def keep(self, run: Run) -> None:
        """Keep the complete run."""
        self.parts.keep(self.kind, self.number, run)


class RunsProgress(Protocol):
    """Display of the progress of runs."""

    def begin(self, kind: PartKind, runs: int, done: int = 0, /) -> None:
        """Begin ``runs`` runs of a kind, ``done`` of which are complete from before."""

    def __call__(self, label: str, steps: int, /) -> None:
        """Show the mean number of steps of the workers of the run in this process."""

    def complete(self, label: str, /) -> None:
        """Count a complete run."""


RunHere = partial[Run]
"""``simulate.run_here``, or another module's function, with a device and an engine: does a planned run."""


@cache
def num_cores() -> int:
    """Number of cores for this process; quotas of containers count."""
    import joblib  # slow to import

    return int(joblib.cpu_count())


def check_jobs(jobs: int | None) -> None:
    """Raise ``InputError`` if ``jobs`` leaves no process for the runs."""
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: must be at least 1; leave it out to use all cores")


class JobProcesses:
    """Executor for runs: a given one, or processes on this machine; a context manager that ends the latter.

    Processes begin once the duration of runs shows that they are worth their start, and serve all later runs.
    """

    def __init__(self, at_once: int | None = 1, executor: Executor | None = None) -> None:
        """Run all in ``executor``; without one at most ``at_once`` in parallel (None: all cores; 1: here)."""
        self._at_once = at_once
        self.executor = executor
        self.given = executor is not None

    @cached_property
    def window(self) -> int:
        """Number of runs to hand out at a time."""
        return MAX_OUT if self.given else num_cores() if self._at_once is None else self._at_once

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if not self.given and self.executor is not None:
            self.executor.shutdown(wait=True, kill_workers=True)  # type: ignore[call-arg]
            self.executor = None

    def begin(self, most: int) -> None:
        """Begin at most ``most`` processes, which do not run the user's script as multiprocessing's do."""
        from joblib.externals.loky import ProcessPoolExecutor

        self.window = min(self.window, most)
        initial = os.getpid(), code_folders()
        self.executor = ProcessPoolExecutor(self.window, initializer=prepare, initargs=initial)
        resource_tracker.ensure_running()  # else its start unblocks
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # inherited: they load for long
        try:
            self.executor.submit(int)  # starts them
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def submit(self, work: Callable[[str], bytes], text: str) -> Future[bytes]:
        """Hand out a run; broken processes of this machine are replaced by new ones, here alone."""
        assert self.executor is not None
        with suppress(RuntimeError):  # broken, or shut down
            return self.executor.submit(work, text)
        if self.given:
            raise RunError("the executor has ended; what is complete is kept, and the same command continues")
        self.executor.shutdown(wait=False)
        self.begin(self.window)
        return self.executor.submit(work, text)

    def answer_all(self, work: Callable[[str], bytes], orders: Sequence[str], what: str) -> Iterator[Any]:
        """Hand out orders, begin processes if there are none, and yield the JSON of the answers in order.

        Raises ``RunError`` if one order ended ``MAX_LOST`` processes.
        """
        if self.executor is None:
            self.begin(len(orders))
        out, left = deque[tuple[str, Future[bytes]]](), iter(orders)
        for _ in track(what, orders):
            # No more than processes take at once: what waits behind that leaves a traceback at Ctrl-C.
            out.extend((text, self.submit(work, text)) for text in islice(left, 2 * self.window - len(out)))
            text, future = out.popleft()
            for _ in range(MAX_LOST):
                try:
                    answer = json.loads(future.result())
                    break
                except BrokenExecutor:
                    future = self.submit(work, text)
            else:
                raise RunError(f"{MAX_LOST} processes died in one batch; is the memory enough?")
            yield answer

    def run_all(
        self,
        planned: Sequence[PlannedRun],
        run_here: RunHere,
        *,
        progress: RunsProgress | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Iterator[Run]:
        """Do runs and yield them in order; take those that are kept, and keep new ones.

        With one run at a time, each begins when the caller asks for it. ``progress`` and ``warn`` are as for
        ``simulate``.

        Raises:
            RunError: a run ended ``MAX_LOST`` processes, or a given executor is broken.
        """
        kept = [each.find() for each in planned]
        left = [each for each, run in zip(planned, kept, strict=True) if run is None]
        several = self.given or (self._at_once != 1 and len(left) > 1)
        sent = several and left and can_be_sent(left[0].scenario)
        runs = _Runs(deque(left), run_here, progress, warn, self if sent else None)
        try:
            for each, run in zip(planned, kept, strict=True):
                yield runs.take(each) if run is None else run
        finally:
            runs.cancel()


ALONE: Final = JobProcesses()
"""One run at a time, in this process."""


@dataclass(eq=False)
class _Runs:
    """Runs in ``processes`` as soon as these have begun, before that in this one; None: all in this one.

    ``taken_s``: processor time of ``num_here`` complete runs in this process.
    """

    left: deque[PlannedRun]
    run_here: RunHere
    progress: RunsProgress | None
    warn: Callable[[str], None] | None
    processes: JobProcesses | None
    sent: dict[Future[bytes], PlannedRun] = field(default_factory=dict)
    done: SimpleQueue[Future[bytes]] = field(default_factory=SimpleQueue)
    lost: Counter[PlannedRun] = field(default_factory=Counter)
    complete: dict[PlannedRun, Run] = field(default_factory=dict)
    taken_s: float = 0.0
    num_here: int = 0

    def take(self, wanted: PlannedRun) -> Run:
        """The run, once complete; other runs complete by then are kept, too."""
        while wanted not in self.complete:
            self._hand_out()
            if self.sent:
                self._collect(self.done.get())
            else:
                self._do(self.left.popleft())
        return self.complete.pop(wanted)

    def cancel(self) -> None:
        for future in self.sent:
            future.cancel()

    def _do(self, planned: PlannedRun) -> None:
        begin_s = time.process_time()

        def follow(label: str, steps: int) -> None:
            if self.progress is not None:
                self.progress(label, steps)
            self._begin_where_worth(self.taken_s + time.process_time() - begin_s, self.num_here + 1)
            self._hand_out()

        watched = self.progress is not None or self.processes is not None
        self._add(planned, self.run_here(planned, follow if watched else None, self.warn))
        self.taken_s += time.process_time() - begin_s
        self.num_here += 1
        self._begin_where_worth(self.taken_s, self.num_here)

    def _begin_where_worth(self, taken_s: float, runs: int) -> None:
        """Begin processes if the remaining work is worth it, at ``taken_s`` for ``runs``."""
        processes, left_s = self.processes, taken_s / runs * len(self.left)
        if processes is None or processes.executor is not None or not self.left or left_s < MIN_WORK_S:
            return
        if processes.window > 1:
            processes.begin(len(self.left))

    def _add(self, planned: PlannedRun, run: Run) -> None:
        self.complete[planned] = run
        planned.keep(run)
        if self.progress is not None:
            self.progress.complete(run.label)

    def _hand_out(self) -> None:
        """Hand out runs; one that was lost twice goes alone, to show whether it ends its process itself."""
        processes = self.processes
        while processes is not None and processes.executor is not None and self.left:
            out = [each for future, each in self.sent.items() if not future.done()]
            doubtful = any(self.lost[each] == MAX_LOST - 1 for each in (*out, self.left[0]))
            if len(out) >= (1 if doubtful else processes.window):
                return
            planned = self.left.popleft()
            work, text = partial(run_text, self.run_here.func), _text(planned, *self.run_here.args)
            future = processes.submit(work, text)
            self.sent[future] = planned
            future.add_done_callback(self.done.put)

    def _collect(self, future: Future[bytes]) -> None:
        planned = self.sent.pop(future)
        try:
            run, warnings, misfit = _ANSWER.validate_json(future.result())
        except BrokenExecutor:
            self.lost[planned] += 1
            if self.lost[planned] == MAX_LOST:
                raise RunError(
                    f"{shorten(planned.entry.label)}, seed {planned.seed}: {MAX_LOST} processes that ran it "
                    "have died, the last one with nothing beside it; is the memory enough?"
                ) from None
            self.left.appendleft(planned)
            return
        if misfit:
            raise InputError(misfit)
        if self.warn is not None:
            for sentence in warnings:
                self.warn(sentence)
        if run is None:  # raises its error again
            run = self.run_here(planned, None, self.warn)
        self._add(planned, run)


def can_be_sent(scenario: Scenario) -> bool:
    """Whether another process can read this scenario from its text, with its code."""
    text = dump(scenario)
    if user_code.names_given(text):
        return False
    try:
        return parse(text) == scenario
    except InputError:
        return False


def order_of(device: torch.device | None, **content: Any) -> str:
    """Text of an order for another process, for ``at_work``; plain ``content``."""
    where = None if device is None else str(device)
    return json.dumps(dict(code=code_version(), folders=code_folders(), device=where, **content))


def _text(planned: PlannedRun, device: torch.device | None, engine: str) -> str:
    alone = planned.scenario.model_copy(update={"schemes": (planned.entry,)})
    return order_of(
        device, scenario=dump(alone), kind=planned.kind, number=planned.number, seed=planned.seed,
        engine=engine,
    )  # fmt: skip


_ANSWER: Final = TypeAdapter(
    tuple[Run | None, list[str], str], config=ConfigDict(ser_json_inf_nan="constants")
)
"""A run and its warnings, or why this process can do no run of the other; none: it has an error to raise."""

_read = lru_cache(maxsize=16)(parse)
_ONE_AT_A_TIME: Final = threading.Lock()
"""Runs share tensors and torch's number of threads; an executor may have several threads a process."""


@contextmanager
def at_work(text: str) -> Iterator[dict[str, Any]]:
    """Read an order in a process of an executor, and have one torch thread and no other order meanwhile.

    Raises ``InputError`` if the process has not the code of the one that wrote it.
    """
    order: dict[str, Any] = json.loads(text)
    with _ONE_AT_A_TIME, one_thread():
        if order["code"] != code_version():
            raise InputError(f"{code_version()}, and this process {order['code']}")
        if order["folders"] != code_folders():  # another process
            add_folders(order["folders"])
        usual = gc.get_threshold()
        gc.unfreeze()
        gc.set_threshold(50_000, 20, 50)  # a batch of settings makes many objects that stay
        try:
            yield order
        finally:
            gc.set_threshold(*usual)
            gc.freeze()  # loky looks through everything after each second, which takes as long as a short run


def run_text(run_here: Callable[..., Run], text: str) -> bytes:
    """Do a planned run in a process of an executor, from text that ``JobProcesses`` wrote, to bytes."""
    run, warnings, misfit = None, list[str](), ""
    try:
        with at_work(text) as order:
            scenario = _read(order["scenario"])
            device = None if order["device"] is None else torch.device(order["device"])
            planned = PlannedRun(order["kind"], order["number"], scenario, scenario.schemes[0], order["seed"])
            with suppress(PacelineError):
                run = run_here(device, order["engine"], planned, None, warnings.append)
    except InputError as error:
        misfit = f"an executor on {platform.node()} has not the code of this process: {error}"
    return _ANSWER.dump_json((run, warnings, misfit))


_ADDRESS: Final = re.compile(
    r"(?:(?:tcp://)?(localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])|tls://[\w.:[\]-]+):([0-9]{1,5})", re.ASCII
)
"""Beyond this machine with TLS alone: who listens there could run anything."""
_ANSWER_S: Final = 8
_TLS: Final = " (Dask's settings 'distributed.comm.tls' name the certificates)"


@contextmanager
def connect(address: str | None) -> Iterator[Executor | None]:
    """Connect to a Dask scheduler for the block, with the security of Dask's own configuration; None: not.

    Raises:
        InputError: ``distributed`` is missing, nothing answers, or an address beyond this machine has no TLS.
        RunError: the scheduler, or worker after worker, died.
    """
    if address is None:
        yield None
        return
    named = f"--dask {shorten(address)}"
    match = _ADDRESS.fullmatch(address)
    if match is None or not 0 < int(match[2]) < 1 << 16:
        raise InputError(
            f"{named}: write tcp://127.0.0.1:8786; beyond this machine only with TLS, tls://HOST:PORT{_TLS}"
        )
    try:
        from distributed import Client, KilledWorker
    except ImportError:
        raise InputError("--dask needs a library: pip install 'paceline[dask]'") from None
    for name in ("distributed", "distributed.client"):  # errors are told here, in a line
        logging.getLogger(name).setLevel(logging.CRITICAL)
    try:
        if match[1]:  # a scheduler begins with the length of its greeting; Dask would wait for ever
            with socket.create_connection((match[1].strip("[]"), int(match[2])), _ANSWER_S) as connection:
                length = connection.recv(8, socket.MSG_WAITALL)
                if len(length) < 8 or not 0 < int.from_bytes(length, "little") < 1 << 20:
                    raise OSError("what listens there is no scheduler of Dask")
        client = Client(address, timeout=_ANSWER_S, set_as_default=False)
    except Exception as error:  # of many kinds, by the protocol
        raise InputError(f"{named}: {one_line(str(error), 200)}{'' if match[1] else _TLS}") from error
    with client:
        try:
            yield client.get_executor(pure=False)
        except (KilledWorker, CancelledError) as error:
            who = ("each worker that did one of the runs", "the scheduler")[isinstance(error, CancelledError)]
            raise RunError(f"{named}: {who} died; the same command continues") from error
