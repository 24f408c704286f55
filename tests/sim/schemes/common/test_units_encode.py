"""Encoded averages whose units add up inside and encode once: times, bytes, models, drivers, refusals."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.scenario.schema import parse
from tests.support.factory import run_events
from tests.support.gpu_hosts import two_sites
from tests.support.lockstep import run_lockstep
from tests.support.quadratics import DIMENSION, close, finals_of, gradients_of, quadratic_job, start_of

WORKERS, STEPS, LR = 8, 12, 0.1
EIGHT_BITS = "{all_reduce: {compression: {qsgd: {bits: 8, bucket: 1000000}}}}"
TENTH = "{all_reduce: {compression: {top_k: {share: 0.1}}}}"
SCENARIO = """\
name: units
workload: {{timing_only: true, payload: 16 MB}}
cluster:
  compute: {{time: 1 s, encoding: {{qsgd: 16 MB/s, top_k: 16 MB/s}}}}
  network:
    sites: {sites}
    within: {{latency: 0.5 s, bandwidth: 32 Mbit/s}}
    between: {{latency: 1 s, bandwidth: 16 Mbit/s}}
collectives: {{inside: {inside}}}
schemes: [{scheme}]
stop: {{max_iterations: 1}}
"""


def timed(scheme: str, inside: str, sites: str = "{a: 4, b: 4}") -> Job:
    scenario = parse(SCENARIO.format(scheme=scheme, inside=inside, sites=sites))
    return prepare(scenario, scenario.schemes[0], scenario.seed)


@pytest.mark.parametrize(
    ("scheme", "inside", "wall_s", "num_bytes"),
    [
        # 12 MB of a sum inside, 0.25 s to encode a quarter, half of its codes and a norm to the other site,
        # of four workers through one pipe; 0.25 s and 0.125 s for the mean; the same back.
        (EIGHT_BITS, "sites", 1 + 3.5 + 0.25 + 2.000008 + 0.375 + 2.000008 + 0.25 + 3.5, 25_000_008),
        # A tenth of a quarter, 8 bytes an element, of four workers through one pipe.
        (TENTH, "sites", 1 + 3.5 + 0.25 + (3.2 / 2 + 1) + 2 * 0.1 * 0.25 + 3.5, 24_800_000),
        # 3.2 MB of each to each, 16 of them through one pipe.
        (TENTH, "workers", 1 + 1 + (16 * 3.2 / 2 / 4 + 1.0) + 8 * 0.1 + 4.8, 22_400_000),
    ],
)
def test_times_and_bytes_by_hand(scheme: str, inside: str, wall_s: float, num_bytes: int) -> None:
    outcome = run_events(timed(scheme, inside))
    assert outcome.wall_s == pytest.approx(wall_s, abs=1e-9)
    assert {each.bytes_sent for each in outcome.breakdowns} == {num_bytes}


def job_of(scheme: str, options: dict[str, Any], inside: str | None, **job: Any) -> Job:
    """Eight workers, two in every host, four in every site."""
    return quadratic_job(
        scheme, options, workers=WORKERS, network=two_sites(), lr=LR, max_iterations=STEPS,
        sums_inside=inside, **job,
    )  # fmt: skip


@pytest.mark.parametrize(("inside", "members"), [("hosts", 2), ("sites", 4)])
def test_units_send_the_largest_elements_of_their_sum_and_keep_the_others(inside: str, members: int) -> None:
    """Each member those of its shard: of five elements, filled up to six or eight."""
    job = job_of("all_reduce", {"compression": {"top_k": {"share": 0.4}}}, inside)
    gradients, x, length = gradients_of(job), start_of(job), -(-DIMENSION // members)
    kept = np.zeros((WORKERS // members, members, length))
    for k in range(STEPS):
        sums = gradients(k, x).reshape(-1, members, DIMENSION).mean(1)
        kept += np.pad(sums, ((0, 0), (0, members * length - DIMENSION))).reshape(kept.shape)
        smallest = np.argsort(-abs(kept), axis=-1, kind="stable")[..., max(1, math.ceil(0.4 * length)) :]
        sent = kept.astype(np.float32).astype(np.float64)
        np.put_along_axis(sent, smallest, 0.0, axis=-1)
        kept -= sent
        x = x - LR * sent.mean(0).reshape(-1)[:DIMENSION]
    close(finals_of(job), x)


QSGD: dict[str, Any] = {"compression": {"qsgd": {"bits": 8, "bucket": 2}}}
TOP_K: dict[str, Any] = {"compression": {"top_k": {"share": 0.4}}}
SCHEMES: list[tuple[str, dict[str, Any]]] = [
    ("all_reduce", QSGD),
    ("local_sgd", {"period": 3, "momentum": "mixed", **TOP_K}),
    ("slowmo", {"period": 3, **QSGD}),
    ("fedavg", {"period": 3, **TOP_K}),
    ("diloco", {"period": 4, "fragments": 2, **QSGD}),
    ("diloco", {"period": 2, "inside": "hosts", **QSGD}),  # whose units encode as they are
]
"""Forms whose averages are encoded."""


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "options"), SCHEMES)
@pytest.mark.parametrize(("inside", "sharing"), [("hosts", "none"), ("sites", "max_min")])
def test_lockstep_computes_the_same_models(
    scheme: str, options: dict[str, Any], inside: str, sharing: str
) -> None:
    """Also where the shards of all units meet on a pipe or a card."""
    momentum = 0.0 if scheme == "slowmo" else 0.9
    job = job_of(scheme, options, inside, sharing=sharing, momentum=momentum, transport="ideal")
    close(run_lockstep(job).numpy(), finals_of(job))
    if inside == "sites":  # on whose pipe groups could meet: the event driver's
        assert simulate_job(job).engine == "event"
        return
    runs = [simulate_job(job, engine=engine) for engine in ("event", "lockstep")]
    assert runs[0].wall_clock_s == pytest.approx(runs[1].wall_clock_s, rel=1e-12)
    assert runs[0].bytes_sent == runs[1].bytes_sent


@pytest.mark.parametrize("delay", [0, 2])
@pytest.mark.parametrize("codes", [{"qsgd": {"bits": 8, "bucket": 1}}, {"top_k": {"share": 1.0}}])
def test_codes_that_lose_nothing_lead_to_the_mean_of_all(codes: dict[str, Any], delay: int) -> None:
    """Up to their single precision; with a delay the average goes on beside the steps that follow."""
    options = {"period": 3, "delay": delay}
    plain = finals_of(job_of("diloco", options, None))
    coded = finals_of(job_of("diloco", {**options, "compression": codes}, "sites"))
    np.testing.assert_allclose(coded, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("inside", "sites", "message"),
    [
        ("sites", "{a: 4, b: 2}", "collectives.inside: one site has 2 workers, another 4"),
        ("sites", "{a: 4}", "collectives.inside: all workers are in one site"),
        ("hosts", "{a: 4, b: 4}", "collectives.inside: every host is one worker"),
        ("racks", "{a: 4, b: 4}", "collectives.inside: unknown choice 'racks'"),
    ],
)
def test_units_that_cannot_be_are_refused(inside: str, sites: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        timed(EIGHT_BITS, inside, sites)
    assert message in str(caught.value)
