"""Helper threads: one per outstanding blocking call, reused when idle.

gloo's ``is_completed()`` never turns true for point-to-point transfers, and they have no futures, so a thread
has to block in ``wait()``; its outcome goes into a queue that the driver's loop reads. gloo's collectives can
be polled: while only those are in flight, the loop's own thread blocks in the oldest one, which spares two
thread switches.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Set
from queue import Empty, Queue, SimpleQueue
from typing import Any, NamedTuple, TypeVar

from .connections import CollectiveWait

_T = TypeVar("_T")


class CallResult(NamedTuple):
    """The outcome of a call: its return value, or the exception raised; ``token`` identifies the call."""

    token: Any
    result: Any
    error: BaseException | None


_Call = tuple[Any, Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
    """An unbounded thread pool: no call waits for another."""

    def __init__(self) -> None:
        # No SimpleQueue: up to Python 3.12 it waits for ever if its time-out expires before the wait.
        self.finished: Queue[CallResult] = Queue()
        self._polled: dict[Any, CollectiveWait] = {}
        self._idle: list[SimpleQueue[_Call | None]] = []
        self._started = 0

    def run(self, token: Any, call: Callable[..., Any], *arguments: Any) -> None:
        """Call in a helper thread; the outcome goes to ``finished``."""
        try:
            inbox = self._idle.pop()
        except IndexError:
            inbox = SimpleQueue()
            self._started += 1
            threading.Thread(
                target=self._serve, args=(inbox,), name=f"helper {self._started}", daemon=True
            ).start()
        inbox.put((token, call, arguments))

    def call(self, token: Any, call: Callable[..., Any], *arguments: Any) -> None:
        """Call in this thread; the outcome goes to ``finished`` as well."""
        self.finished.put(_outcome(token, call, arguments))

    def poll(self, token: Any, collective: CollectiveWait) -> int:
        """Let ``next`` report the completion of ``collective``; returns the number of collectives watched."""
        self._polled[token] = collective
        return len(self._polled)

    def next(self, limit_s: float, in_flight: Set[Any]) -> CallResult | None:
        """The next outcome of the tokens ``in_flight``; None if there is none within ``limit_s`` >= 0."""
        if not self.finished.empty():
            return self.finished.get()
        alone = in_flight <= self._polled.keys()
        at_once = limit_s == 0.0
        for token, collective in list(self._polled.items()):
            if token not in in_flight:
                del self._polled[token]
            elif collective.within(limit_s if alone else 0.0):
                return _outcome(token, self._polled.pop(token), ())
            elif at_once:
                break  # gloo completes them in this order
            elif alone:
                limit_s = 0.0  # the limit is used up
            elif limit_s > 0.0:
                self.run(token, self._polled.pop(token))
        try:
            return None if at_once and self.finished.empty() else self.finished.get(timeout=limit_s)
        except Empty:
            return None

    def close(self) -> None:
        """End the idle threads; a blocked one ends with the process."""
        while self._idle:
            self._idle.pop().put(None)

    def _serve(self, inbox: SimpleQueue[_Call | None]) -> None:
        while (request := inbox.get()) is not None:
            token, call, arguments = request
            done = _outcome(token, call, arguments)
            del request, call, arguments  # an idle thread keeps no tensors alive
            self._idle.append(inbox)
            self.finished.put(done)
            del done, token


def _outcome(token: Any, call: Callable[..., Any], arguments: tuple[Any, ...]) -> CallResult:
    try:
        return CallResult(token, call(*arguments), None)
    except BaseException as error:  # raised again by the outcome's reader
        return CallResult(token, None, error)


class Turns:
    """Orders calls from several threads by their turns."""

    def __init__(self) -> None:
        self._last = threading.Event()
        self._last.set()

    def take(self, call: Callable[[], _T]) -> Callable[[], _T]:
        """Take the next turn; the returned function waits for it and makes ``call``. Call it exactly once."""
        before, after = self._last, threading.Event()
        self._last = after

        def run() -> _T:
            before.wait()
            try:
                return call()
            finally:
                after.set()

        return run
