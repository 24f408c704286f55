"""A module's own gradient is that of the pure function, and its parts are known one by one."""

from __future__ import annotations

import pytest
import torch

from paceline.realrun.driver.computing import Segments
from paceline.sim.experiments.prepare import prepare, resolve
from paceline.sim.program.worker import Parameter
from paceline.sim.scenario.schema import Scenario
from paceline.sim.workloads.modules import flatten_module
from paceline.sim.workloads.supervised import supervised
from paceline.sim.workloads.workload import Evaluated, SegmentCallback, Workload
from tests.support.factory import make_problem


class Tied(torch.nn.Module):
    """One matrix, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = torch.nn.Linear(5, 5)
        self.last = torch.nn.Linear(5, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.shared(self.shared(inputs).tanh()))
        return found


class OwnAverage(torch.nn.Module):
    """A running buffer that is replaced, not written into, and a parameter that nothing depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(5, 1)
        self.unused = torch.nn.Parameter(torch.ones(3))
        self.average: torch.Tensor
        self.register_buffer("average", torch.zeros(5))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.average = 0.9 * self.average + 0.1 * inputs.mean(dim=0)
        found: torch.Tensor = self.inner(inputs - self.average)
        return found


MODULES = {
    "two layers": torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)),
    "batch norm": torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)),
    "tied": Tied(),
    "own average": OwnAverage(),
}


def workload_of(name: str) -> Workload:
    """That module, to be trained on eight examples."""
    draw = torch.Generator().manual_seed(1)
    examples = (torch.randn(8, 5, generator=draw), torch.randn(8, 1, generator=draw))
    return supervised(name, MODULES[name], torch.nn.functional.mse_loss, examples, None, ["train_loss"])


def gradient(workload: Workload, x: torch.Tensor, on_segment: SegmentCallback | None = None) -> Evaluated:
    assert workload.gradient_on is not None
    return workload.gradient_on(x.device)(x, workload.inputs, workload.targets, on_segment)


@pytest.mark.parametrize("name", MODULES)
def test_it_is_that_of_the_pure_function(name: str) -> None:
    workload = workload_of(name)
    assert workload.gradient_on is not None
    gradient = workload.gradient_on(workload.start.device)
    for factor in (1.0, 1.1, 0.7):  # nothing is left of one when the next is computed
        x = factor * workload.start
        before, leaf = x.clone(), x.clone().requires_grad_()
        found = gradient(x, workload.inputs, workload.targets, None)
        if workload.loss_and_buffers is None:
            loss, buffers = workload.loss(leaf, workload.inputs, workload.targets), x[:0]
        else:
            loss, buffers = workload.loss_and_buffers(leaf, workload.inputs, workload.targets)
        cut = len(x) - len(buffers)
        assert torch.equal(found.value[:cut], torch.autograd.grad(loss, leaf)[0][:cut])
        assert torch.equal(found.value[cut:], x[cut:] - buffers)
        assert torch.equal(found.loss, loss.detach().view(1))
        assert torch.equal(x, before)


@pytest.mark.parametrize("name", MODULES)
def test_parts_are_those_of_the_whole(name: str) -> None:
    workload = workload_of(name)
    parts: list[tuple[int, int, torch.Tensor]] = []

    def on_segment(start: int, stop: int, so_far: Evaluated) -> None:
        parts.append((start, stop, so_far.value[start:stop].clone()))

    found = gradient(workload, workload.start, on_segment)
    whole = gradient(workload, workload.start)
    assert torch.equal(found.value, whole.value)
    assert torch.equal(found.loss, whole.loss)
    unused = 3 if name == "own average" else 0
    assert sum(stop - start for start, stop, _ in parts) == len(whole.value) - unused
    for start, stop, value in parts:
        assert torch.equal(value, whole.value[start:stop])
    if workload.num_buffers:
        assert parts[0][0] >= len(whole.value) - workload.num_buffers  # known after the forward pass
    else:
        assert parts[0][0] > parts[-1][0]  # the last layer first


@pytest.mark.parametrize("task", ["digits-mlp", "digits-cnn"])
def test_a_problem_tells_of_all_its_segments_in_backward_order(task: str) -> None:
    problem = make_problem(task, 2, 1, "looped")
    known: list[tuple[int, Evaluated]] = []
    segments = Segments(problem.workload.segments, lambda *segment: known.append(segment))
    found = problem.gradient(1, 0, problem.workload.start, segments.add)
    assert torch.equal(found.value, problem.gradient(1, 0, problem.workload.start).value)
    assert [start for start, _ in known] == [start for _, start, _ in problem.workload.segments]
    for (_, start, stop), (_, part) in zip(problem.workload.segments, known, strict=True):
        assert torch.equal(part.value, found.value[start:stop])
        assert torch.equal(part.loss, found.loss)


def test_a_loss_that_is_no_modules_tells_of_nothing() -> None:
    problem = make_problem("quadratic", 2, 1, "looped")
    on_segment: list[int] = []
    found = problem.gradient(0, 0, problem.workload.start, lambda start, stop, part: on_segment.append(start))
    assert on_segment == []
    assert torch.equal(found.value, problem.gradient(0, 0, problem.workload.start).value)


def test_parameters_are_those_of_the_module_in_their_order() -> None:
    """Without those that are not trained; running buffers come behind them."""
    module = torch.nn.Sequential(
        torch.nn.Conv1d(2, 3, 1), torch.nn.BatchNorm1d(3), torch.nn.Flatten(), torch.nn.Linear(3, 2)
    )
    module[3].bias.requires_grad_(False)
    flat = flatten_module(module, torch.zeros(2, 2, 1))
    x, trained = flat.start, {name: p for name, p in module.named_parameters() if p.requires_grad}
    assert [name for name, _, _ in flat.parameters] == [*trained]
    for each in map(Parameter._make, flat.parameters):
        assert torch.equal(each.of(x), trained[each.name])
        assert torch.equal(each.of(x.expand(4, -1))[3], trained[each.name])
    assert Parameter._make(flat.parameters[-1]).stop == len(x) - flat.num_buffers


@pytest.mark.parametrize("payload", [{}, {"payload": "5 MB"}])
@pytest.mark.parametrize("trains", [True, False])
def test_a_worker_knows_the_tensors_of_its_model(payload: dict[str, str], trains: bool) -> None:
    """Those of the task also where a payload is timed in its place; layers where nothing is trained."""
    workload = {"task": "digits-mlp", "batch_size": 4, "optimizer": {"lr": 0.1}, **payload}
    if not trains:
        workload = {"timing_only": True, "layer_profile": "resnet-50", "batch_size": 4}
    wanted = Scenario.model_validate(
        {
            "name": "s", "workload": workload, "schemes": ["all_reduce"], "stop": {"max_iterations": 2},
            "cluster": {
                "workers": 2, "compute": {"time": "1 s"},
                "network": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
            },
        }
    )  # fmt: skip
    job = prepare(resolve(wanted, torch.device("cpu")), wanted.schemes[0], 1)
    alone, all_at_once = job.worker(1).parameters, job.vectorised_worker().parameters
    assert alone == all_at_once
    assert [each.start for each in alone] == [0, *(each.stop for each in alone[:-1])]
    assert alone[-1].stop == len(job.start)
    if trains:
        assert [each.shape for each in alone] == [(64, 64), (64,), (10, 64), (10,)]
    else:
        assert {len(each.shape) for each in alone} == {1}
        assert alone[-1].name == "fc"
