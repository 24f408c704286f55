"""The user's own scheme: an ``async def`` that takes a worker and its options.

::

    async def lazy_sgd(worker, period: int = 8):
        x = worker.start
        state = worker.optimizer.init(x)
        async for k in worker.steps():
            gradient = await worker.gradient(x)
            x, state = worker.optimizer.update(x, gradient, state)
            if (k + 1) % period == 0:
                x = await worker.all_reduce(x)
            await worker.publish(k, x)

Parameters after the worker are options, which a scenario gives. A scheme with services is a plain function
that returns a ``Program``. What is a ``Scheme`` already is taken as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

import torch
from typing_extensions import override

from ..config import user_code
from ..config.settings import Settings
from ..config.user_code import options_of
from ..errors import InputError, PacelineError, SchemeError, quote
from ..program import operations as ops
from ..program.worker import Program, Worker
from ..training.optimizer import Sgd
from .scheme import Scheme

_POINT_TO_POINT: Final = (ops.Send, ops.Receive, ops.Sleep, ops.Poll, ops.WaitAny)
_TRIED_STEPS: Final = 3
_TRIED_WORKERS: Final = 4
"""Steps and workers of the trial that shows whether a scheme is synchronous."""


def user_scheme(path: str) -> Scheme:
    """The scheme at ``package.module:name``.

    Raises:
        InputError: nothing is there, or nothing that can be a scheme.
    """
    scheme = user_code.load_object(path)
    if isinstance(scheme, Scheme):
        return replace(scheme, name=path)
    if not callable(scheme) or inspect.isclass(scheme):
        raise InputError(
            f"{quote(path)} is no scheme; it must be an 'async def' that takes a worker and its options"
        )
    return _scheme(path, scheme)


@dataclass(frozen=True)
class UserScheme(Scheme):
    """A scheme that does not say whether it is synchronous: a trial of its first steps shows it."""

    @override
    def in_step(self, options: Settings) -> bool:
        return super().in_step(options) and _only_patterns(self, options)


@lru_cache(maxsize=64)
def _scheme(path: str, function: Callable[..., Any]) -> Scheme:
    try:
        options = options_of(function, skip=1)
    except InputError as error:
        raise InputError(f"{quote(path)}: {error}") from None

    def program(worker: Worker, options: Settings) -> Program:
        given = {name: getattr(options, name) for name in type(options).model_fields}
        with user_code.report_errors(quote(path), SchemeError):
            returned = function(worker, **given)
        if inspect.iscoroutine(returned):
            returned = Program(returned)
        if not isinstance(returned, Program):
            raise InputError(
                f"{quote(path)} returned {type(returned).__name__}; it must be an 'async def', or return a "
                "Program"
            )
        services = tuple(_UserCoroutine(path, service) for service in returned.services)
        return Program(_UserCoroutine(path, returned.main), services)

    program.__doc__ = function.__doc__
    return UserScheme(path, program, options, synchronous=True)


class _UserCoroutine(Coroutine[Any, Any, None]):
    """A user's coroutine, whose errors become ``SchemeError`` with the user's file and line."""

    # Not an ``async def`` around it: closed before it began, that would leave this one unawaited.

    def __init__(self, path: str, coroutine: Coroutine[Any, Any, None]) -> None:
        self._path = path
        self._coroutine = coroutine

    @property
    def cr_frame(self) -> Any:
        """The coroutine's frame, in which drivers find the line of an operation that they refuse."""
        return getattr(self._coroutine, "cr_frame", None)

    @override
    def send(self, value: Any) -> Any:
        return self._advance(self._coroutine.send, value)

    @override
    def throw(self, *error: Any) -> Any:
        return self._advance(self._coroutine.throw, *error)

    @override
    def close(self) -> None:
        self._coroutine.close()

    @override
    def __await__(self) -> Generator[Any, Any, None]:
        return self._coroutine.__await__()

    def _advance(self, step: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return step(*arguments)
        except (StopIteration, PacelineError):
            raise
        except user_code.RAISED as error:
            raise SchemeError(f"'{self._path}' raised {user_code.format_error(error)}") from error


@lru_cache(maxsize=64)
def _only_patterns(scheme: Scheme, options: Settings) -> bool:
    """Whether the first steps of ranks 0 and 1, with replies of the right form, ask for no peer and no clock.

    Two ranks, since workers may have different roles (active and passive, by even and odd rank).
    """
    for rank in (0, 1):
        worker = Worker((rank,), _TRIED_WORKERS, torch.zeros(8), Sgd(0.1), 0, (0,) * _TRIED_WORKERS)
        program = scheme.start(worker, options)
        try:
            if program.services or _asks_for_a_peer(program.main):
                return False
        finally:
            for coroutine in (program.main, *program.services):
                coroutine.close()
    return True


def _asks_for_a_peer(coroutine: Coroutine[Any, Any, None]) -> bool:
    reply: Any = None
    while True:
        try:
            operation = coroutine.send(reply)
        except (StopIteration, Exception):  # it may stumble over these replies: judged by what it did so far
            return False
        inner = operation.operation if isinstance(operation, ops.Start) else operation
        if isinstance(inner, _POINT_TO_POINT):
            return True
        reply = _plausible(operation)


def _plausible(operation: ops.Operation[Any]) -> Any:
    match operation:
        case ops.NextStep(step=step):
            return step < _TRIED_STEPS
        case ops.Gradient(point=point):
            return torch.zeros_like(point)
        case ops.BatchLoss():
            return torch.zeros(1)
        case ops.AllGather(value=value):
            return value.expand(_TRIED_WORKERS, -1)
        case ops.Now():
            return 0.0
        case ops.Start(operation=inner):
            return ops.Handle(0, inner)
        case ops.Wait(handle=handle):
            return _plausible(handle.operation)
        case _:
            return getattr(operation, "value", None)
