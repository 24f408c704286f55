"""Many runs on all cores: each in one process, with one torch thread, and the same bytes as one by one."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol

from ..config import user_code
from ..config.child_process import prepare, tell_parent
from ..config.code_files import code_folders
from ..devices import one_thread
from ..errors import InputError, PacelineError
from ..records.run import Run
from ..records.unfinished import PartKind
from ..scenario.entries import SchemeEntry
from ..scenario.schema import Scenario, dump, parse

MIN_WORK_S: Final = 6.0
"""Seconds of work left below which no processes are started: they would import torch for about as long."""

_LOOK_S: Final = 0.5
"""Seconds between two looks at how far the runs of other processes are."""


@dataclass(frozen=True)
class PlannedRun:
    """One scheme of a scenario under one seed.

    Attributes:
        kind, number: as it is kept.
        scenario: resolved.
        entry: the scheme, which need not be one of the scenario's.
        seed: of the run.
    """

    kind: PartKind
    number: int
    scenario: Scenario
    entry: SchemeEntry
    seed: int


class RunsProgress(Protocol):
    """Shows how far runs are."""

    def __call__(self, label: str, steps: int, /) -> None:
        """The workers of the one run that is under way have done so many steps on average."""

    def beside(self, complete: Sequence[tuple[str, int]], under_way: Sequence[tuple[str, int]]) -> None:
        """Runs go on beside each other.

        Args:
            complete: label and steps of those that are complete and have not been yielded yet.
            under_way: likewise, of those that have begun.
        """


class KeepsRuns(Protocol):
    """Where complete runs are kept; ``records.unfinished.Parts`` is one."""

    def find(self, kind: PartKind, number: int, label: str, seed: int, /) -> Run | None:
        """Return a run that is there already, if it is the one of this label and seed."""

    def keep(self, kind: PartKind, number: int, run: Run, /) -> None:
        """Keep a run that is complete."""


RunHere = Callable[[PlannedRun, Callable[[str, int], None] | None, Callable[[str], None] | None], Run]
"""Does a planned run in this process; it is given what to call with its progress, and with warnings."""


def num_cores() -> int:
    """How many cores this process may use; quotas of containers count."""
    import joblib  # slow to import

    return int(joblib.cpu_count())


def check_jobs(jobs: int | None) -> None:
    """Raise ``InputError`` where there would be no process to do anything."""
    if jobs is not None and jobs < 1:
        raise InputError(f"--jobs {jobs}: must be at least 1; leave it out to use all cores")


def run_all(
    planned: Sequence[PlannedRun],
    run_here: RunHere,
    jobs: int | None,
    *,
    parts: KeepsRuns,
    progress: RunsProgress | None = None,
    warn: Callable[[str], None] | None = None,
) -> Iterator[Run]:
    """Do runs and yield them in order; what ``parts`` has is not done again, and what is new is kept there.

    The first one is done in this process, and shows whether it is worth while to start others.

    Args:
        planned: the runs.
        run_here: does one; a function of a module, since other processes import it.
        jobs: at most so many at a time; None: as many as there are cores; 1: each begins when it is wanted.
        parts: where complete runs are kept.
        progress, warn: as for ``simulate``.
    """
    others: _OtherProcesses | None = None
    begin_s = time.monotonic()
    worth_while = jobs != 1
    try:
        for index, each in enumerate(planned):
            run = parts.find(each.kind, each.number, each.entry.label, each.seed)
            if run is not None:
                yield run
                continue
            if others is not None:
                yield others.take(each)
                continue
            run = run_here(each, progress, warn)
            parts.keep(each.kind, each.number, run)
            if worth_while:
                left = [
                    later
                    for later in planned[index + 1 :]
                    if parts.find(later.kind, later.number, later.entry.label, later.seed) is None
                ]
                took_s = time.monotonic() - begin_s
                if took_s * len(left) >= MIN_WORK_S and _can_be_sent(each.scenario):
                    at_once = min(num_cores() if jobs is None else jobs, len(left))
                    if at_once > 1:
                        others = _OtherProcesses(left, run_here, at_once, parts, progress, warn)
                worth_while = False
            yield run
    finally:
        if others is not None:
            others.close()


def _can_be_sent(scenario: Scenario) -> bool:
    """Whether another process reads this scenario from its text, with the code that it names."""
    text = dump(scenario)
    if user_code.names_given(text):
        return False
    try:
        return parse(text) == scenario
    except InputError:
        return False


class _OtherProcesses:
    """Runs in other processes, at most ``jobs`` at a time; they end with this process, and with ``close``."""

    def __init__(
        self,
        planned: Sequence[PlannedRun],
        run_here: RunHere,
        jobs: int,
        parts: KeepsRuns,
        progress: RunsProgress | None,
        warn: Callable[[str], None] | None,
    ) -> None:
        # Unlike those of multiprocessing these processes do not run the user's script again.
        from joblib.externals.loky import ProcessPoolExecutor
        from joblib.externals.loky.backend import get_context

        self._run_here, self._parts, self._progress, self._warn = run_here, parts, progress, warn
        context = get_context("loky")
        self._from_children, self._to_parent = context.Pipe(duplex=False)
        self._steps: dict[int, int] = {}
        begin = os.getpid(), code_folders(), self._to_parent
        self._executor = ProcessPoolExecutor(jobs, context=context, initializer=prepare, initargs=begin)
        self._planned = list(planned)
        self._complete: dict[int, Run] = {}
        self._futures: dict[Future[tuple[Run, list[str]]], PlannedRun] = {}
        for each in planned:
            which = each.kind, each.number, each.seed
            self._futures[self._executor.submit(_run_text, run_here, _text(each), *which)] = each

    def take(self, wanted: PlannedRun) -> Run:
        """The run, once it is complete; whatever is complete meanwhile is kept."""
        while wanted.number not in self._complete:
            done, _ = wait(self._futures, timeout=_LOOK_S, return_when=FIRST_COMPLETED)
            for future in done:
                each = self._futures.pop(future)
                self._complete[each.number] = run = self._result(each, future)
                self._parts.keep(each.kind, each.number, run)
            self._show()
        return self._complete.pop(wanted.number)

    def _result(self, each: PlannedRun, future: Future[tuple[Run, list[str]]]) -> Run:
        try:
            run, warnings = future.result()
        except (BrokenExecutor, PacelineError):  # of a process that died, or the error is to be raised here
            return self._run_here(each, self._progress, self._warn)
        if self._warn is not None:
            for sentence in warnings:
                self._warn(sentence)
        return run

    def _show(self) -> None:
        """Say how far the runs are."""
        while self._from_children.poll():
            number, steps = self._from_children.recv_bytes().split()
            self._steps[int(number)] = int(steps)
        if self._progress is not None:
            left = [each for each in self._futures.values() if each.number in self._steps]
            self._progress.beside(
                [(run.label, round(run.iterations)) for run in self._complete.values()],
                [(each.entry.label, self._steps[each.number]) for each in left],
            )

    def close(self) -> None:
        """End the processes, whatever they do."""
        self._executor.shutdown(wait=True, kill_workers=True)
        self._from_children.close()
        self._to_parent.close()


def _text(planned: PlannedRun) -> str:
    """The scenario with this scheme alone."""
    return dump(planned.scenario.model_copy(update={"schemes": (planned.entry,)}))


_read = lru_cache(maxsize=16)(parse)


def _run_text(run_here: RunHere, text: str, kind: PartKind, number: int, seed: int) -> tuple[Run, list[str]]:
    """Do a run in another process than the one that planned it; returns it with its warnings."""
    scenario = _read(text)
    warnings: list[str] = []
    shown_s = 0.0

    def show(_: str, done: int) -> None:
        nonlocal shown_s
        if time.monotonic() - shown_s >= _LOOK_S:
            shown_s = time.monotonic()
            tell_parent(f"{number} {done}".encode())

    with one_thread():
        run = run_here(PlannedRun(kind, number, scenario, scenario.schemes[0], seed), show, warnings.append)
    return run, warnings
