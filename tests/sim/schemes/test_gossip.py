"""Decentralised SGD: recursions in numpy, exact facts, bytes, overlap, refusals."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from paceline.sim import topology
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.program.worker import State
from paceline.sim.scenario.schema import parse
from paceline.sim.schemes.common.exchange import pack, unpack
from paceline.sim.training.scoring import digest
from tests.support.factory import make_job, run_events, simulated
from tests.support.quadratics import Array, close, finals_of, gradients_of, quadratic_job, start_of

WORKERS, STEPS, LR, BETA = 8, 19, 0.1, 0.9

ORDERS = ("adapt_then_combine", "combine_while_adapting")
MOMENTA = ("local", "mixed")


def _matrices(name: str) -> list[Array]:
    plan = topology.plan(name, WORKERS, "uniform")
    return [plan.at(step).matrix for step in range(plan.period or 0)]


@pytest.mark.parametrize("global_period", [None, 4])
@pytest.mark.parametrize("momentum", MOMENTA)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["ring", "one_peer_exponential"])
def test_is_its_recursion(name: str, order: str, momentum: str, global_period: int | None) -> None:
    options = {"topology": name, "order": order, "momentum": momentum, "global_period": global_period}
    job = quadratic_job("gossip", options, workers=WORKERS, max_iterations=STEPS, lr=LR, momentum=BETA)
    gradients, matrices, x = gradients_of(job), _matrices(name), start_of(job)
    everybody = np.full((WORKERS, WORKERS), 1 / WORKERS)
    m = np.zeros_like(x)
    for k in range(STEPS):
        w = matrices[k % len(matrices)]
        if global_period is not None and k % global_period == global_period - 1:
            w = everybody
        kept = w if momentum == "mixed" else np.eye(WORKERS)
        if order == "adapt_then_combine":
            u = BETA * m + gradients(k, x)
            x, m = w @ (x - LR * u), kept @ u
        else:
            m = BETA * (kept @ m) + gradients(k, x)
            x = w @ x - LR * m
    close(finals_of(job), x)


def test_no_two_variants_are_the_same() -> None:
    found = set()
    for order, momentum, period in itertools.product(ORDERS, MOMENTA, [None, 4]):
        options = {"topology": "ring", "order": order, "momentum": momentum, "global_period": period}
        job = quadratic_job("gossip", options, workers=WORKERS, max_iterations=STEPS, momentum=BETA)
        found.add(digest(run_events(job).finals))
    assert len(found) == 8


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["ring", "static_exponential", "one_peer_exponential", "complete"])
def test_without_noise_every_topology_is_one_worker(name: str, order: str) -> None:
    """Equal functions and equal starts: all workers are gradient descent on one."""
    options = {"topology": name, "order": order}
    one: dict[str, Any] = {"batch_size": 96, "max_iterations": STEPS, "lr": LR, "momentum": BETA}
    alone = finals_of(quadratic_job("local_sgd", {"period": STEPS}, workers=1, **one))
    job = quadratic_job("gossip", options, workers=WORKERS, **one)
    assert job.problem is not None
    whole = np.arange(96)
    same = replace(job.problem, batches=replace(job.problem.batches, shards=(whole,) * WORKERS))
    close(finals_of(replace(job, problem=same)), np.tile(alone, (WORKERS, 1)))


@pytest.mark.parametrize("order", ORDERS)
def test_the_mean_follows_synchronous_sgd(order: str) -> None:
    """Doubly stochastic weights and equal curvature: the mean never notices the topology."""
    full = quadratic_job("all_reduce", {}, workers=WORKERS, max_iterations=STEPS, lr=LR, momentum=BETA)
    for name, momentum in itertools.product(["ring", "static_exponential"], MOMENTA):
        options = {"topology": name, "order": order, "momentum": momentum}
        job = quadratic_job("gossip", options, workers=WORKERS, max_iterations=STEPS, lr=LR, momentum=BETA)
        close(finals_of(job).mean(0), finals_of(full)[0])


def test_a_global_period_brings_everybody_together() -> None:
    options = {"topology": "ring", "global_period": 5}
    run = simulated(quadratic_job("gossip", options, workers=WORKERS, max_iterations=15, lr=LR))
    apart = {e.step: e.metrics["consensus_distance"] or 0.0 for e in run.evaluations}
    assert max(apart[k] for k in (5, 10, 15)) < 1e-14
    assert min(apart[k] for k in (4, 6, 9, 11, 14)) > 1e-3


# --- bytes and time -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "degree"), [("ring", 2), ("static_exponential", 3), ("one_peer_exponential", 1), ("complete", 7)]
)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("momentum", "models"), [("local", 1), ("mixed", 2)])
def test_bytes_per_step(name: str, degree: int, order: str, momentum: str, models: int) -> None:
    options = {"topology": name, "order": order, "momentum": momentum}
    job = make_job(
        "gossip", options, task="quadratic", workers=WORKERS, max_iterations=6, momentum=0.9, every=6
    )
    expected = 6 * WORKERS * degree * models * 4 * job.start.numel()
    assert simulated(job).bytes_sent == pytest.approx(expected, rel=0.01)


def test_bytes_of_global_steps() -> None:
    options = {"topology": "one_peer_exponential", "global_period": 4}
    job = make_job("gossip", options, task="quadratic", workers=WORKERS, max_iterations=8, every=8)
    model = 4 * job.start.numel()
    expected = WORKERS * model * (6 + 2 * 2 * (WORKERS - 1) / WORKERS)
    assert simulated(job).bytes_sent == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("transfer_s", [0.25, 3.0])
def test_combining_while_adapting_hides_the_shorter_of_the_two(transfer_s: float) -> None:
    def wall_s(order: str) -> float:
        options = {"topology": "one_peer_exponential", "order": order}
        job = make_job(
            "gossip", options, workers=WORKERS, compute_s=1.0, max_iterations=10,
            bandwidth_bytes_per_s=4.0 / transfer_s,
        )  # fmt: skip
        return simulated(job).wall_clock_s

    assert wall_s("adapt_then_combine") == pytest.approx(10 * (1.0 + transfer_s), rel=1e-12)
    assert wall_s("combine_while_adapting") == pytest.approx(10 * max(1.0, transfer_s), rel=1e-12)


def test_the_first_step_tells_the_orders_apart() -> None:
    """From a common start: one order combines the first steps, the other has nothing to combine yet."""
    first, second = (
        finals_of(quadratic_job("gossip", {"topology": "complete", "order": order}, max_iterations=1, lr=LR))
        for order in ORDERS
    )
    close(first.mean(0), second.mean(0))
    assert np.ptp(first, axis=0).max() < 1e-15
    assert np.ptp(second, axis=0).max() > 1e-3


@pytest.mark.parametrize(("momentum", "models"), [("local", 1), ("mixed", 2)])
def test_bytes_where_nothing_is_trained(momentum: str, models: int) -> None:
    """The clock alone: a payload for each model, and for each buffer that travels."""
    text = f"""
name: clock
workload: {{timing_only: true, payload: 10 MB, optimizer: {{lr: 0.1, momentum: 0.9}}}}
cluster: {{workers: 4, compute: {{time: 1 s}}, network: {{latency: 1 ms, bandwidth: 1 Gbit/s}}}}
schemes: [gossip: {{topology: ring, momentum: {momentum}}}, sgp: {{topology: star, overlap: 1}}]
stop: {{max_iterations: 5}}
"""
    gossip, push = (simulate_job(prepare(parse(text), entry, 0)) for entry in parse(text).schemes)
    assert gossip.bytes_sent == 5 * 4 * 2 * models * 10_000_000
    assert push.bytes_sent == 5 * 6 * (10_000_000 + 4)  # 4 bytes for the weight


@pytest.mark.parametrize(("momentum", "models"), [("local", 1), ("mixed", 3)])
def test_compressed_bytes_where_nothing_is_trained(momentum: str, models: int) -> None:
    """The share of a long value, however many models and buffers one element each stands for."""
    text = f"""
name: clock
workload: {{timing_only: true, payload: 8 MB, optimizer: {{adam: {{lr: 0.1}}}}}}
cluster: {{workers: 4, compute: {{time: 1 s}}, network: {{latency: 1 ms, bandwidth: 1 Gbit/s}}}}
schemes:
  - gossip: {{topology: ring, momentum: {momentum}, compression: {{qsgd: {{bits: 8, bucket: 512}}}}}}
  - local_sgd: {{period: 1, momentum: {momentum}, compression: {{qsgd: {{bits: 8, bucket: 512}}}}}}
stop: {{max_iterations: 1}}
"""
    neighbours, all_of_them = (simulate_job(prepare(parse(text), entry, 0)) for entry in parse(text).schemes)
    elements = models * 2_000_000
    assert neighbours.bytes_sent == 4 * 2 * (elements + 4 * math.ceil(elements / 512))
    shard = elements // 4 + 4 * math.ceil(elements / 4 / 512)
    assert all_of_them.bytes_sent == 4 * 2 * 3 * shard


def test_buffers_of_the_model_are_no_momentum() -> None:
    """A model of 5 numbers of which 2 are running buffers: the optimiser's moments have 3."""
    x, state = torch.arange(5.0), State(7, (torch.full((3,), 8.0), torch.full((3,), 9.0)))
    whole = pack(x, state, "mixed")
    assert whole.tolist() == [0, 1, 2, 3, 4, 8, 8, 8, 9, 9, 9]
    found, after = unpack(whole, state, "mixed")
    assert torch.equal(found, x)
    assert after.updates == 7
    assert [m.tolist() for m in after.moments] == [[8.0] * 3, [9.0] * 3]
