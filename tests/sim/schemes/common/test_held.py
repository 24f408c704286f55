"""What schemes declare of their memory, beside the values that their running workers hold."""

from __future__ import annotations

import math
import types
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import astuple, fields, is_dataclass, replace
from functools import partial
from types import coroutine
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.network.network import Network
from paceline.sim.program import operations as ops
from paceline.sim.program.averaging import COLLECTIVES
from paceline.sim.program.encoding import Encoded
from paceline.sim.program.worker import Program, Worker
from paceline.sim.schemes import SCHEMES
from paceline.sim.schemes.common.held import Held, Sizes
from tests.support.factory import make_job, network_of
from tests.support.scheme_forms import FORMS, INSIDE, SYNCHRONOUS, Form, named, one_each

WORKERS, PARAMETERS, STEPS = 4, 512, 13
BY_TIMING = {"local_sgd period=4 quorum=3 deadline=5 s", "fedavg period=4 participation=0.5 quorum=1"}
"""Forms whose server holds less here than where all contributions come at once, which is declared."""

SMALL = 0.05
"""Models that norms of buckets and weights of push-sum take, which are not declared."""

SLACK = 1.0
"""Models by which a declaration may be more than what workers hold at the moments at which they are seen."""


def sum_of(held: Held) -> float:
    """Models that are held in single precision, without a master copy."""
    return float(sum(astuple(replace(held, master=0.0))))


def cluster() -> Network:
    link = {"latency": "1 ms", "bandwidth": "1 Gbit/s"}
    return network_of(WORKERS, **link, host={"gpus": 2, "latency": "0 s"})


def tensors_of(roots: list[Any]) -> dict[int, Tensor]:
    """Every tensor that can be reached from coroutines and values, one for each storage."""
    tensors: dict[int, Tensor] = {}
    seen: set[int] = set()
    stack = list(roots)
    while stack:
        one = stack.pop()
        if id(one) in seen or one is None or isinstance(one, Worker | Job | type | types.ModuleType):
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            tensors[one.untyped_storage().data_ptr()] = one
        else:
            stack += _held_by(one)
    return tensors


def _held_by(one: Any) -> Iterable[Any]:
    """What an object of ours, a coroutine, a function or a container refers to."""
    for kind, held in _HELD.items():
        if isinstance(one, kind):
            return held(one)
    if is_dataclass(one):
        return [getattr(one, field.name, None) for field in fields(one)]
    return [vars(one)] if type(one).__module__.startswith(("paceline.sim.schemes", "paceline.extras")) else []


def _locals(frame: types.FrameType | None) -> Iterable[Any]:
    return frame.f_locals.values() if frame else ()


_HELD: dict[Any, Callable[[Any], Iterable[Any]]] = {
    types.CoroutineType: lambda one: [*_locals(one.cr_frame), one.cr_await],
    types.AsyncGeneratorType: lambda one: [*_locals(one.ag_frame), one.ag_await],
    dict: lambda one: one.values(),
    tuple | list | set | frozenset | deque: lambda one: one,
    types.MethodType: lambda one: [one.__self__],
    partial: lambda one: [one.func, *one.args, *one.keywords.values()],
    types.FunctionType: lambda one: [cell.cell_contents for cell in one.__closure__ or ()],
}


def models_in(values: dict[int, Tensor]) -> float:
    """How many models these tensors are together, in bytes; what is much smaller does not count."""
    sizes = [each.untyped_storage().nbytes() for each in values.values()]
    return sum(size for size in sizes if size >= PARAMETERS // 8) / (4 * PARAMETERS)


def arriving(operation: Any, rank: int) -> float:
    """Models that arrive for an operation and that its worker does not have yet: receives, and the reply."""
    if isinstance(operation, ops.Mix):
        value: Any = operation.value
        size = value.length if isinstance(value, Encoded) else value.numel()
        return (len(operation.pattern.sources[rank]) + 1) * size / PARAMETERS
    if isinstance(operation, ops.Receive):
        like: Any = operation.like
        return (like.length if isinstance(like, Encoded) else like.numel()) / PARAMETERS
    if isinstance(operation, ops.AllGatherShards):
        return operation.length / PARAMETERS
    if isinstance(operation, COLLECTIVES):
        own = getattr(operation, "value", None)
        if isinstance(operation, ops.AllReduce) and isinstance(own, Encoded):
            return own.length / PARAMETERS
        if not isinstance(own, Tensor) or not own.is_floating_point():  # bytes of buffers are no model's
            return 0.0
        return own.numel() / PARAMETERS
    if isinstance(operation, ops.Gradient):
        return 1.0
    return 0.0


class Watched:
    """The most that a worker's coroutines hold whenever one of them waits."""

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.most = 0.0
        self.coroutines: list[Any] = []
        self.waiting: dict[int, Any] = {}
        self.started: dict[ops.Handle, Any] = {}

    def program(self, program: Program) -> Program:
        both = (program.main, *program.services)
        self.coroutines = list(both)
        main, *services = [cast("Any", self._watch(number, each)) for number, each in enumerate(both)]
        return replace(program, main=main, services=tuple(services))

    @coroutine
    def _watch(self, number: int, inner: Any) -> Generator[Any, Any, None]:
        reply: Any = None
        error: BaseException | None = None
        while True:
            try:
                operation = inner.send(reply) if error is None else inner.throw(error)
            except StopIteration:
                return
            error = None
            self.waiting[number] = operation
            self._measure()
            try:
                reply = yield operation
            except GeneratorExit:
                inner.close()
                raise
            except BaseException as raised:
                error = raised
            self.waiting.pop(number, None)
            ended = self.started.get(operation.handle) if isinstance(operation, ops.Wait) else operation
            if isinstance(ended, ops.ReduceScatter):
                reply = reply.clone()  # on a cluster a shard is not a part of the simulator's mean
            if isinstance(operation, ops.Start):
                self.started[reply] = operation.operation
            elif isinstance(operation, ops.Wait) or (
                isinstance(operation, ops.NextSegment) and reply is None
            ):
                self.started.pop(operation.handle, None)

    def _measure(self) -> None:
        under_way = [*self.waiting.values(), *self.started.values()]
        held = models_in(tensors_of([*self.coroutines, *under_way]))
        self.most = max(self.most, held + sum(arriving(each, self.rank) for each in under_way))


def most_held(job: Job) -> float:
    """Models that the worker holds which holds the most."""
    watched = [Watched(rank) for rank in range(job.workers)]
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    programs = [each.program(job.program(each.rank)) for each in watched]
    EventDriver(job, programs, scorer).run()
    return max(each.most for each in watched)


def job_of(form: Form, **more: Any) -> Job:
    return make_job(
        form.scheme, form.in_few_steps(), workers=WORKERS, task="quadratic", method="looped",
        task_options={"dimension": PARAMETERS, "examples": 64}, max_iterations=STEPS, record_events=False,
        **more,
    )  # fmt: skip


@pytest.mark.parametrize("name", SCHEMES)
def test_every_registered_scheme_declares_what_it_holds(name: str) -> None:
    assert SCHEMES[name].held is not None


# A gradient is computed as a whole here; what shards take is in tests/sim/scenario/test_device_memory.py.
WHOLE = [form for form in (*FORMS, *INSIDE) if form.scheme != "sharded"]


@pytest.mark.parametrize("form", one_each(WHOLE))
def test_workers_hold_what_their_scheme_declares(form: Form) -> None:
    job = job_of(form, momentum=form.momentum, network=cluster() if form in INSIDE else None)
    held_by = job.scheme.held
    assert held_by is not None
    sizes = Sizes(WORKERS, int(form.momentum > 0), job.units)
    declared = held_by(job.options, sizes)
    held = most_held(job)
    most = math.inf if str(form).removesuffix(" round=25 ms") in BY_TIMING else held + SLACK
    assert held - SMALL <= sum_of(declared) <= most, (held, declared)


@pytest.mark.parametrize("compression", [{"qsgd": {"bits": 8}}, {"top_k": {"share": 0.1}}], ids=str)
@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_a_round_of_some_holds_the_values_of_those(participation: float, compression: dict[str, Any]) -> None:
    options = {"period": 4, "participation": participation, "compression": compression}
    job = job_of(Form("fedavg", options, None))
    assert job.scheme.held is not None
    declared, held = (
        sum_of(job.scheme.held(job.options, Sizes(WORKERS))),
        most_held(job),
    )
    assert held - SMALL <= declared <= held + SLACK


ON_HOSTS = [
    form for form in SYNCHRONOUS if form.encoded and SCHEMES[form.scheme].publishes(None) == "averaged"
]


@pytest.mark.parametrize("form", named(ON_HOSTS))
def test_workers_whose_host_encodes_hold_no_more(form: Form) -> None:
    job = job_of(form, network=cluster(), sums_inside="hosts")
    assert job.scheme.held is not None
    assert most_held(job) - SMALL <= sum(
        astuple(replace(job.scheme.held(job.options, Sizes(WORKERS)), master=0.0))
    )


def test_parameters_are_single() -> None:
    assert torch.zeros(PARAMETERS).untyped_storage().nbytes() == 4 * PARAMETERS
