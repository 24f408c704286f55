"""The state of one run from its ranks' answers, and the time to give up waiting for more."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from paceline.sim.errors import InputError, RunError

from .cells import RESULT, Result

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
