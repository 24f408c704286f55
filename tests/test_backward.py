"""Parts of a gradient are known during the backward pass, and are those of the whole."""

from __future__ import annotations

import pytest
import torch

from realrun.computing import Segments
from sim.backward import gradient_in_parts
from sim.gradients import Evaluated
from sim.workloads.modules import flat
from tests.factory import make_problem


class Tied(torch.nn.Module):
    """One matrix, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = torch.nn.Linear(5, 5)
        self.last = torch.nn.Linear(5, 1)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.last(self.shared(self.shared(inputs).tanh()))
        return found


MODULES = {
    "two layers": torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.ReLU(), torch.nn.Linear(4, 1)),
    "batch norm": torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 1)),
    "tied": Tied(),
}


@pytest.mark.parametrize("name", MODULES)
def test_parts_are_those_of_the_whole(name: str) -> None:
    inputs = torch.randn(6, 5, generator=torch.Generator().manual_seed(1))
    apart = flat(MODULES[name], inputs)
    leaf = apart.start.clone().requires_grad_()
    parts: list[tuple[int, int, torch.Tensor]] = []
    loss = apart.train(leaf, inputs)[0].square().mean()
    whole = gradient_in_parts(loss, leaf, lambda *part: parts.append(part))
    again = apart.start.clone().requires_grad_()
    assert torch.equal(whole, torch.autograd.grad(apart.train(again, inputs)[0].square().mean(), again)[0])
    assert sorted(start for start, _, _ in parts)[0] == 0
    assert sum(stop - start for start, stop, _ in parts) == len(whole) - apart.num_buffers
    for start, stop, value in parts:
        assert torch.equal(value, whole[start:stop])
    assert parts[0][0] > parts[-1][0]  # the last layer first


@pytest.mark.parametrize("task", ["digits-mlp", "digits-cnn"])
def test_a_problem_tells_of_all_its_segments_in_backward_order(task: str) -> None:
    problem = make_problem(task, 2, 1, "looped")
    known: list[tuple[int, Evaluated]] = []
    segments = Segments(problem.workload.segments, lambda *segment: known.append(segment))
    found = problem.gradient(1, 0, problem.workload.start, segments.told)
    assert torch.equal(found.value, problem.gradient(1, 0, problem.workload.start).value)
    assert [start for start, _ in known] == [start for _, start, _ in problem.workload.segments]
    for (_, start, stop), (_, part) in zip(problem.workload.segments, known, strict=True):
        assert torch.equal(part.value, found.value[start:stop])
        assert torch.equal(part.loss, found.loss)


def test_a_loss_that_does_not_split_its_vector_tells_of_nothing() -> None:
    problem = make_problem("quadratic", 2, 1, "looped")
    told: list[int] = []
    found = problem.gradient(0, 0, problem.workload.start, lambda start, stop, part: told.append(start))
    assert told == []
    assert torch.equal(found.value, problem.gradient(0, 0, problem.workload.start).value)
