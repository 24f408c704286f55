"""Orders to a process that joins groups and takes part in runs, and the state of a run from its answers.

An order is ``{"join": {"rank", "size", "store", "timeout_s"}}`` to meet the others in a new group,
``{"leave": {}}``, or ``{"run": {"request", "timeout_s", "faults", "code", "life"}}``, where ``code`` has the
folders of the scenario's own modules. Answers to a run, or to a failed join, are ``{"progress": steps}``
from rank 0, ``{"result": ...}`` from the collecting rank, ``{"done": rank}`` from every rank, or
``{"error": [kind, text]}``; from a rank whose view is over, ``{"left": exchanges}`` (-1: not healed yet).

A process of the launcher gets orders as lines of JSON on standard input, and answers in lines of JSON on what
was standard output; all other output goes to standard error. For a rank of torchrun or Slurm both go through
the job's control store (``paceline.realrun.launch.launched_job``).
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NoReturn

from torch._C._distributed_c10d import FileStore, Store

from paceline.sim.config.problems import format_message
from paceline.sim.config.user_code.code_files import add_folders
from paceline.sim.errors import InputError, PacelineError, RunError

from ..driver.rank_faults import Life
from ..group.group import Group, join, leave
from .cells import REQUEST, RESULT, Result, run_request

Report = Callable[[Mapping[str, Any]], None]
"""Receives an answer."""

OpenStore = Callable[[str, int], Store]
"""Opens the store of a group, from its name in the order and the number of ranks."""

_PROGRESS_EVERY_S: Final = 0.2


def serve() -> NoReturn:
    """Obey orders until standard input ends or a run fails, and exit."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # libraries must not print between the answers

    def report(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")

    orders = (json.loads(line) for line in sys.stdin)
    status = 1
    try:
        status = obey(orders, report, FileStore)
    except PacelineError as error:
        report(error_answer(error))
    answers.flush()
    os._exit(status)  # helper threads of a failed run may still block in gloo


def obey(orders: Iterable[Mapping[str, Any]], report: Report, open_store: OpenStore) -> int:
    """Obey orders until they end, or a run fails; returns the exit status.

    Raises ``InputError`` for an order without a real run, ``RunError`` if other ranks did not come.
    """
    group: Group | None = None
    abandoned: list[Group] = []
    for each in orders:
        ((order, details),) = each.items()
        if order == "run":
            assert group is not None
            run_order(group, report, **details)
            if group.standing is not None:
                abandoned.append(group)  # gloo would wait for what others have left undone, for ever
            if group.broken:
                return 1
            continue
        if group is not None:
            leave(group)
            group = None
        if order == "join":
            size = details["size"]
            group = join(open_store(details["store"], size), details["rank"], size, details["timeout_s"])
            group.standing = abandoned[-1].standing if abandoned else None
    return 0


def error_answer(error: PacelineError) -> Mapping[str, Any]:
    """The answer of a rank that cannot continue."""
    return {"error": ["InputError" if isinstance(error, InputError) else "RunError", format_message(error)]}


def run_order(
    group: Group,
    report: Report,
    request: Mapping[str, Any],
    timeout_s: float,
    faults: Mapping[str, int],
    code: Sequence[str],
    life: Mapping[str, Any],
) -> None:
    """Take part in a run; errors as ``run_request``."""
    add_folders(code)
    reported_s = 0.0

    def progress(steps: int) -> None:
        nonlocal reported_s
        now_s = time.monotonic()
        if group.rank == 0 and now_s - reported_s >= _PROGRESS_EVERY_S:
            reported_s = now_s
            report({"progress": steps})

    dying = {int(rank): number for rank, number in faults.items()}
    options = {"faults": dying, "life": Life(**life)}
    ended = run_request(group, REQUEST.validate_python(request), timeout_s, progress, **options)
    if group.standing is not None:
        report({"left": group.standing.exchanges if group.standing.states else -1})
        return
    if ended.run is not None:
        report({"result": RESULT.dump_python(Result(ended.run, ended.timings), mode="json")})
    report({"done": group.rank})


AFTER_A_FAILURE_S: Final = 15.0
"""Time for other processes to continue after a failure, beyond the time-out of a wait."""
AFTER_A_RECORD_S: Final = 1.0
"""Time for processes to end after the record of a failed run, or after a death before its first step."""


class RunState:
    """The state of one run; the ``planned`` ranks end on their own, and the others continue.

    Attributes:
        waited: ranks that are not done yet.
        begun: whether the first rank has done a step.
        left: ranks that have left their view, and after how many exchanges.
        lost: ranks whose processes ended without reporting an error.
        result: the record, once it is there.
        failed_s: time of the first sign of failure; None: none.
    """

    def __init__(self, members: Iterable[int], planned: frozenset[int]) -> None:
        self.waited = set(members)
        self.left: dict[int, int] = {}
        self._planned = planned
        self.begun = False
        self.lost: set[int] = set()
        self.result: Result | None = None
        self.failed_s: float | None = None
        self._errors: dict[int, tuple[str, str]] = {}

    def note_answer(self, rank: int, answer: Mapping[str, Any]) -> None:
        """Record an answer of a rank."""
        if "result" in answer:
            self.result = RESULT.validate_python(answer["result"])
            if self.result.run.status == "partial":
                self._fail()
        elif "error" in answer:
            kind, text = answer["error"]
            self._errors[rank] = (kind, text)
            self._fail()
        elif "left" in answer:
            self.left[rank] = answer["left"]
            self.waited.discard(rank)
        elif "done" in answer:
            self.waited.discard(rank)
        elif "progress" in answer:
            self.begun = True

    def note_end(self, rank: int) -> bool:
        """Record the end of a rank's process; returns whether to tell the others."""
        if rank not in self.waited:
            return False
        self.waited.discard(rank)
        if rank in self._planned:
            return True
        self._fail()
        if rank in self._errors:
            return False
        self.lost.add(rank)
        return True

    def lost_patience(self, timeout_s: float) -> bool:
        """Whether the others have had time enough after a failure; less once the record is there."""
        soon = self.result is not None or (self.lost and not self.begun)
        more_s = AFTER_A_RECORD_S if soon else timeout_s + AFTER_A_FAILURE_S
        return self.failed_s is not None and time.monotonic() > self.failed_s + more_s

    def _fail(self) -> None:
        if self.failed_s is None:
            self.failed_s = time.monotonic()

    def failure(self, fates: str) -> Result:
        """Record of a failed run, with one message for all failures; raises that if there is no record."""
        added = f" ({fates})" if fates else ""
        if self.result is not None:
            run = self.result.run
            return replace(self.result, run=replace(run, status="partial", message=run.message + added))
        if self._errors:
            kind, text = self._errors[min(self._errors)]
            raise InputError(text) if kind == "InputError" else RunError(text + added)
        raise RunError(fates or "the processes ended without a word")
