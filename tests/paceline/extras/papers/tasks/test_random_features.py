"""Decentralised gradient descent in random features: exact in double precision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import linregress

from paceline.extras.papers.tasks.random_features import RandomFeaturesOptions, fourier_features
from paceline.sim.drivers.job import Job
from paceline.sim.seeds import Floats
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.workloads import find_task
from tests.support.factory import make_job, simulated
from tests.support.lockstep import run_lockstep
from tests.support.quadratics import in_double

TASK = find_task("random-features")


def job_of(
    topology: str,
    agents: int,
    each: int,
    steps: int,
    *,
    lr: float = 1.0,
    features: int = 30,
    shards: Any = None,
    seed: int = 1,
    **options: Any,
) -> Job:
    """Gossip with full local gradients in double precision."""
    job = make_job(
        "gossip", {"topology": topology}, workers=agents, task="random-features", batch_size=each, lr=lr,
        max_iterations=steps, seed=seed,
        task_options={"examples": agents * each, "features": features, **options},
    )  # fmt: skip
    if shards is not None:
        assert job.problem is not None
        job = replace(job, problem=replace(job.problem, batches=replace(job.problem.batches, shards=shards)))
    return in_double(job)


def table(job: Job, rank: int) -> tuple[Floats, Floats]:
    """Sigma [M, M] and b [M] of an agent's own examples."""
    assert job.problem is not None
    rows = job.problem.batches.shards[rank]
    phi, y = job.problem.workload.inputs[rows].numpy(), job.problem.workload.targets[rows].numpy()
    return phi.T @ phi / len(rows), phi.T @ y / len(rows)


def pooled(job: Job) -> tuple[Floats, Floats]:
    tables = [table(job, rank) for rank in range(job.workers)]
    return np.mean([sigma for sigma, _ in tables], 0), np.mean([b for _, b in tables], 0)


def descend(sigma: Floats, b: Floats, steps: int, lr: float) -> Floats:
    """Gradient descent from 0 on one machine."""
    w = np.zeros_like(b)
    for _ in range(steps):
        w = w - lr * (sigma @ w - b)
    return w


def ring_matrix(n: int) -> Floats:
    return sum(np.roll(np.eye(n), shift, 1) for shift in (-1, 0, 1)) / 3  # type: ignore[return-value]


def test_the_network_recursion_is_linear() -> None:
    job = job_of("ring", 5, 8, 12)
    w = np.zeros((5, 30))
    tables = [table(job, rank) for rank in range(5)]
    for _ in range(12):
        stepped = np.stack([w[v] - (tables[v][0] @ w[v] - tables[v][1]) for v in range(5)])
        w = ring_matrix(5) @ stepped
    np.testing.assert_allclose(run_lockstep(job).numpy(), w, atol=1e-12)


def test_complete_averaging_is_pooled_gradient_descent() -> None:
    job = job_of("complete", 6, 10, 40)
    expected = descend(*pooled(job), 40, 1.0)
    for own in run_lockstep(job).numpy():
        np.testing.assert_allclose(own, expected, atol=1e-12)


def test_with_identical_shards_everybody_is_one_machine() -> None:
    same = (np.arange(9),) * 4
    job = job_of("ring", 4, 9, 25, shards=same)
    expected = descend(*table(job, 0), 25, 1.0)
    for own in run_lockstep(job).numpy():
        np.testing.assert_allclose(own, expected, atol=1e-12)


def test_early_stopping_is_a_spectral_filter() -> None:
    """w_t = sum over eigenvalues of (1 - (1 - lr lambda)^t) / lambda, from 0."""
    job = job_of("complete", 2, 20, 50, lr=0.7)
    sigma, b = pooled(job)
    values, vectors = np.linalg.eigh(sigma)
    values = values.clip(min=1e-15)
    filtered = (1 - (1 - 0.7 * values) ** 50) / values
    np.testing.assert_allclose(
        run_lockstep(job)[0].numpy(), vectors @ (filtered * (vectors.T @ b)), atol=1e-9
    )


def test_early_stopping_is_near_a_ridge_of_one_over_the_steps() -> None:
    """In every direction at least what a penalty 1 / (lr t) leaves of it, and at most 1.3 times that."""
    lr, steps = 0.7, 50
    job = job_of("complete", 2, 20, steps, lr=lr)
    sigma, b = pooled(job)
    values, vectors = np.linalg.eigh(sigma)
    stopped = vectors.T @ run_lockstep(job)[0].numpy()
    ridge = vectors.T @ np.linalg.solve(sigma + np.eye(30) / (lr * steps), b)
    ratios = (stopped / ridge)[values > 1e-9]
    assert len(ratios) > 10
    assert (ratios >= 1).all()
    assert (ratios < 1.31).all()


def test_descent_is_monotone_up_to_one_over_the_curvature_and_stable_up_to_two() -> None:
    largest = np.linalg.eigvalsh(pooled(job_of("complete", 2, 40, 1, features=3))[0])[-1]

    def away(over_curvature: float, steps: int) -> Floats:
        """From the solution, along the eigenvectors."""
        job = job_of("complete", 2, 40, steps, lr=over_curvature / largest, features=3)
        sigma, b = pooled(job)
        distance: Floats = np.linalg.eigh(sigma)[1].T @ (
            run_lockstep(job)[0].numpy() - np.linalg.solve(sigma, b)
        )
        return distance

    for over_curvature in (0.5, 1.0):
        path = np.stack([away(over_curvature, steps) for steps in (1, 2, 3, 10, 40)])
        assert (np.abs(np.diff(np.sign(np.where(np.abs(path) < 1e-12, 0, path)), axis=0)) < 2).all()
        assert (np.diff(np.abs(path), axis=0) < 1e-12).all()
    assert away(1.5, 1)[-1] * away(1.5, 2)[-1] < 0  # from one side of the solution to the other
    assert np.abs(away(1.9, 500)).max() < 1e-9
    assert np.abs(away(2.1, 500)[-1]) > 1e9


def test_the_mean_is_pooled_descent_where_all_see_the_same_points() -> None:
    """The same x, other noise in y, on any doubly stochastic graph."""
    job = job_of("ring", 5, 8, 30)
    assert job.problem is not None
    workload = job.problem.workload
    inputs = workload.inputs.clone()
    for rank in range(5):
        inputs[job.problem.batches.shards[rank]] = workload.inputs[:8]
    job = replace(job, problem=replace(job.problem, workload=replace(workload, inputs=inputs)))
    np.testing.assert_allclose(run_lockstep(job).mean(0).numpy(), descend(*pooled(job), 30, 1.0), atol=1e-12)


def test_disagreement_on_a_ring_follows_its_eigenvalues() -> None:
    """Mode k of P goes to mu_k lr b_k / (1 - mu_k (1 - lr lambda)) where all Sigma are one number lambda."""
    n, lr, sigma = 7, 0.5, 0.4
    job = job_of("ring", n, 1, 400, lr=lr, features=1)
    assert job.problem is not None
    workload = replace(
        job.problem.workload,
        inputs=torch.full((n, 1), sigma**0.5).double(),
        targets=torch.linspace(-1, 2, n).double(),
    )
    shards = tuple(np.array([rank]) for rank in range(n))
    batches = replace(job.problem.batches, shards=shards)
    job = replace(job, problem=TrainingProblem(workload, batches, "looped"))
    b = np.fft.fft(sigma**0.5 * workload.targets.numpy())
    mu = 1 / 3 + 2 / 3 * np.cos(2 * np.pi * np.arange(n) / n)
    expected = mu * lr * b / (1 - mu * (1 - lr * sigma))
    np.testing.assert_allclose(np.fft.fft(run_lockstep(job)[:, 0].numpy()), expected, atol=1e-10)


def test_unequal_shards_end_beside_the_pooled_solution_by_the_step() -> None:
    """Half the learning rate, half the distance; no distance with complete averaging."""

    def distance(topology: str, lr: float) -> float:
        job = job_of(topology, 4, 40, round(150 / lr), lr=lr, features=3)
        solution = np.linalg.solve(*pooled(job))
        return float(np.linalg.norm(run_lockstep(job).numpy().mean(0) - solution))

    assert distance("complete", 0.5) < 1e-9
    assert distance("ring", 0.25) / distance("ring", 0.5) == pytest.approx(0.5, abs=0.1)


def test_shards_differ_by_one_over_the_root_of_their_size() -> None:
    """E |b_v - b|^2 = (1 - 1/n) tr Cov(y phi) / m."""

    def disagreement(each: int) -> tuple[float, float]:
        """Measured, and by the covariance of all examples."""
        values, expected = [], []
        for seed in range(30):
            job = job_of("ring", 8, each, 1, seed=seed, features=10)
            assert job.problem is not None
            workload = job.problem.workload
            b = np.stack([table(job, rank)[1] for rank in range(8)])
            values.append(((b - b.mean(0)) ** 2).sum(1).mean())
            spread = (workload.inputs * workload.targets[:, None]).numpy().var(0, ddof=1).sum()
            expected.append((1 - 1 / 8) * spread / each)
        return float(np.mean(values)), float(np.mean(expected))

    (few, few_expected), (many, many_expected) = disagreement(50), disagreement(100)
    assert few == pytest.approx(few_expected, rel=0.1)
    assert many == pytest.approx(many_expected, rel=0.1)
    assert few / many == pytest.approx(2, rel=0.2)


def test_features_approximate_the_kernel() -> None:
    """phi(x) . phi(x') is near exp(-width^2 |x - x'|^2 / 2), the error falls as 1 / sqrt(M)."""
    points = np.random.default_rng(0).standard_normal((40, 3))
    distances = ((points[:, None] - points[None]) ** 2).sum(-1)
    errors = []
    for m in (100, 400, 1600, 6400):
        phi = np.stack([fourier_features(points, m, 0.8, seed) for seed in range(8)])
        assert ((phi**2).sum(-1) <= 2).all()
        kernels = phi @ phi.transpose(0, 2, 1)
        errors.append(np.sqrt(((kernels - np.exp(-0.32 * distances)) ** 2).mean()))
    slope = linregress(np.log([100, 400, 1600, 6400]), np.log(errors)).slope
    assert slope == pytest.approx(-0.5, abs=0.06)


def test_messages_are_models_whatever_the_number_of_examples() -> None:
    """deg M 4 bytes for each agent and iteration."""
    sent = []
    for each in (5, 50):
        job = make_job(
            "gossip", {"topology": "ring"}, workers=6, task="random-features", batch_size=each,
            max_iterations=3, task_options={"examples": 6 * each, "features": 25},
        )  # fmt: skip
        sent.append(simulated(job).bytes_sent)
    assert sent == [3 * 6 * 2 * 25 * 4] * 2


def test_topology_does_not_matter_where_agents_hold_enough() -> None:
    """With few examples a large cycle is worse than the complete graph; with many the two coincide."""

    def excess(each: int) -> float:
        losses = {}
        for topology in ("ring", "complete"):
            job = job_of(topology, 25, each, 60, features=40, seed=3)
            assert job.problem is not None
            final = run_lockstep(job).float()
            losses[topology] = np.mean([job.problem.workload.score(w)["test_loss"] for w in final])
        return float(losses["ring"] / losses["complete"] - 1)

    few, many = excess(4), excess(200)
    assert few > 0.2
    assert abs(many) < 0.02


@pytest.mark.slow
def test_curves_of_graphs_coincide_with_many_examples_and_part_until_the_inverse_gap_with_few() -> None:
    """25 agents, medians of 5 seeds; a cycle's inverse gap is 48, by which three quarters of it are there."""

    def excess(topology: str, each: int, steps: int) -> float:
        """Of the test loss over that of complete averaging."""
        ratios = []
        for seed in range(1, 6):
            losses = {}
            for name in (topology, "complete"):
                job = job_of(name, 25, each, steps, features=40, seed=seed)
                assert job.problem is not None
                final = run_lockstep(job).float()
                losses[name] = np.mean([job.problem.workload.score(w)["test_loss"] for w in final])
            ratios.append(losses[topology] / losses["complete"] - 1)
        return float(np.median(ratios))

    assert all(abs(excess(topology, 200, steps)) < 0.04 for topology in ("ring", "grid") for steps in (3, 48))
    early, sooner, parted, late = (excess("ring", 4, steps) for steps in (3, 12, 48, 192))
    assert early < 0.3 * late
    assert sooner < 0.75 * late < parted


def test_more_features_than_needed_change_nothing() -> None:
    def loss(features: int) -> float:
        job = job_of("complete", 2, 500, 150, features=features, seed=2)
        assert job.problem is not None
        return job.problem.workload.score(run_lockstep(job)[0].float())["test_loss"]

    few, enough, many = loss(3), loss(400), loss(1200)
    assert few > 5 * enough
    assert many == pytest.approx(enough, rel=0.25)


@pytest.mark.parametrize(("data", "examples"), [("breast_cancer", 456), ("diabetes", 354)])
def test_real_data_sets(data: str, examples: int) -> None:
    options = RandomFeaturesOptions.model_validate({"data": data, "features": 50, "width": 0.2})
    workload, facts = TASK.build(options, 1), TASK.facts(options, 1)
    assert len(workload.inputs) == facts.num_examples == examples
    assert tuple(workload.score(workload.start)) == facts.metrics
    assert workload.labels is not None
    assert torch.equal(workload.labels > 0, workload.targets > 0)
    assert TASK.build(options, 2).inputs.shape == workload.inputs.shape
    assert not torch.equal(TASK.build(options, 2).inputs, workload.inputs)  # other frequencies
    assert torch.equal(TASK.build(options, 1).inputs, workload.inputs)


def test_it_learns_the_real_classes() -> None:
    job = make_job(
        "gossip", {"topology": "ring"}, workers=6, task="random-features", batch_size=76, lr=1.0,
        max_iterations=150, task_options={"data": "breast_cancer", "features": 200, "width": 0.15}, every=150,
    )  # fmt: skip
    accuracy = simulated(job).evaluations[-1].metrics["test_accuracy"]
    assert accuracy is not None
    assert accuracy > 0.9
