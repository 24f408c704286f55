"""Gradients at the tensors of a model are those at the vector that they make."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from paceline.sim.training.gradients import FlopCounter, TrainingProblem
from paceline.sim.workloads.partition import Batches, Partition, shards
from paceline.sim.workloads.supervised import supervised
from paceline.sim.workloads.workload import Workload
from tests.support.factory import make_problem


class Tied(nn.Module):
    """Two layers with one matrix, and a parameter that the outputs do not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(3))
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.second(torch.relu(self.first(inputs)))
        return outputs


@pytest.fixture
def tied() -> Workload:
    random = torch.Generator().manual_seed(1)
    inputs, targets = torch.randn(24, 4, generator=random), torch.randn(24, 4, generator=random)
    model = Tied()
    with torch.no_grad():
        for parameter in model.parameters():  # torch's own numbers depend on what was drawn before
            parameter.copy_(torch.randn(parameter.shape, generator=random))
    return supervised("tied", model, nn.functional.mse_loss, (inputs, targets), None, ("train_loss",))


def test_the_tensors_of_a_model_have_the_loss_of_their_vector(tied: Workload) -> None:
    assert tied.parts is not None
    assert [tuple(shape) for shape in tied.parts.shapes] == [(3,), (4, 4), (4,)]
    batch = tied.inputs[:5], tied.targets[:5]
    assert torch.equal(tied.parts.loss(tied.parts.of(tied.start), *batch), tied.loss(tied.start, *batch))


def test_tied_and_unused_parameters_have_the_gradients_of_one_worker(tied: Workload) -> None:
    problem = TrainingProblem(tied, Batches(shards(Partition(), 24, None, 4, 1), 3, 1), "batched")
    points = tied.start + 0.1 * torch.randn(4, tied.start.numel(), generator=torch.Generator().manual_seed(2))
    together = problem.gradients_of_all(0, points)
    for worker in range(4):
        alone = problem.gradient(worker, 0, points[worker])
        torch.testing.assert_close(together.value[worker], alone.value)
        torch.testing.assert_close(together.loss[worker], alone.loss)
    assert not together.value[:, :3].any()
    assert together.value[:, 3:].all(dim=0).any()


@pytest.mark.parametrize(
    "task", ["digits-mlp", "digits-cnn", "logistic", "tests.support.own_tasks:embedding"]
)
def test_flop_are_those_that_torch_counts(task: str) -> None:
    problem = make_problem(task, 2, 1, "looped")
    with FlopCounter() as ours:
        problem.gradient(0, 0, problem.workload.start)
    with FlopCounterMode(display=False) as theirs:
        problem.gradient(0, 0, problem.workload.start)
    assert ours.flop == theirs.get_total_flops() > 0
    assert ours.convolves == (task == "digits-cnn")
