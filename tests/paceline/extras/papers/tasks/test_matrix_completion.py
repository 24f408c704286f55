"""Matrix completion, and leader gradient descent on it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from paceline.extras.papers.tasks.matrix_completion import MATRIX_COMPLETION, MatrixCompletionOptions
from paceline.sim.drivers.job import Job, JobLayers
from paceline.sim.records.run import On
from paceline.sim.scenario.schema import load
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.training.optimizer import Sgd
from paceline.sim.workloads.partition import Batches, Partition, shards
from paceline.sim.workloads.workload import Workload
from tests.support.factory import make_job, run_events, scored, simulated

SIZE, RANK = 8, 2


def _workload(known: float = 1.0) -> Workload:
    made = MATRIX_COMPLETION.build(MatrixCompletionOptions(size=SIZE, rank=RANK, known=known), 3)
    return replace(made, start=made.start.double(), targets=made.targets.double())


def _matrix(workload: Workload) -> torch.Tensor:
    found = torch.zeros(SIZE, SIZE, dtype=torch.float64)
    found[workload.inputs[:, 0], workload.inputs[:, 1]] = workload.targets
    return found


def test_the_matrix_is_symmetric_and_of_its_rank() -> None:
    matrix = _matrix(_workload()).float()
    assert torch.equal(matrix, matrix.T)
    assert int(torch.linalg.matrix_rank(matrix, rtol=1e-5)) == RANK


def test_loss_and_gradient_are_those_of_the_matrices() -> None:
    workload = _workload()
    matrix, x = _matrix(workload), torch.randn(SIZE, RANK, dtype=torch.float64)
    point = x.flatten().requires_grad_()
    loss = workload.loss(point, workload.inputs, workload.targets)
    residual = x @ x.T - matrix
    assert loss.item() == pytest.approx((residual.square().sum() / 4 / SIZE).item(), rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, point)
    torch.testing.assert_close(gradient.view(SIZE, RANK), residual @ x / SIZE, rtol=1e-12, atol=1e-13)
    scores = workload.score(x.flatten())
    assert scores["gradient_norm"] == pytest.approx(gradient.norm().item(), rel=1e-5)
    assert scores["relative_error"] == pytest.approx((residual.norm() / matrix.norm()).item(), rel=1e-5)


def test_a_rotated_solution_is_one_too_and_the_mean_of_two_is_not() -> None:
    workload = _workload()
    values, vectors = torch.linalg.eigh(_matrix(workload))
    x = vectors[:, -RANK:] * values[-RANK:].sqrt()
    turn = torch.tensor([[0.0, -1.0], [1.0, 0.0]], dtype=torch.float64)
    for solution in (x, x @ turn):
        assert workload.score(solution.flatten())["relative_error"] < 1e-6
    assert workload.score(((x + x @ turn) / 2).flatten())["relative_error"] > 0.4


@pytest.mark.parametrize("known", [0.5, 1.0])
def test_examples_are_the_known_entries_each_once(known: float) -> None:
    workload = _workload(known)
    options = MatrixCompletionOptions(size=SIZE, rank=RANK, known=known)
    places = {(int(i), int(j)) for i, j in workload.inputs}
    assert (
        len(places)
        == len(workload.inputs)
        == MATRIX_COMPLETION.facts(options, 3).num_examples
        == known * SIZE**2
    )


def test_the_scenario_of_the_paper_loads() -> None:
    """Its examples have no classes, and everybody gets them all."""
    found = load("scenarios/papers/leader-sgd/matrix.yaml")
    assert (found.workload.partition.kind, found.workload.batch_size) == ("replicated", 1600)


def test_replicated_gives_all_examples_to_everybody() -> None:
    for part in shards(Partition(kind="replicated"), 5, None, 3, seed=1):
        np.testing.assert_array_equal(part, np.arange(5))


def _lgd_job(scheme: str, pull: float, steps: int) -> Job:
    """Full batches, and every worker somewhere else to begin with."""
    options = {"period": 1, "pull": pull, "spread": 1.0}
    job = make_job(scheme, options, workers=4, max_iterations=steps, every=steps, record_events=False)
    workload = MATRIX_COMPLETION.build(MatrixCompletionOptions(size=12, rank=3), 1)
    parts = shards(Partition(kind="replicated"), 144, None, 4, 1)
    problem = TrainingProblem(workload, Batches(parts, 144, 1), "looped")
    return replace(
        job,
        problem=problem,
        task=MATRIX_COMPLETION,
        start=workload.start,
        optimizer=Sgd(0.2),
        layers=JobLayers(workload.segments),
    )


@pytest.mark.slow
def test_the_leader_ends_at_a_stationary_point_where_elastic_workers_do_not() -> None:
    """Elastic forces hold the workers between rotated solutions; the leader's own pull is zero."""
    kinds: tuple[On, ...] = ("leader", "workers")
    for on in kinds:
        leader, elastic = (
            simulated(scored(_lgd_job(scheme, 0.02, 300), on=on)).evaluations[-1].metrics["gradient_norm"]
            for scheme in ("leader_sgd", "easgd")
        )
        assert leader is not None
        assert elastic is not None
        assert leader < 1e-5
        assert elastic > 0.05


def test_workers_that_start_together_do_plain_gradient_descent() -> None:
    job = _lgd_job("leader_sgd", 0.5, 10)
    together = replace(job, options=job.options.model_copy(update={"spread": 0.0}))
    assert job.problem is not None
    workload = job.problem.workload
    x = workload.start
    for _ in range(10):
        point = x.clone().requires_grad_()
        x = x - 0.2 * torch.autograd.grad(workload.loss(point, workload.inputs, workload.targets), point)[0]
    for final in run_events(together).finals:
        torch.testing.assert_close(final, x, rtol=1e-4, atol=1e-6)
