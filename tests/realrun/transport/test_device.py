"""What a GPU needs of the simulation, tested without one.

Tensors on torch's ``meta`` device have no values: whatever asks for one, or mixes the device with the host,
raises. So a run there shows that nothing waits for the device.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from paceline.sim.compute import timing
from paceline.sim.devices import constants
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import UNRECORDED, Job
from paceline.sim.errors import RunError
from paceline.sim.training import gradients
from paceline.sim.training.gradients import Method, TrainingProblem
from paceline.sim.workloads.workload import Evaluated
from tests.support.factory import make_job, make_problem
from tests.support.lockstep import run_lockstep
from tests.support.scheme_forms import FORMS, Form, in_turn

META = torch.device("meta")

DECIDE = {"adaptive_local_sgd", "leader_sgd"}
"""Schemes whose next operation depends on a value: the host has to know it."""
READY = [form for form in FORMS if form.scheme not in DECIDE and (form.scheme != "sgp" or form.synchronous)]
"""The forms that do not; the services of an asynchronous push-sum ask whether there is mass to pass on."""


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts copies from the host to the meta device, and those for which the host waits."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.all = self.waited_for = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        wanted = torch.device(kwargs.get("device") or "cpu").type
        if func is torch.ops.aten._to_copy.default and (args[0].device.type, wanted) == ("cpu", "meta"):
            self.all += 1
            self.waited_for += not kwargs.get("non_blocking", False)
        if func is torch.ops.aten.copy_.default and {t.device.type for t in args[:2]} == {"cpu", "meta"}:
            self.all += 1
            self.waited_for += not (kwargs.get("non_blocking", False) or (len(args) > 2 and args[2]))
        return func(*args, **kwargs)


def on_meta(job: Job) -> Job:
    assert job.problem is not None
    problem = job.problem
    return replace(
        job,
        start=job.start.to(META),
        problem=TrainingProblem(problem.workload.to(META), problem.batches, problem.method),
        scoring=replace(job.scoring, every=10**9),
        recording=UNRECORDED,
    )


def run(job: Job) -> None:
    scorer = replace(job.scorer(), workload=None)
    EventDriver(job, [job.program(r) for r in range(job.workers)], scorer).run()


@pytest.mark.parametrize(("form", "method"), in_turn(READY, ("batched", "looped")))
def test_no_step_waits_for_the_device(form: Form, method: Method) -> None:
    job = on_meta(
        make_job(
            form.scheme, form.in_few_steps(), task="digits-mlp", method=method, momentum=form.momentum,
            cv=0.1, max_iterations=3,
        )
    )  # fmt: skip
    with Copies() as copies:
        run(job)
    assert copies.all > 0  # the numbers of the examples in each batch
    assert copies.waited_for == 0


@pytest.mark.parametrize("scheme", ["all_reduce", "local_sgd", "gossip", "sgp"])
def test_no_vectorised_step_waits_for_the_device(scheme: str) -> None:
    form = next(form for form in READY if form.scheme == scheme)
    job = on_meta(
        make_job(scheme, form.in_few_steps(), task="digits-mlp", momentum=form.momentum, max_iterations=3)
    )
    with Copies() as copies:
        run_lockstep(job)
    assert copies.all > 0
    assert copies.waited_for == 0


@pytest.mark.parametrize(
    "task", ["digits-cnn", "logistic", "quadratic", "matrix-completion", "text-transformer"]
)
def test_no_task_waits_for_the_device(task: str) -> None:
    run(on_meta(make_job("all_reduce", task=task, batch_size=4, max_iterations=2)))


def test_a_value_that_is_asked_for_is_noticed() -> None:
    job = make_job("adaptive_local_sgd", {"initial_period": 1, "warmup": 0}, task="digits-mlp")
    with pytest.raises(RunError, match="meta"):
        run(on_meta(job))


# --- what does not fit is done in parts -------------------------------------------------------------


class Small:
    """A device on which no more than ``fits`` gradients can be evaluated at once."""

    def __init__(self, problem: TrainingProblem, fits: int) -> None:
        self.fits, self.tried = fits, list[int]()
        self._batched_gradients = problem.batched_gradients

    def __call__(self, workers: list[int], indices: list[int], points: torch.Tensor) -> Evaluated:
        self.tried.append(len(workers))
        if len(workers) > self.fits:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return self._batched_gradients(workers, indices, points)


def test_batches_are_halved_until_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem("digits-mlp", 11, 1, "batched")
    points = [problem.workload.start + 0.01 * rank for rank in range(11)]
    whole = problem.gradients(list(range(11)), [0] * 11, points)
    small = Small(problem, fits=3)
    monkeypatch.setattr(TrainingProblem, "batched_gradients", lambda self, *parts: small(*parts))
    parts = problem.gradients(list(range(11)), [0] * 11, points)
    assert small.tried == [11, 5, 2, 2, 2, 2, 2, 1]
    for a, b in zip(whole, parts, strict=True):
        torch.testing.assert_close(a.value, b.value)
        torch.testing.assert_close(a.loss, b.loss)
    small.tried.clear()
    problem.gradients(list(range(4)), [0] * 4, points[:4])
    assert small.tried == [2, 2]  # what was learnt is kept


def test_one_gradient_that_does_not_fit_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem("digits-mlp", 4, 1, "batched")
    small = Small(problem, fits=0)
    monkeypatch.setattr(TrainingProblem, "batched_gradients", lambda self, *parts: small(*parts))
    with pytest.raises(RunError, match="use a smaller batch_size"):
        problem.gradients([0, 1], [0, 0], [problem.workload.start] * 2)
    assert small.tried == [2, 1]


def test_the_limit_is_a_share_of_the_devices_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    class Properties:
        total_memory = 16 * 2**30

    monkeypatch.setattr("torch.cuda.get_device_properties", lambda device: Properties())
    assert gradients.chunk_bytes(torch.device("cuda")) == 2**30
    monkeypatch.setattr(gradients, "CHUNK_BYTES", 3 * 4810 * 4)  # the digits MLP has 4,810 parameters
    small = Small(make_problem("digits-mlp", 7, 1, "batched"), fits=7)
    monkeypatch.setattr(TrainingProblem, "batched_gradients", lambda self, *parts: small(*parts))
    problem = make_problem("digits-mlp", 7, 1, "batched")
    problem.gradients(list(range(7)), [0] * 7, [problem.workload.start] * 7)
    assert small.tried == [3, 3, 1]


def test_constants_are_moved_once() -> None:
    on = constants(torch.ones(2), torch.zeros(1))
    first = on(META)
    assert [each.device for each in first] == [META, META]
    assert on(META) is first


def test_a_device_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert timing.device_name(torch.device("cpu"))
    monkeypatch.setattr("torch.cuda.get_device_name", lambda device: "NVIDIA H200")
    assert timing.device_name(torch.device("cuda")) == "NVIDIA H200"
