"""Workers of a site that act as one, or encode their sum, on real processes and in the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from paceline.sim.experiments.parity import compare_iterates
from paceline.sim.records.run import Run
from tests.support.cluster_pool import Pool
from tests.support.factory import make_job, run_events, simulated, sites_of
from tests.support.small_runs import PADDED, QSGD, TOP_K, WORKLOAD, measure


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("gossip", {"topology": "complete", "inside": "sites"}),
        ("diloco", {"period": 3, "inside": "sites"}),
        ("diloco", {"period": 3, "inside": "sites", "overlap": True}),
        ("diloco", {"period": 4, "fragments": 2, "delay": 1, "inside": "sites"}),
        ("sharded", {"inside": "sites"}),
    ],
)
def test_workers_of_a_site_act_as_one_on_processes_too(
    four: Pool, scheme: str, options: dict[str, Any]
) -> None:
    sites = {"a": 2, "b": 2}
    measured, finals = measure(four, scheme, options, sites=sites, **WORKLOAD)
    job = make_job(scheme, options, workers=4, network=sites_of(sites), **WORKLOAD)
    predicted = simulated(job)
    assert measured["bytes_sent"] == predicted.bytes_sent
    assert tuple(measured["exchanges"]) == predicted.exchanges
    assert finals[0].equal(finals[1])
    assert finals[2].equal(finals[3])
    for final, expected in zip(finals, run_events(job).finals, strict=True):
        assert ((final - expected).norm() / expected.norm()).item() < 1e-5


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("all_reduce", QSGD),
        ("local_sgd", {"period": 3, "momentum": "mixed", **TOP_K}),
        ("diloco", {"period": 4, "fragments": 2, "delay": 1, **QSGD}),
        ("fedavg", {"period": 3, **QSGD}),
    ],
)
def test_sites_that_encode_their_sum_have_the_same_bits(
    four: Pool, scheme: str, options: dict[str, Any]
) -> None:
    """A sum of two workers' values is rounded in one way only; codes of it are as those of a value."""
    sites, cluster = {"a": 2, "b": 2}, {"sums_inside": "sites", **WORKLOAD, **PADDED}
    measured, _ = measure(four, scheme, options, sites=sites, **cluster)
    job = make_job(scheme, options, workers=4, network=sites_of(sites), **cluster)
    predicted = simulated(job)
    assert (measured["digest"], measured["bytes_sent"]) == (predicted.digest, predicted.bytes_sent)
    assert tuple(measured["exchanges"]) == predicted.exchanges
    assert (
        predicted.bytes_sent
        != simulated(replace(job, collectives=replace(job.collectives, sums_inside=None))).bytes_sent
    )
    says = "the same bits in all 48 models that the workers published"
    trajectory = compare_iterates(job, TypeAdapter(Run).validate_python(measured))
    assert (trajectory["same"], trajectory["says"]) == (True, says)
