"""Workers of a host or a site that act as one: recursions in numpy, equal drivers, bytes, times, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from paceline.sim import topology
from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.program.pattern import Pattern
from paceline.sim.program.worker import Worker
from paceline.sim.scenario.schema import parse
from paceline.sim.schemes.common.inside import Units
from paceline.sim.training.optimizer import Sgd
from tests.support.factory import run_events
from tests.support.gpu_hosts import hosts_scenario, two_sites
from tests.support.lockstep import run_lockstep
from tests.support.quadratics import DIMENSION, Array, close, finals_of, gradients_of, quadratic_job, start_of

HOSTS, GPUS, STEPS, LR, BETA = 4, 2, 12, 0.1, 0.9
WORKERS = HOSTS * GPUS


def job_of(scheme: str, options: dict[str, Any], **job: Any) -> Job:
    return quadratic_job(
        scheme, options, workers=WORKERS, network=two_sites(), lr=LR, max_iterations=STEPS, **job
    )


def of_units(values: Array, members: int) -> Array:
    """The mean of each unit's rows."""
    return np.asarray(values.reshape(-1, members, values.shape[-1]).mean(1))


@pytest.mark.parametrize("momentum", ["local", "mixed"])
@pytest.mark.parametrize("order", ["adapt_then_combine", "combine_while_adapting"])
def test_gossip_between_hosts_is_its_recursion_with_the_hosts_mean_gradients(
    order: str, momentum: str
) -> None:
    options = {"topology": "ring", "order": order, "momentum": momentum, "inside": "hosts"}
    job = job_of("gossip", options, momentum=BETA)
    gradients, w = gradients_of(job), topology.plan("ring", HOSTS).at(0).matrix
    x = start_of(job)[::GPUS]
    m, kept = np.zeros_like(x), w if momentum == "mixed" else np.eye(HOSTS)
    for k in range(STEPS):
        g = of_units(gradients(k, np.repeat(x, GPUS, axis=0)), GPUS)
        if order == "adapt_then_combine":
            u = BETA * m + g
            x, m = w @ (x - LR * u), kept @ u
        else:
            m = BETA * (kept @ m) + g
            x = w @ x - LR * m
    close(finals_of(job), np.repeat(x, GPUS, axis=0))


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("graph", ["one_peer_exponential", "star"])
def test_sgp_between_hosts_is_its_recursion_with_the_hosts_mean_gradients(graph: str, overlap: int) -> None:
    job = job_of("sgp", {"topology": graph, "overlap": overlap, "inside": "hosts"})
    gradients, plan = gradients_of(job), topology.plan(graph, HOSTS, "column_stochastic")
    x, w = start_of(job)[::GPUS], np.ones((HOSTS, 1))
    sent: list[tuple[Array, Array]] = []
    for k in range(STEPS):
        x = x - LR * of_units(gradients(k, np.repeat(x / w, GPUS, axis=0)), GPUS)
        p = plan.at(k).matrix
        kept = p * np.eye(HOSTS)
        sent.append(((p - kept) @ x, (p - kept) @ w))
        x, w = kept @ x, kept @ w
        if k >= overlap:
            x, w = x + sent[k - overlap][0], w + sent[k - overlap][1]
    close(finals_of(job), np.repeat(x / w, GPUS, axis=0))


@pytest.mark.parametrize(("inside", "members"), [("hosts", GPUS), ("sites", WORKERS // 2)])
@pytest.mark.parametrize("delay", [0, 1])
def test_diloco_between_units_is_its_recursion_with_their_mean_gradients(
    inside: str, members: int, delay: int
) -> None:
    job = job_of("diloco", {"period": 3, "delay": delay, "inside": inside})
    gradients = gradients_of(job)
    x = start_of(job)[::members]
    t, u, sent = x[0].copy(), np.zeros(DIMENSION), {}
    for k in range(STEPS):
        x = x - LR * of_units(gradients(k, np.repeat(x, members, axis=0)), members)
        if (k + 1) % 3 == 0:
            sent[k + delay] = (t - x).mean(0)
        if k in sent:
            u = 0.9 * u + sent[k]
            t = t - 0.7 * (sent[k] + 0.9 * u)
            x = np.tile(t, (len(x), 1))
    close(finals_of(job), np.repeat(x, members, axis=0))


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("gossip", {"topology": "ring", "inside": "hosts"}),
        ("gossip", {"topology": "ring", "inside": "sites", "global_period": 2}),
        ("diloco", {"period": 4, "inside": "hosts", "fragments": 2}),
        ("sgp", {"topology": "one_peer_exponential", "inside": "hosts"}),
        ("sgp", {"topology": "star", "inside": "hosts", "overlap": 1}),
        ("diloco", {"period": 2, "inside": "hosts", "compression": {"qsgd": {"bits": 8, "bucket": 2}}}),
    ],
)
def test_lockstep_computes_the_same_models(scheme: str, options: dict[str, Any]) -> None:
    job = job_of(scheme, options, sharing="none")
    close(run_lockstep(job).numpy(), finals_of(job))


def test_all_members_of_a_unit_have_the_same_bits() -> None:
    finals = run_events(job_of("gossip", {"topology": "ring", "inside": "hosts"})).finals
    for first, second in zip(finals[::2], finals[1::2], strict=True):
        assert first.equal(second)


def test_averages_during_the_backward_pass_have_the_same_bits() -> None:
    after, during = (
        run_events(job_of("diloco", {"period": 2, "inside": "hosts", "overlap": overlap}))
        for overlap in (False, True)
    )
    for first, second in zip(after.finals, during.finals, strict=True):
        assert first.equal(second)


def test_averages_during_the_backward_pass_end_with_its_last_bucket() -> None:
    """Two hosts of two GPUs: 112 MB in four buckets of 28, each a halving and a doubling among the two."""
    walls = []
    for overlap in ("false", "true"):
        text = hosts_scenario(
            "{gpus: 2, latency: 0 s, bandwidth: 448 Mbit/s}", "{a: 2, b: 2}",
            f"{{diloco: {{period: 9, inside: hosts, overlap: {overlap}}}}}",
        ).replace("payload: 8 MB", "payload: 112 MB")  # fmt: skip
        scenario = parse(text)
        walls.append(run_events(prepare(scenario, scenario.schemes[0], scenario.seed)).wall_s)
    after_s, during_s = walls
    average_s = 112 / 56  # half of it out and in, and again
    assert after_s == pytest.approx(1.0 + average_s)
    first_s = 1 / 3 + 2 / 3 / 4  # forward, and a quarter of the backward pass
    assert during_s == pytest.approx(max(first_s + average_s, 1.0 + average_s / 4))


def test_a_pattern_of_units_joins_members_in_the_same_place() -> None:
    swap = Pattern(own=(0.75, 0.5), sources=((1,), (0,)), weights=((0.25,), (0.5,)))
    worker = Worker(
        (0,), 4, start=torch.zeros(4), optimizer=Sgd(LR), seed=0, sites=(0,) * 4, hosts=(0, 0, 1, 1)
    )
    units = Units(worker, "hosts")
    spread = units.pattern(swap)
    assert units.number == 2
    assert units.across == ((0, 2), (1, 3))
    assert spread.own == (0.75, 0.75, 0.5, 0.5)
    assert spread.sources == ((2,), (3,), (0,), (1,))
    assert spread.weights == ((0.25,), (0.25,), (0.5,), (0.5,))


def timed(scheme: str, steps: int = 1, gpus: int = 2, sites: str = "{a: 4, b: 4}") -> Job:
    host = f"{{gpus: {gpus}, latency: 0.25 s, bandwidth: 64 Mbit/s}}"
    scenario = parse(hosts_scenario(host, sites, scheme, steps))
    return prepare(scenario, scenario.schemes[0], scenario.seed)


def test_times_and_bytes_by_hand() -> None:
    """Two sites of one host of four GPUs: an all-reduce of gradients inside; then each GPU sends a quarter,
    all four over the pipe together, 8 MB at 2 MB/s and 1 s; then each passes it on to the three others."""
    job = timed("{gossip: {topology: complete, inside: hosts}}", gpus=4)
    outcome = run_events(job)
    halving_s = 2 * (4 / 8 + 0.25) + 2 * (2 / 8 + 0.25)  # of 8 MB among 4: halves, then quarters, and back
    gathered_s = 3 * 2 / 8 + 0.25  # everybody's quarter straight to all others
    assert outcome.wall_s == 1.0 + halving_s + (8 / 2 + 1.0) + gathered_s
    assert {each.bytes_sent for each in outcome.breakdowns} == {12_000_000 + 2_000_000 + 6_000_000}


@pytest.mark.parametrize(
    ("scheme", "gpus", "sites", "message"),
    [
        ("{diloco: {inside: hosts}}", 1, "{a: 4, b: 4}", "inside: every host is one worker"),
        ("{diloco: {inside: sites}}", 2, "{a: 4, b: 2}", "inside: one site has 2 workers, another 4"),
        ("{diloco: {inside: hosts}}", 4, "{a: 4}", "inside: all workers are in one host"),
        ("{gossip: {topology: hypercube, inside: hosts}}", 2, "{a: 4, b: 2}", "hypercube"),
        ("{diloco: {inside: hosts, quorum: 3}}", 2, "{a: 4, b: 4}", "'inside' needs everybody's part"),
        ("{sgp: {topology: ring, inside: hosts, asynchronous: true}}", 2, "{a: 4, b: 4}", "go together"),
        ("{gossip: {topology: ring, inside: racks}}", 2, "{a: 4, b: 4}", "inside"),
    ],
)
def test_units_that_cannot_be_are_refused(scheme: str, gpus: int, sites: str, message: str) -> None:
    with pytest.raises(InputError, match="scenario:") as caught:
        timed(scheme, gpus=gpus, sites=sites)
    assert message in str(caught.value)
