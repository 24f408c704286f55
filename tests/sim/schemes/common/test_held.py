"""What schemes declare of their memory, beside the values that their running workers hold."""

from __future__ import annotations

import types
from collections import deque
from collections.abc import Callable, Generator, Iterable
from dataclasses import fields, is_dataclass, replace
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

WORKERS, PARAMETERS, STEPS = 4, 512, 13
EIGHT_BITS: dict[str, Any] = {"compression": {"qsgd": {"bits": 8, "bucket": 64}}}

HALF: dict[str, Any] = {"compression": {"fp16": True}}

FORMS: list[tuple[str, dict[str, Any], float]] = [
    ("all_reduce", {}, 0.0),
    ("all_reduce", {}, 0.9),
    ("all_reduce", {"part_reduce": True}, 0.9),
    ("all_reduce", EIGHT_BITS, 0.0),
    ("all_reduce", HALF, 0.0),
    ("local_sgd", {"period": 3}, 0.9),
    ("local_sgd", {"period": 3, "momentum": "mixed"}, 0.9),
    ("local_sgd", {"period": 3, **EIGHT_BITS}, 0.0),
    ("local_sgd", {"period": 3, "momentum": "mixed", **HALF}, 0.9),
    ("adaptive_local_sgd", {"initial_period": 3, "calibration": 6}, 0.9),
    ("post_local_sgd", {"switch_at": 3, "period": 3}, 0.9),
    ("gossip", {"topology": "ring"}, 0.9),
    ("gossip", {"topology": "ring", "momentum": "mixed"}, 0.9),
    ("gossip", {"topology": "ring", "order": "combine_while_adapting"}, 0.0),
    ("gossip", {"topology": "complete", "inside": "hosts"}, 0.0),
    ("sgp", {"topology": "one_peer_exponential"}, 0.9),
    ("sgp", {"topology": "one_peer_exponential", "overlap": 1}, 0.0),
    ("ad_psgd", {}, 0.9),
    ("leader_sgd", {"period": 3}, 0.9),
    ("easgd", {"period": 3, "pull": 0.5}, 0.0),
    ("easgd", {"period": 3, "pull": 0.5, "asynchronous": True}, 0.0),
    ("eamsgd", {"period": 3, "pull": 0.5}, 0.0),
    ("downpour", {"period": 3}, 0.0),
    ("diloco", {"period": 3}, 0.9),
    ("diloco", {"period": 6, "delay": 1, **HALF}, 0.9),
    ("diloco", {"period": 6, "fragments": 2, "delay": 1}, 0.9),
    ("diloco", {"period": 3, "inside": "hosts"}, 0.9),
    ("slowmo", {"period": 3}, 0.9),
    ("slowmo", {"period": 3, **HALF}, 0.9),
    ("gradient_tracking", {"topology": "ring"}, 0.0),
    ("choco_sgd", {"topology": "ring", "gamma": 0.5}, 0.0),
    ("halos", {"period": 2, "exchange": 2}, 0.0),
    ("halos", {"period": 2, "exchange": 2, **EIGHT_BITS}, 0.0),
    ("fedavg", {"period": 3, "participation": 0.5}, 0.0),
]
"""Schemes with options, and the momentum of their optimiser."""

SMALL = 0.05
"""Models that norms of buckets and weights of push-sum take, which are not declared."""

SLACK = 1.0
"""Models by which a declaration may be more than what workers hold at the moments at which they are seen."""


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
    return [vars(one)] if type(one).__module__.startswith("paceline.sim.schemes") else []


_HELD: dict[Any, Callable[[Any], Iterable[Any]]] = {
    types.CoroutineType: lambda one: [one.cr_frame and one.cr_frame.f_locals, one.cr_await],
    types.AsyncGeneratorType: lambda one: [one.ag_frame and one.ag_frame.f_locals, one.ag_await],
    dict: lambda one: one.values(),
    tuple | list | set | frozenset | deque: lambda one: one,
    types.MethodType: lambda one: [one.__self__],
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
        return 0.0 if not isinstance(own, Tensor) else own.numel() / PARAMETERS
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
            if isinstance(operation, ops.Start):
                self.started[reply] = operation.operation
            elif isinstance(operation, ops.Wait):
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


@pytest.mark.parametrize("name", SCHEMES)
def test_every_registered_scheme_declares_what_it_holds(name: str) -> None:
    assert SCHEMES[name].held is not None
    assert name in {form[0] for form in FORMS}


@pytest.mark.parametrize(("name", "options", "momentum"), FORMS, ids=str)
def test_workers_hold_what_their_scheme_declares(name: str, options: dict[str, Any], momentum: float) -> None:
    network = cluster() if "inside" in options else None
    job = make_job(
        name, options, workers=WORKERS, task="quadratic", method="looped", momentum=momentum, network=network,
        task_options={"dimension": PARAMETERS, "examples": 64}, max_iterations=STEPS, record_events=False,
    )  # fmt: skip
    held_by = job.scheme.held
    assert held_by is not None
    declared = held_by(job.options, Sizes(WORKERS, int(momentum > 0), job.units))
    held = most_held(job)
    assert held - SMALL <= declared.total <= held + SLACK, (held, declared)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("all_reduce", EIGHT_BITS),
        ("local_sgd", {"period": 3, **EIGHT_BITS}),
        ("diloco", {"period": 6, "delay": 1, **EIGHT_BITS}),
        ("slowmo", {"period": 3, **EIGHT_BITS}),
    ],
    ids=str,
)
def test_workers_whose_host_encodes_hold_no_more(name: str, options: dict[str, Any]) -> None:
    job = make_job(
        name, options, workers=WORKERS, task="quadratic", method="looped", network=cluster(),
        task_options={"dimension": PARAMETERS, "examples": 64}, max_iterations=STEPS, record_events=False,
        sums_inside="hosts",
    )  # fmt: skip
    assert job.scheme.held is not None
    assert most_held(job) - SMALL <= job.scheme.held(job.options, Sizes(WORKERS)).total


def test_the_sum_of_what_is_held() -> None:
    assert Held(optimizer=2, anchors=1, outer_momentum=1, in_flight=0.5).total == 6.5
    assert torch.zeros(PARAMETERS).untyped_storage().nbytes() == 4 * PARAMETERS
