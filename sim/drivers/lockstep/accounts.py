"""Time accounts of all workers: operations as vectors over workers, of one job or of several in rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ...collectives.collective import Sends, add_up
from ...records.accounting import EventLog, TimeBreakdown
from ...records.run import HALF_SUM, RESUMPTIONS, UNTIMED_ENCODING, Event
from ...seeds import Floats, Integers

_NO_OPERATIONS: Final = RESUMPTIONS | {"next_step"}
"""Names of rows that belong to another operation, or to none."""


@dataclass(frozen=True, slots=True, eq=False)
class StackedOperation:
    """One operation of all workers; vectors [n], or rows of jobs [jobs, n], in seconds on the run's clock.

    Attributes:
        name: as in ``Event``.
        step: number of steps published before it, or the step that ``next_step`` refused.
        start_s, end_s: of each worker.
        peer_s: when the last peer that each worker needed had started.
        known_s: from when on the event driver knows ``peer_s``: a worker cut off before has waited so far;
            None: it knows nothing of peers before the end, and counts no waiting.
        blocks: whether the coroutine was blocked meanwhile.
        num_bytes: sent by each worker: one number for all, or one each, alike in all jobs.
        peer: as in ``Event``: one for all workers, or one each.
        handle: number of the started operation that it is about, -1 for an awaited one.
        in_half: whether values are added up in 16 bits.
        sends: its messages; None: it has none.
    """

    name: str
    step: int
    start_s: Floats
    end_s: Floats
    peer_s: Floats
    known_s: Floats | None
    blocks: bool = True
    num_bytes: int | Integers = 0
    peer: int | Integers = -1
    handle: int = -1
    in_half: bool = False
    sends: Sends | None = None

    def of_job(self, row: int) -> StackedOperation:
        """The operation of one of several jobs."""
        return replace(
            self,
            start_s=self.start_s[row],
            end_s=self.end_s[row],
            peer_s=self.peer_s[row],
            known_s=None if self.known_s is None else self.known_s[row],
            peer=self.peer[row] if np.ndim(self.peer) > 1 else self.peer,  # type: ignore[index]
        )

    def until(self, time_s: float, instant_s: float) -> StackedOperation | None:
        """The part that has happened by ``time_s``, at which the run is cut off; None: nothing.

        Ends up to ``instant_s`` are at the same instant. A worker that has not begun is not blocked, and one
        that has not ended has sent nothing.
        """
        if self.start_s.min() > instant_s:
            return None
        ended = self.end_s <= instant_s
        if ended.all():
            return self
        so_far_s = self.start_s
        if self.known_s is not None:
            so_far_s = np.where(self.known_s <= time_s, self.peer_s, time_s)
        return replace(
            self,
            start_s=np.minimum(self.start_s, time_s),
            end_s=np.where(ended, self.end_s, time_s),
            peer_s=np.where(ended, self.peer_s, so_far_s),
        )


MAX_KEPT_SENDS: Final = 64
"""Most sends counted apart; a scheme repeats few."""


class StackedAccounts:
    """The accounts of all workers of one job, or of several jobs that do the same, in rows.

    Args:
        shape: [n], or [jobs, n].
        log: takes the events at the end; None: none are kept.
        may_be_cut: whether the run may end before its operations do; an operation that may be cut off is then
            not entered before it is certain.
    """

    def __init__(self, shape: tuple[int, ...], log: EventLog | None, may_be_cut: bool) -> None:
        self._workers = shape[-1]
        self._log = log
        self._may_be_cut = may_be_cut
        self._uncertain: deque[StackedOperation] = deque()
        self._rows: list[tuple[StackedOperation, NDArray[np.bool_] | None]] = []
        self._num_rows = 0
        self.names: set[str] = set()
        self._wait_s = np.zeros(shape)
        self._communicate_s = np.zeros(shape)
        self._sent: dict[Sends, int | Integers] = {}  # and how often

    def add(self, operation: StackedOperation) -> None:
        """Enter an operation, or hold it until it is certain that all of it happens."""
        if self._may_be_cut:
            self._uncertain.append(operation)
        else:
            self._enter(operation, None)

    def of_job(self, row: int) -> StackedAccounts:
        """The accounts of one of several jobs, to be cut off or settled by themselves."""
        own = copy(self)
        own._uncertain = deque(each.of_job(row) for each in self._uncertain)
        own._rows = [(each.of_job(row), ended) for each, ended in self._rows]
        own._log, own.names, own._sent = copy(self._log), set(self.names), dict(self._sent)
        own._wait_s, own._communicate_s = self._wait_s[row].copy(), self._communicate_s[row].copy()
        return own

    def settle(self, time_s: float | Floats) -> None:
        """Enter operations that have ended by ``time_s``, of each job: no run is cut off before."""
        while self._uncertain and (self._uncertain[0].end_s.max(axis=-1) <= time_s).all():
            self._enter(self._uncertain.popleft(), None)

    def cut(self, time_s: float, instant_s: float) -> None:
        """End the run at ``time_s``: enter only what has happened by then, or at that instant."""
        for operation in self._uncertain:
            happened = operation.until(time_s, instant_s)
            if happened is not None:
                self._enter(happened, operation.end_s <= instant_s)
        self._uncertain.clear()

    def _enter(self, operation: StackedOperation, ended: NDArray[np.bool_] | None) -> None:
        if operation.name not in _NO_OPERATIONS:
            self.names.add(operation.name)
        if operation.in_half:
            self.names.add(HALF_SUM)
        if operation.blocks:
            exposed_s = operation.end_s - operation.start_s
            waited_s = operation.peer_s - operation.start_s
            np.maximum(waited_s, 0.0, out=waited_s)
            np.minimum(waited_s, exposed_s, out=waited_s)
            self._wait_s += waited_s
            exposed_s -= waited_s
            self._communicate_s += exposed_s
        if (sends := operation.sends) is not None:
            self._sent[sends] = self._sent.get(sends, 0) + (1 if ended is None else ended.astype(np.int64))
            if len(self._sent) > MAX_KEPT_SENDS:
                self._sent = {add_up(self._sent, self._workers): 1}
        log = self._log
        if operation.name == UNTIMED_ENCODING or log is None or log.full:
            return
        if log.until_step is not None and operation.step >= log.until_step:
            return
        self._rows.append((operation, ended))
        self._num_rows += self._workers if ended is None else int(ended.sum())
        if log.at_most is not None and self._num_rows > log.at_most:
            self._rows.clear()
            log.full = True

    def breakdowns(self, steps: Integers, ended_s: Floats | None, until_s: float) -> list[TimeBreakdown]:
        """The accounts, one for each worker; ``ended_s`` is None if the run was cut off.

        ``steps``: published by each; ``until_s``: the last instant of the run.
        """
        sent = add_up(self._sent, self._workers).of_hosts
        rows = zip(
            steps.tolist(), self._wait_s.tolist(), self._communicate_s.tolist(),
            [None] * self._workers if ended_s is None else ended_s.tolist(), strict=True,
        )  # fmt: skip
        return [
            TimeBreakdown(
                steps=done, bytes_sent=sum(size for _, size in sent.get(rank, ())), operations=self.names,
                sent_to=dict(sent.get(rank, ())), wait_s=wait_s, communicate_s=communicate_s,
                ended_s=end_s if end_s is not None and end_s <= until_s else None,
            )
            for rank, (done, wait_s, communicate_s, end_s) in enumerate(rows)
        ]  # fmt: skip

    def events(self) -> list[Event]:
        """All rows, in the order of their ends, and of those of one worker in that of the operations."""
        if not self._rows:
            return []
        ends_s = np.concatenate([operation.end_s for operation, _ in self._rows])
        order = np.argsort(ends_s, kind="stable").tolist()
        rows = [event for operation, ended in self._rows for event in self._events_of(operation, ended)]
        return [event for event in (rows[place] for place in order) if event is not None]

    def _events_of(
        self, operation: StackedOperation, ended: NDArray[np.bool_] | None
    ) -> Iterator[Event | None]:
        n = self._workers
        columns = zip(
            operation.start_s.tolist(), operation.end_s.tolist(), operation.peer_s.tolist(),
            np.broadcast_to(operation.num_bytes, n).tolist(), np.broadcast_to(operation.peer, n).tolist(),
            [True] * n if ended is None else ended.tolist(), strict=True,
        )  # fmt: skip
        for rank, (start_s, end_s, peer_s, num_bytes, peer, happened) in enumerate(columns):
            if not happened:
                yield None
                continue
            peer_s = min(max(peer_s, start_s), end_s)
            yield Event(
                rank, 0, operation.handle, operation.step, operation.name, start_s, end_s, peer_s,
                num_bytes, peer,
            )  # fmt: skip
