"""What every clock's driver knows of a coroutine, and of an operation under way."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from ..program.operations import Handle, Operation
from ..records.accounting import Account


class Underway:
    """An operation that takes time, from its start to its completion."""

    # Class attributes, not slots: most operations change few of them, and a million are made a minute.
    ready_s: float
    bytes = 0
    peer = -1
    busy_s = 0.0
    done = False
    reply: Any = None
    version = -1  # of the tensor in use, when the operation started
    shown = 0  # segments of a gradient that the scheme has seen
    waiter: Callable[[Any], None] | None = None

    def __init__(
        self, task: Task[Any], name: str, operation: Operation[Any], start_s: float, handle: Handle | None
    ) -> None:
        self.task = task
        self.name = name
        self.operation = operation
        self.start_s = self.ready_s = start_s
        self.handle = handle


P = TypeVar("P", bound=Underway)


class Task(Generic[P]):
    """One coroutine of one worker: the main one (number 0) or a service."""

    __slots__ = ("account", "alive", "blocked", "coroutine", "number", "outstanding", "rank", "waiting")

    def __init__(
        self, rank: int, number: int, coroutine: Coroutine[Any, Any, None], account: Account
    ) -> None:
        self.rank = rank
        self.number = number
        self.coroutine = coroutine
        self.account = account
        self.alive = True
        self.waiting: Operation[Any] | None = None  # what it is blocked in
        self.blocked: tuple[float, float, P] | None = None  # since when, busy_s then, on what
        self.outstanding: dict[int, P] = {}  # started, and not yet waited for
