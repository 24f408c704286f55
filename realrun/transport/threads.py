"""Helper threads: one per outstanding blocking call, used again when idle.

gloo's ``is_completed()`` never turns true for point-to-point transfers, and they have no futures, so
somebody has to block in ``wait()``. The outcome goes into one queue, which the driver's loop reads. Its
collectives can be asked: while only those are under way, the loop's own thread blocks in the oldest one,
which spares two changes of threads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Set
from queue import Empty, Queue, SimpleQueue
from typing import Any, NamedTuple

from .backend import Collective


class CallResult(NamedTuple):
    """A call that has returned, or raised.

    Attributes:
        token: what the caller wanted to be told with it.
        result: what it returned.
        error: what it raised, else None.
    """

    token: Any
    result: Any
    error: BaseException | None


_Call = tuple[Any, Callable[..., Any], tuple[Any, ...]]


class ThreadPool:
    """A pool without a limit: a call never waits for another one."""

    def __init__(self) -> None:
        # Up to Python 3.12 a SimpleQueue waits for ever if its time is over before it has begun to wait.
        self.finished: Queue[CallResult] = Queue()
        self._asked: dict[Any, Collective] = {}
        self._idle: list[SimpleQueue[_Call | None]] = []
        self._started = 0

    def run(self, token: Any, call: Callable[..., Any], *arguments: Any) -> None:
        """Call in a helper thread; ``finished`` gets its outcome."""
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
        """Call in this thread; ``finished`` gets its outcome all the same."""
        self.finished.put(_outcome(token, call, arguments))

    def ask(self, token: Any, collective: Collective) -> int:
        """Have ``next`` tell when ``collective`` is complete; returns of how many it has to."""
        self._asked[token] = collective
        return len(self._asked)

    def next(self, limit_s: float, under_way: Set[Any]) -> CallResult | None:
        """The next outcome; None if there is none within ``limit_s``.

        Args:
            limit_s: 0 or more.
            under_way: the tokens of all outcomes that can still come, and matter.
        """
        if not self.finished.empty():
            return self.finished.get()
        alone = under_way <= self._asked.keys()
        at_once = limit_s == 0.0
        for token, collective in list(self._asked.items()):
            if token not in under_way:
                del self._asked[token]
            elif collective.within(limit_s if alone else 0.0):
                return _outcome(token, self._asked.pop(token), ())
            elif at_once:
                break  # gloo does them in this order
            elif alone:
                limit_s = 0.0  # it has passed
            elif limit_s > 0.0:
                self.run(token, self._asked.pop(token))
        try:
            return None if at_once and self.finished.empty() else self.finished.get(timeout=limit_s)
        except Empty:
            return None

    def close(self) -> None:
        """Let the idle threads end; the others cannot be helped."""
        while self._idle:
            self._idle.pop().put(None)

    def _serve(self, inbox: SimpleQueue[_Call | None]) -> None:
        while (asked := inbox.get()) is not None:
            token, call, arguments = asked
            done = _outcome(token, call, arguments)
            del asked, call, arguments
            self._idle.append(inbox)
            self.finished.put(done)
            del done, token


def _outcome(token: Any, call: Callable[..., Any], arguments: tuple[Any, ...]) -> CallResult:
    try:
        return CallResult(token, call(*arguments), None)
    except BaseException as error:  # it is raised again where the outcome is read
        return CallResult(token, None, error)
