"""User-defined schemes: an ``async def`` that takes a worker and its options.

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
that returns a ``Program``. An object that is a ``Scheme`` already is taken unchanged.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Coroutine, Generator, Mapping
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import override

from .. import topology
from ..config.limits import MAX_TIME_S
from ..config.problems import format_value
from ..config.settings import Settings
from ..config.user_code import call as user_code
from ..config.user_code.call import options_of
from ..errors import InputError, PacelineError, SchemeError, quote, shorten
from ..program import operations as ops
from ..program.encoding import Encoded, Payload, decoded
from ..program.pattern import Pattern
from ..program.worker import Parameter, Program, Worker
from ..training.optimizer import Sgd
from .scheme import Scheme

_POINT_TO_POINT: Final = (
    ops.Send, ops.Receive, ops.Sleep, ops.Poll, ops.WaitAny, ops.Signal, ops.AwaitSignal,
)  # fmt: skip
_FIRST_STEPS, _MANY_STEPS = 3, 2_000
_TRIED_OPERATIONS: Final = 20_000
_TRIED_WORKERS: Final = 4
"""Steps, operations at most, and workers of the trials that show what a scheme does."""


def user_scheme(path: str) -> Scheme:
    """Load the scheme at ``package.module:name``; ``InputError`` if nothing there can be a scheme."""
    scheme = user_code.load_object(path)
    if isinstance(scheme, Scheme):
        return replace(scheme, name=path)
    if not callable(scheme) or inspect.isclass(scheme):
        raise InputError(
            f"{quote(path)} is no scheme; it must be an 'async def' that takes a worker and its options"
        )
    return _scheme(path, scheme)


@lru_cache(maxsize=64)
def _scheme(path: str, function: Callable[..., Any]) -> Scheme:
    options = options_of(path, function, skip=1)

    def program(worker: Worker, options: Settings) -> Program:
        worker = replace(worker, start=worker.start.clone())  # the user's code may write into it
        with user_code.report_errors(quote(path), SchemeError):
            returned = function(worker, **dict(options))
        if inspect.iscoroutine(returned):
            returned = Program(returned)
        if not isinstance(returned, Program):
            kind = shorten(type(returned).__name__)
            raise InputError(f"{quote(path)} returned {kind}; it must be an 'async def', or return a Program")
        services = tuple(_UserCoroutine(path, service, worker.start) for service in returned.services)
        return Program(_UserCoroutine(path, returned.main, worker.start), services)

    def cycle(given: Any, workers: int) -> int:
        mixing = _plan_of(given, workers)
        return math.lcm(_repeats_after(program, given), 1 if mixing is None else mixing.period or 1)

    functools.update_wrapper(program, function, ("__doc__",), ())
    # What the function draws is unknown, and a trial of its first steps shows whether it is synchronous.
    return Scheme(
        path, program, options, True, check=_plan_of, cycle=cycle, draws=lambda given: True,
        depends_on_timing=lambda given: not _only_patterns(program, given),
    )  # fmt: skip


def _plan_of(options: Any, workers: int) -> topology.Plan | None:
    graphs = getattr(options, "topology", None)
    if not isinstance(graphs, topology.TopologyEntry):
        return None
    return topology.plan(graphs, workers, getattr(options, "weights", topology.AUTO))


class _UserCoroutine(Coroutine[Any, Any, None]):
    """A user's coroutine, whose errors become ``SchemeError`` with the user's file and line."""

    # Not an ``async def`` around it: closed before it began, that would leave this one unawaited.

    def __init__(self, path: str, coroutine: Coroutine[Any, Any, None], start: Tensor) -> None:
        self._path = path
        self._coroutine = coroutine
        self._start = start
        self._step = -1
        self._published = False

    @property
    def cr_frame(self) -> Any:
        """The coroutine's frame, where drivers find the line of a refused operation."""
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
            operation = step(*arguments)
        except StopIteration:
            if self._step == 0 and not self._published:
                raise SchemeError(f"'{self._path}' ended without having published a model") from None
            raise
        except (PacelineError, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise SchemeError(f"'{self._path}' raised {user_code.format_error(error)}") from error
        if isinstance(operation, ops.Operation) and (why := self._refuse(operation)):
            raise SchemeError(f"{self.place}: {why}")
        return operation

    @property
    def place(self) -> str:
        """The scheme and its current line, for errors about an operation."""
        frame = self.cr_frame
        where = user_code.format_line(frame.f_code.co_filename, frame.f_lineno) if frame else ""
        return f"'{self._path}'{where}"

    def _refuse(self, operation: ops.Operation[Any]) -> str:
        """Reason to refuse an operation, or ""; also records begun and published steps."""
        if why := _find_mistake(operation, self._start):
            return why
        if isinstance(operation, ops.NextStep):
            if operation.step > 0 and not self._published:
                return f"begins step {operation.step} without having published its model of the one before"
            self._step, self._published = operation.step, False
        elif isinstance(operation, ops.Publish):
            if operation.step != self._step:
                return f"publishes step {shorten(operation.step)} in step {self._step}"
            self._published = True
        return ""


_MODELS: Final = frozenset({"point", "leader", "averaged"})
"""Fields of operations that are like a model, or None where that is allowed; so is a published value."""
_FIELDS: Final[Mapping[str, tuple[Any, str]]] = {
    "value": (Payload, "a tensor, or an encoded one"),
    "like": (Payload, "a tensor, or an encoded one"),
    "step": (int, "a whole number"),
    "length": (int, "a whole number"),
    "start": (int, "a whole number"),
    "stop": (int, "a whole number"),
    "source": (int, "a rank"),
    "destination": (int, "a rank"),
    "root": (int | Tensor, "a rank"),
    "tag": (str, "text"),
    "name": (str, "text"),
    "duration_s": (int | float, "a number of seconds"),
    "pattern": (Pattern, "a Pattern"),
    "handle": (ops.Handle, "a handle, which 'begin' returns"),
    "operation": (ops.Operation, "an operation"),
    "elements": (int | float | Tensor, "a number"),
    "notes": (Mapping, "numbers by name"),
}
"""Fields of operations -> their types, in Python and in words."""


def _find_wrong_field(operation: ops.Operation[Any], name: str, start: Tensor) -> str:
    groups = getattr(operation, "groups", None)
    if groups is not None and not _is_partition_like(groups):
        return f"awaits {name} with groups that are no tuple of tuples of ranks"
    for field in fields(operation):
        value = getattr(operation, field.name)
        is_model = field.name in _MODELS or (field.name == "value" and isinstance(operation, ops.Publish))
        if (is_model and value is not None) or field.name in ("point", "value" if is_model else ""):
            if not isinstance(value, Tensor) or value.shape != start.shape or value.dtype != start.dtype:
                shape = f"a tensor {list(value.shape)} ({value.dtype})" if isinstance(value, Tensor) else ""
                wanted = f"a tensor {list(start.shape)} of {start.dtype}, as the model is"
                return f"awaits {name} with {shape or format_value(value)}; {field.name} must be {wanted}"
        elif field.name in _FIELDS:
            kind, words = _FIELDS[field.name]
            if not isinstance(value, kind) or isinstance(value, bool):
                return f"awaits {name} with {format_value(value)}; {field.name} must be {words}"
    return ""


def _find_mistake(operation: ops.Operation[Any], start: Tensor) -> str:
    """The mistake in an operation of a user's scheme, worded to follow "SCHEME "; "" if there is none."""
    name = ops.name_of(type(operation))
    if why := _find_wrong_field(operation, name, start):
        return why
    match operation:
        case ops.Start(operation=inner):
            return _find_mistake(inner, start)
        case ops.Sleep(duration_s=duration_s) if not 0 <= duration_s <= MAX_TIME_S:
            return f"sleeps for {format_value(duration_s)}; it must be from 0 to {MAX_TIME_S:g} seconds"
        case ops.AllReduce(value=Encoded(half=half)):
            return f"awaits {name} with what cannot be added up as it is encoded" if half is None else ""
        case ops.AllReduce(value=value) | ops.AllGather(value=value) if not (
            isinstance(value, Tensor) and value.numel()
        ):
            return f"awaits {name} with {format_value(value)}; value must be a tensor with elements"
        case ops.AllGatherShards(length=length) if length < 1:
            return f"awaits {name} of {length} elements; there must be one at least"
        case ops.Publish(notes=notes) if not all(isinstance(each, int | float) for each in notes.values()):
            return "publishes notes that are no numbers"
        case ops.WaitAny(handles=handles) if not all(isinstance(each, ops.Handle) for each in handles):
            return "waits for what is no handle, which 'begin' returns"
    return ""


def _is_partition_like(groups: object) -> bool:
    return isinstance(groups, tuple) and all(
        isinstance(group, tuple) and all(type(rank) is int for rank in group) for group in groups
    )


_Program = Callable[[Worker, Any], Any]
_Kinds = tuple[type[ops.Operation[Any]], ...]
"""The operations of a step, by their types."""


@lru_cache(maxsize=64)
def _trial(program: _Program, options: Settings, steps: int) -> tuple[tuple[_Kinds, ...], ...] | None:
    """Operations of ranks 0 and 1 (active and passive, perhaps), by step; None: they have services."""
    tried = []
    for rank in (0, 1):
        worker = Worker(
            (rank,),
            _TRIED_WORKERS,
            torch.zeros(8),
            Sgd(0.1),
            0,
            (0,) * _TRIED_WORKERS,
            tuple(range(_TRIED_WORKERS)),
            parameters=(Parameter("matrix", (2, 3), 0), Parameter("vector", (2,), 6)),
        )
        started = program(worker, options)
        try:
            tried.append(_steps_of(started.main, steps))
        finally:
            for coroutine in (started.main, *started.services):
                coroutine.close()
        if started.services:
            return None
    return tuple(tried)


def _steps_of(coroutine: Coroutine[Any, Any, None], number: int) -> tuple[_Kinds, ...]:
    steps: list[list[type[ops.Operation[Any]]]] = [[]]
    reply: Any = None
    for _ in range(_TRIED_OPERATIONS):  # it may never ask for its end
        try:
            operation = coroutine.send(reply)
        except (StopIteration, Exception):  # these replies may break it: judged so far
            break
        if isinstance(operation, ops.NextStep):
            steps.append([])
        steps[-1].append(type(operation.operation if isinstance(operation, ops.Start) else operation))
        reply = operation.step < number if isinstance(operation, ops.NextStep) else _plausible(operation)
    return tuple(map(tuple, steps))


def _only_patterns(program: _Program, options: Settings) -> bool:
    tried = _trial(program, options, _FIRST_STEPS)
    return tried is not None and not any(
        issubclass(kind, _POINT_TO_POINT) for steps in tried for kinds in steps for kind in kinds
    )


def _repeats_after(program: _Program, options: Settings) -> int:
    """Period, in steps, of the kinds of operations; 1 where they do not repeat.

    Judged by the second half of a trial, which has no warm-up, without its last step, perhaps cut off.
    """
    periods = []
    for steps in _trial(program, options, _MANY_STEPS) or ():
        late = steps[len(steps) // 2 : -1]
        periods += [next((p for p in range(1, len(late) // 2 + 1) if late[p:] == late[:-p]), 1)]
    return math.lcm(*periods)


def _plausible(operation: ops.Operation[Any]) -> Any:
    match operation:
        case ops.Gradient(point=point):
            return torch.zeros_like(point)
        case ops.BatchLoss():
            return torch.zeros(1)
        case ops.AllGather(value=value):
            return value.expand(_TRIED_WORKERS, -1)
        case ops.Now():
            return 0.0
        case ops.Receive(source=source, like=like):
            return ops.Message(max(source, 0), decoded(like))
        case ops.Start(operation=inner):
            return ops.Handle(0, inner)
        case ops.Wait(handle=handle):
            return _plausible(handle.operation)
        case _:
            return getattr(operation, "value", None)
