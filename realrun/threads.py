"""Helper threads: one per outstanding blocking call, used again when idle.

gloo's ``is_completed()`` never turns true for point-to-point transfers and has no futures, so somebody
has to block in ``wait()``. The outcome goes into one queue, which the driver's loop reads.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any


@dataclass(frozen=True, slots=True)
class Finished:
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


class Threads:
    """A pool without a limit: a call never waits for another one."""

    def __init__(self) -> None:
        self.finished: SimpleQueue[Finished] = SimpleQueue()
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

    def close(self) -> None:
        """Let the idle threads end; the others cannot be helped."""
        while self._idle:
            self._idle.pop().put(None)

    def _serve(self, inbox: SimpleQueue[_Call | None]) -> None:
        while (asked := inbox.get()) is not None:
            token, call, arguments = asked
            try:
                done = Finished(token, call(*arguments), None)
            except BaseException as error:  # it is raised again where the outcome is read
                done = Finished(token, None, error)
            del asked, call, arguments
            self._idle.append(inbox)
            self.finished.put(done)
            del done, token
