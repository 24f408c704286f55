"""The watchdog: no rank waits for ever, and all ranks end for one reason.

Every rank periodically writes a *heartbeat* to the control store: that it is alive, and what its main
coroutine waits in. A rank blocked for ``timeout_s`` reads the heartbeats of the others: where nobody can go
on, or somebody has fallen silent, it reports that, and every rank stops. The first reported failure counts.

A request to the store takes a round trip, and over a slow link that is as long as a step. So a thread asks,
and the rank itself, which computes and exchanges, only reads the thread's answers.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paceline.sim import errors
from paceline.sim.config.problems import format_message
from paceline.sim.errors import Deadlock, RunError

from ..group.job_store import POLL_S
from ..group.store import Control, Stopped

_KINDS: dict[str, Callable[..., RunError]] = {
    kind.__name__: kind for kind in (errors.PeerLost, errors.Deadlock, errors.SchemeError, errors.RunError)
}


@dataclass(frozen=True)
class Failure:
    """The cause of a run's end: the ``error`` on the ``rank`` that noticed it, at its ``step``.

    The ``collector`` is the rank that collects what there is; ``silent`` ranks do not answer.
    """

    error: RunError
    rank: int
    step: int
    collector: int
    silent: list[int]

    def __str__(self) -> str:
        if isinstance(self.error, errors.PeerLost):
            return (
                f"worker {self.error.rank} was lost; "
                f"worker {self.rank} noticed during {self.error.operation} at step {self.step}"
            )
        names = isinstance(self.error, Deadlock) or str(self.error).startswith("worker ")
        return str(self.error) if names else f"worker {self.rank}: {self.error}"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A sign of life.

    Attributes:
        time_s: its time on the run's clock.
        since_s: time at which the main coroutine last went on.
        able: it will resume by itself (it computes or sleeps).
        waiting: what it waits in, in words.
        ended: the main coroutine has ended.
    """

    time_s: float
    since_s: float
    able: bool
    waiting: str
    ended: bool = False


class Watchdog:
    """One rank's watchdog; ``timeout_s``: time limit of a wait.

    Attributes:
        period_s: interval between looks.
        dead: ranks known to be dead.
        all_ended: whether the main coroutines of all living ranks are known to have ended.
    """

    def __init__(self, control: Control, timeout_s: float) -> None:
        self._control = control
        self._timeout_s = timeout_s
        self._reported_s = float("-inf")
        self._own = Heartbeat(0.0, 0.0, True, "the start")
        self._error: Exception | None = None
        self._closing = self._end_noted = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        self.period_s = min(0.2, timeout_s / 20)
        self.dead: frozenset[int] = frozenset()
        self.all_ended = False

    def start(self) -> None:
        """Begin to look every ``period_s``, in a thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop looking, and join the thread."""
        self._closing = True
        self._wake.set()
        self._thread.join()

    def beat(self, own: Heartbeat) -> None:
        """Set this rank's heartbeat; call it every ``period_s``.

        Raises:
            Stopped: another rank has failed.
            Deadlock: no rank can continue, or one has fallen silent.
            RunError: the control store is lost.
        """
        wake = own.ended and not self._own.ended
        self._own = own
        if wake:
            self._wake.set()
        if self._error is not None:
            raise self._error

    def _watch(self) -> None:
        try:
            while True:
                self._wake.wait(POLL_S if self._own.ended else self.period_s)
                self._wake.clear()
                if self._closing:
                    return
                self.look(self._own)
        except Exception as error:  # raised again in the rank's own thread
            self._error = error

    def fail(self, error: RunError, step: int) -> None:
        """Report this rank's failure; if another has failed before, wait for its report."""
        if not self._control.first("failed"):
            self._control.wait_for(lambda _: "failed", [0], self._timeout_s, lambda: False)
        else:
            kind = type(error).__name__
            known = kind in _KINDS
            ranks = set(range(self._control.size))
            waiting = error.waiting if isinstance(error, Deadlock) else ()
            silent = {r for r in ranks if _silence(r) in waiting}
            report = {
                "kind": kind if known else "RunError",
                "args": list(error.args) if known else [format_message(error)],
                "rank": self._control.rank,
                "step": step,
                "collector": min(ranks - self._control.dead() - silent),
                "silent": sorted(silent),
            }
            self._control.put("failed", report)

    def failure(self) -> Failure | None:
        """The failure that ended the run, if any."""
        if not self._control.failed():
            return None
        report: dict[str, Any] = self._control.get("failed")
        kind, arguments = report.pop("kind"), report.pop("args")
        error = _KINDS[kind](*(tuple(a) if isinstance(a, list) else a for a in arguments))
        return Failure(error, **report)

    def check(self) -> None:
        """Raise ``Stopped`` if a rank has failed."""
        if self._control.failed():
            raise Stopped

    def look(self, own: Heartbeat) -> None:
        """Look around, and share this rank's heartbeat.

        Raises:
            Stopped: another rank has failed.
            Deadlock: no rank can continue, or this one has ended and another fell silent.
        """
        self.check()
        self.dead = self._control.dead()
        if own.ended:
            if not self._end_noted:
                self._control.put(f"ended/{self._control.rank}", own.time_s)
                self._end_noted = True
            living = (rank for rank in range(self._control.size) if rank not in self.dead)
            self.all_ended = self._control.has(*(f"ended/{rank}" for rank in living))
        if own.time_s - self._reported_s < self._timeout_s / 8:
            return
        self._reported_s = own.time_s
        if own.ended:
            beats = self._heartbeats().items()
            if silent := [r for r, last in beats if own.time_s - last.time_s > self._timeout_s]:
                raise Deadlock(tuple(map(_silence, silent)))
            return
        self._control.put(f"beat/{self._control.rank}", [own.time_s, own.since_s, own.able, own.waiting])
        if not own.able and own.time_s - own.since_s >= self._timeout_s:
            self._judge(own)

    def _heartbeats(self) -> dict[int, Heartbeat]:
        """Latest heartbeats of ranks that have neither ended nor died."""
        dead = self._control.dead()
        going = [
            r for r in range(self._control.size)
            if r != self._control.rank and r not in dead and not self._control.has(f"ended/{r}")
        ]  # fmt: skip
        never = [0.0, 0.0, False, "the start"]
        return {
            r: Heartbeat(*(self._control.get(f"beat/{r}") if self._control.has(f"beat/{r}") else never))
            for r in going
        }

    def _judge(self, own: Heartbeat) -> None:
        lines = {self._control.rank: f"worker {self._control.rank} waits in {own.waiting}"}
        anybody_silent = anybody_able = False
        for rank, last in self._heartbeats().items():
            if own.time_s - last.time_s > self._timeout_s / 2:
                anybody_silent = True
                lines[rank] = _silence(rank)
            elif last.able or last.time_s - last.since_s < 0.7 * self._timeout_s:
                anybody_able = True
            else:
                lines[rank] = f"worker {rank} waits in {last.waiting}"
        if anybody_silent or not anybody_able:
            raise Deadlock(tuple(lines[rank] for rank in sorted(lines)))


def _silence(rank: int) -> str:
    return f"worker {rank} does not answer"
