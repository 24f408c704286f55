"""Parallel runs: each in one process, with one torch thread, and the same bytes as one by one."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final, Protocol, Self, TypeVar

from ..config.user_code import call as user_code
from ..config.user_code.child_process import prepare, tell_parent
from ..config.user_code.code_files import code_folders
from ..devices import one_thread
from ..errors import InputError, PacelineError
from ..records.run import Run
from ..records.unfinished import PartKind
from ..scenario.entries import SchemeEntry
from ..scenario.schema import Scenario, dump, parse

_T = TypeVar("_T")

MIN_WORK_S: Final = 6.0
"""Seconds of remaining work below which no processes begin: importing torch would take about as long."""

_LOOK_S: Final = 0.5
"""Seconds between two looks at the progress of other processes."""


@dataclass(frozen=True)
class PlannedRun:
    """One scheme, perhaps none of the resolved scenario's, under one seed; kept by kind and number.

    ``cores``: number of this machine's cores for it; None: all.
    """

    kind: PartKind
    number: int
    scenario: Scenario
    entry: SchemeEntry
    seed: int
    cores: int | None = 1

    def threads(self) -> int:
        """Torch threads for the run."""
        return threads_on(self.cores)


class RunsProgress(Protocol):
    """Display of the progress of runs."""

    def __call__(self, label: str, steps: int, /) -> None:
        """Show the mean number of steps of the workers of a run without others beside it."""

    def beside(self, complete: Sequence[tuple[str, int]], under_way: Sequence[tuple[str, int]]) -> None:
        """Show parallel runs by label and steps: complete ones that are not yielded yet, and begun ones."""


class KeepsRuns(Protocol):
    """Store of complete runs; ``records.unfinished.Parts`` is one."""

    def find(self, kind: PartKind, number: int, label: str, seed: int, /) -> Run | None:
        """Return a kept run, if it is the one of this label and seed."""

    def keep(self, kind: PartKind, number: int, run: Run, /) -> None:
        """Keep a complete run."""


RunHere = Callable[[PlannedRun, Callable[[str, int], None] | None, Callable[[str], None] | None], Run]
"""Do a planned run in this process, with callbacks for its progress and for warnings."""


@cache
def num_cores() -> int:
    """Number of cores for this process; quotas of containers count."""
    import joblib  # slow to import

    return int(joblib.cpu_count())


def threads_on(cores: int | None) -> int:
    """Torch threads for a budget of ``cores``; None: all."""
    number = 1 if cores == 1 else min(num_cores(), cores or num_cores())
    return number if _can_start(number - 1) else 1


@cache
def _can_start(number: int) -> bool:
    """Whether the system allows ``number`` more threads: a process ends where torch cannot start its own."""
    enough = threading.Event()
    started = []
    try:
        for _ in range(number):
            thread = threading.Thread(target=enough.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError:
        return False
    finally:
        enough.set()
        for thread in started:
            thread.join()
    return True


def check_jobs(jobs: int | None) -> None:
    """Raise ``InputError`` if ``jobs`` leaves no process for the runs."""
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: must be at least 1; leave it out to use all cores")


class JobProcesses:
    """Pool of processes for runs beside this one: a context manager that ends them.

    They begin once the duration of runs shows that they are worth their start, and serve all later runs.
    """

    def __init__(self, at_once: int | None = 1) -> None:
        """Begin no process yet; run at most ``at_once`` in parallel (None: all cores; 1: only here)."""
        self._at_once = at_once
        self._others: _Others | None = None

    def threads(self) -> int:
        """Torch threads for work without other runs beside it."""
        return threads_on(self._at_once)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._others is not None:
            self._others.close()
            self._others = None

    def run_all(
        self,
        planned: Sequence[PlannedRun],
        run_here: RunHere,
        *,
        parts: KeepsRuns,
        progress: RunsProgress | None = None,
        warn: Callable[[str], None] | None = None,
    ) -> Iterator[Run]:
        """Do runs and yield them in order; take those in ``parts``, and keep new ones there.

        With one run at a time, each begins when the caller asks for it. ``run_here`` is a function of a
        module, since other processes import it; ``progress`` and ``warn`` are as for ``simulate``.
        """
        kept = [parts.find(each.kind, each.number, each.entry.label, each.seed) for each in planned]
        left = [each for each, run in zip(planned, kept, strict=True) if run is None]
        if len(left) == 1:  # nothing goes on beside it
            left = [replace(left[0], cores=self._at_once)]
        runs = _Runs(left, run_here, parts, progress, warn)
        if self._at_once != 1 and left:
            scenario = left[0].scenario
            if self._others is None:
                runs.begin_others = lambda most: self._begin(most) if _can_be_sent(scenario) else None
            elif _can_be_sent(scenario):
                runs.share(self._others)
        try:
            for each, run in zip(planned, kept, strict=True):
                yield runs.take(each) if run is None else run
        finally:
            runs.drop()

    def measure_all(self, scenario: Scenario, measure: Callable[[Scenario, SchemeEntry], _T]) -> list[_T]:
        """Measure each scheme of a resolved scenario, in order, with the help of processes that have begun.

        ``measure`` is a function of a module, since other processes import it, and uses the clock alone.
        """
        entries = scenario.schemes
        left = deque(enumerate(entries))
        futures: dict[int, Future[_T]] = {}
        lock = threading.RLock()  # callbacks take from ``left``, too

        def hand_on(others: _Others) -> None:
            with lock, suppress(RuntimeError):  # they have died
                if left:
                    number, entry = left[0]
                    future = others.executor.submit(_measure_text, measure, _text(scenario, entry))
                    futures[number] = future
                    left.popleft()
                    future.add_done_callback(lambda _: hand_on(others))

        if self._others is not None and _can_be_sent(scenario):
            for _ in range(self._others.number):
                hand_on(self._others)
        measured: dict[int, _T] = {}
        while True:
            with lock:
                if not left:
                    break
                number, entry = left.pop()
            measured[number] = measure(scenario, entry)
        for number, future in futures.items():
            try:
                measured[number] = future.result()
            except BrokenExecutor:
                measured[number] = measure(scenario, entries[number])
        return [measured[number] for number in range(len(entries))]

    def _begin(self, most: int) -> _Others | None:
        at_once = num_cores() if self._at_once is None else self._at_once
        number = min(at_once - 1, most)
        self._others = _Others(number) if number else None
        return self._others


ALONE: Final = JobProcesses()
"""One run at a time, in this process."""


class _Others:
    """Other processes; they end with this one, whatever they do."""

    def __init__(self, number: int) -> None:
        # Unlike those of multiprocessing these processes do not run the user's script again.
        from joblib.externals.loky import ProcessPoolExecutor
        from joblib.externals.loky.backend import get_context

        self.number = number
        context = get_context("loky")
        self.from_children, self._to_parent = context.Pipe(duplex=False)
        begin = os.getpid(), code_folders(), self._to_parent
        self.executor = ProcessPoolExecutor(number, context=context, initializer=prepare, initargs=begin)

    def close(self) -> None:
        self.executor.shutdown(wait=True, kill_workers=True)
        self.from_children.close()
        self._to_parent.close()


class _Runs:
    """Runs done here and, once shared, in other processes.

    ``begin_others`` begins processes for a number of runs; None: there are to be none, or they have begun.
    """

    def __init__(
        self,
        planned: Sequence[PlannedRun],
        run_here: RunHere,
        parts: KeepsRuns,
        progress: RunsProgress | None,
        warn: Callable[[str], None] | None,
    ) -> None:
        self._run_here, self._parts, self._progress, self._warn = run_here, parts, progress, warn
        self._left = deque(planned)
        self._for_here: deque[PlannedRun] = deque()
        self._complete: dict[int, Run] = {}
        self.begin_others: Callable[[int], _Others | None] | None = None
        self._others: _Others | None = None
        self._futures: dict[Future[tuple[Run, list[str]]], PlannedRun] = {}
        self._steps: dict[int, int] = {}
        self._looked_s = time.monotonic()
        self._taken_s, self._num_here = 0.0, 0  # by complete runs in this process, and their number
        # For ``_left`` and ``_futures``: the executor's thread takes from them, too.
        self._lock = threading.RLock()

    def share(self, others: _Others) -> None:
        self._others = others
        self._hand_on(others)

    def _begin_where_worth(self, taken_s: float, runs: int) -> None:
        """Begin other processes if the remaining work is worth it, at ``taken_s`` for ``runs``."""
        left_s = taken_s / runs * len(self._left)
        if self.begin_others is not None and self._left and left_s >= MIN_WORK_S:
            begin, self.begin_others = self.begin_others, None
            others = begin(len(self._left))
            if others is not None:
                self.share(others)

    def take(self, wanted: PlannedRun) -> Run:
        """The run, once complete; other runs complete by then are kept, too."""
        while wanted.number not in self._complete:
            with self._lock:
                mine = self._for_here or self._left
                planned = mine.popleft() if mine else None
            if planned is None:
                wait([*self._futures], timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            else:
                self._do(planned)
            self._look()
        return self._complete.pop(wanted.number)

    def drop(self) -> None:
        with self._lock:
            self._left.clear()

    def _do(self, planned: PlannedRun) -> None:
        begin_s = time.monotonic()
        self._add(planned, self._run_here(planned, self._follow(planned), self._warn))
        self._steps.pop(planned.number, None)
        self._taken_s += time.monotonic() - begin_s
        self._num_here += 1
        self._begin_where_worth(self._taken_s, self._num_here)

    def _add(self, planned: PlannedRun, run: Run) -> None:
        self._complete[planned.number] = run
        self._parts.keep(planned.kind, planned.number, run)

    def _follow(self, planned: PlannedRun) -> Callable[[str, int], None] | None:
        if self._others is None and self.begin_others is None:
            return self._progress

        begin_s = time.monotonic()

        def look(label: str, steps: int) -> None:
            self._steps[planned.number] = steps
            if self._others is None:
                if self._progress is not None:
                    self._progress(label, steps)
                so_far_s = self._taken_s + time.monotonic() - begin_s
                self._begin_where_worth(so_far_s, self._num_here + 1)
            elif time.monotonic() - self._looked_s >= _LOOK_S:
                self._look(planned)

        return look

    def _hand_on(self, others: _Others) -> None:
        with self._lock:
            while self._left and sum(not future.done() for future in self._futures) < others.number:
                each = self._left.popleft()
                which = _text(each.scenario, each.entry), each.kind, each.number, each.seed
                try:
                    future = others.executor.submit(_run_text, self._run_here, *which)
                except RuntimeError:  # they have died, or are ending
                    self._left.appendleft(each)
                    return
                self._futures[future] = each
                future.add_done_callback(lambda _: self._hand_on(others))

    def _look(self, mine: PlannedRun | None = None) -> None:
        """Take complete runs from other processes, and show progress; ``mine`` is the run in this one."""
        self._looked_s = time.monotonic()
        if self._others is None:
            return
        with self._lock:
            done = {future: self._futures.pop(future) for future in [*self._futures] if future.done()}
        for future, each in done.items():
            try:
                run, warnings = future.result()
            except (BrokenExecutor, PacelineError):  # its process died, or the error is to be raised here
                self._for_here.append(each)
                continue
            if self._warn is not None:
                for sentence in warnings:
                    self._warn(sentence)
            self._add(each, run)
        while self._others.from_children.poll():
            number, steps = self._others.from_children.recv_bytes().split()
            self._steps[int(number)] = int(steps)
        if self._progress is not None:
            with self._lock:
                under_way = [*self._futures.values(), *filter(None, [mine])]
            begun = [each for each in under_way if each.number in self._steps]
            self._progress.beside(
                [(run.label, round(run.iterations)) for run in self._complete.values()],
                [(each.entry.label, self._steps[each.number]) for each in begun],
            )


def _can_be_sent(scenario: Scenario) -> bool:
    """Whether another process can read this scenario from its text, with its code."""
    text = dump(scenario)
    if user_code.names_given(text):
        return False
    try:
        return parse(text) == scenario
    except InputError:
        return False


def _text(scenario: Scenario, entry: SchemeEntry) -> str:
    return dump(scenario.model_copy(update={"schemes": (entry,)}))


_read = lru_cache(maxsize=16)(parse)


def _run_text(run_here: RunHere, text: str, kind: PartKind, number: int, seed: int) -> tuple[Run, list[str]]:
    """Do a run in another process than the planning one; return it with its warnings."""
    scenario = _read(text)
    warnings: list[str] = []
    shown_s = 0.0

    def show(_: str, done: int) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= _LOOK_S:
            shown_s = time.monotonic()
            tell_parent(f"{number} {done}".encode())

    gc.unfreeze()
    with one_thread():
        run = run_here(PlannedRun(kind, number, scenario, scenario.schemes[0], seed), show, warnings.append)
    gc.freeze()  # loky looks through everything after each second, which takes as long as a short run
    return run, warnings


def _measure_text(measure: Callable[[Scenario, SchemeEntry], _T], text: str) -> _T:
    scenario = _read(text)
    with one_thread():
        return measure(scenario, scenario.schemes[0])
