"""Gradient tracking and CHOCO-SGD: recursions in numpy, exact facts, bytes, refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from paceline.sim import topology
from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError
from paceline.sim.records.run import Run
from paceline.sim.schemes import SCHEMES
from tests.support.factory import make_job, simulated
from tests.support.lockstep import run_lockstep
from tests.support.quadratics import Array, close, finals_of, gradients_of, quadratic_job, start_of

WORKERS, STEPS, LR, BETA = 8, 19, 0.1, 0.9


def _matrices(name: str) -> list[Array]:
    plan = topology.plan(name, WORKERS)
    return [plan.at(step).matrix for step in range(plan.period or 0)]


@pytest.mark.parametrize("momentum", [0.0, BETA])
@pytest.mark.parametrize("name", ["ring", "one_peer_exponential"])
def test_gradient_tracking_is_its_recursion(name: str, momentum: float) -> None:
    job = quadratic_job(
        "gradient_tracking", {"topology": name}, workers=WORKERS, max_iterations=STEPS, lr=LR,
        momentum=momentum,
    )  # fmt: skip
    gradients, matrices, x = gradients_of(job), _matrices(name), start_of(job)
    y, before, m = np.zeros_like(x), np.zeros_like(x), np.zeros_like(x)
    for k in range(STEPS):
        w = matrices[k % len(matrices)]
        g = gradients(k, x)
        y = y + g - before  # the average of the last y came with the models
        before = g
        close(y.sum(0), g.sum(0))
        m = momentum * m + y
        x, y = w @ (x - LR * m), w @ y
    close(finals_of(job), x)


def _unequal(scheme: str, options: dict[str, Any], steps: int) -> tuple[Job, Array]:
    """A job whose workers have data and curvatures of their own, and the optimum of all.

    f_i(x) = 1/2 sum_e (a_e x - b_e)^2 over the examples e of worker i, without noise: whole shards a batch.
    """
    job = quadratic_job(scheme, options, workers=WORKERS, max_iterations=steps, batch_size=12, lr=0.2)
    assert job.problem is not None
    problem = job.problem
    generator = torch.Generator().manual_seed(5)
    curvature = 0.2 + 1.8 * torch.rand(problem.workload.inputs.shape, generator=generator).double()
    inputs = torch.cat([problem.workload.inputs, curvature], dim=-1)
    shards = tuple(np.arange(12 * i, 12 * (i + 1)) for i in range(WORKERS))

    def loss(x: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        wanted, weights = inputs.chunk(2, dim=-1)
        return 0.5 * (weights * (x - wanted - torch.sign(wanted)).square()).sum(-1).mean()

    workload = replace(problem.workload, inputs=inputs, loss=loss)
    batches = replace(problem.batches, shards=shards)
    job = replace(job, problem=replace(problem, workload=workload, batches=batches))
    wanted, weights = inputs.chunk(2, dim=-1)
    wanted = wanted + torch.sign(wanted)
    pooled = (weights * wanted).sum(0) / weights.sum(0)
    return job, pooled.numpy()


def test_gradient_tracking_reaches_the_optimum_of_all_where_gossip_does_not() -> None:
    tracking, optimum = _unequal("gradient_tracking", {"topology": "ring"}, 400)
    close(run_lockstep(tracking).numpy(), np.tile(optimum, (WORKERS, 1)))
    gossip, _ = _unequal("gossip", {"topology": "ring", "order": "combine_while_adapting"}, 400)
    stays = run_lockstep(gossip).numpy()
    assert np.abs(stays - optimum).max() > 1e-2
    assert np.abs(stays.mean(0) - optimum).max() > 1e-4


# --- CHOCO --------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.0, BETA])
def test_choco_without_compression_is_gossip(momentum: float) -> None:
    same: dict[str, Any] = {"workers": WORKERS, "max_iterations": STEPS, "lr": LR, "momentum": momentum}
    choco = quadratic_job("choco_sgd", {"topology": "ring"}, **same)
    close(finals_of(choco), finals_of(quadratic_job("gossip", {"topology": "ring"}, **same)))


@pytest.mark.parametrize("compression", [None, {"top_k": {"share": 0.4}}])
def test_choco_is_its_recursion(compression: dict[str, Any] | None) -> None:
    """Written with the public copies of all workers, and its sum over neighbours."""
    options = {"topology": "ring", "gamma": 0.3, "compression": compression}
    job = quadratic_job("choco_sgd", options, workers=WORKERS, max_iterations=STEPS, lr=LR)
    (w,) = _matrices("ring")
    gradients, x = gradients_of(job), start_of(job)
    v = x.copy()
    for k in range(STEPS):
        x = x - LR * gradients(k, x)
        q = x - v
        if compression:
            for i in range(WORKERS):
                kept = np.argsort(-np.abs(q[i]), kind="stable")[:2]
                row = np.zeros_like(q[i])
                row[kept] = q[i, kept].astype(np.float32)
                q[i] = row
        v = v + q
        mean = x.mean(0)
        x = x + 0.3 * (w @ v - w.sum(1, keepdims=True) * v)
        close(x.mean(0), mean)
    close(finals_of(job), x)


def test_choco_brings_workers_together_with_a_tenth_of_the_elements() -> None:
    """Gossip of models that are cut like that is refused."""

    def run(options: dict[str, Any]) -> Run:
        job = make_job(
            "choco_sgd", {"topology": "ring", **options}, task="quadratic", workers=WORKERS, lr=3e-3,
            task_options={"dimension": 40, "examples": 96}, max_iterations=100, every=100,
            record_events=False,
        )  # fmt: skip
        return simulated(job)

    rough, plain = run({"gamma": 0.1, "compression": {"top_k": {"share": 0.1}}}), run({})
    assert rough.bytes_sent == pytest.approx(0.2 * plain.bytes_sent, rel=0.01)
    losses = [each.evaluations[-1].metrics["train_loss"] for each in (rough, plain)]
    assert losses[0] == pytest.approx(losses[1], rel=0.01)


# --- what is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scheme", "options", "words"),
    [
        ("gradient_tracking", {"topology": "star", "weights": "column_stochastic"}, "have to sum to 1"),
        ("choco_sgd", {"topology": "star", "weights": "column_stochastic"}, "have to sum to 1"),
        ("choco_sgd", {"topology": "one_peer_exponential"}, "changes from step to step"),
        ("choco_sgd", {"topology": "ring", "compression": {"top_k": {"share": 0.1}}}, "'gamma: 0.1'"),
        ("gossip", {"topology": "ring", "compression": {"top_k": {"share": 0.1}}}, "use choco_sgd"),
        ("gradient_tracking", {"topology": "ring", "compression": {"top_k": {"share": 0.1}}}, "use choco"),
    ],
)
def test_what_cannot_work_is_refused(scheme: str, options: dict[str, Any], words: str) -> None:
    entry = SCHEMES[scheme]
    with pytest.raises(InputError, match=words):
        entry.check(entry.options.model_validate(options), 4)
