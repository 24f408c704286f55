"""Gradient noise of real runs on gloo processes is that of the simulation."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.sim.experiments.simulate import simulate_job
from tests.support.cluster_pool import Pool
from tests.support.factory import make_job, scored
from tests.support.small_runs import WORKLOAD, measure


@pytest.mark.parametrize(("scheme", "options"), [("all_reduce", {}), ("local_sgd", {"period": 2})])
def test_measured_as_simulated(four: Pool, scheme: str, options: dict[str, Any]) -> None:
    record, _ = measure(four, scheme, options, gradient_noise=4, **WORKLOAD)
    simulated = simulate_job(scored(make_job(scheme, options, **WORKLOAD), gradient_noise=4)).gradients
    assert [point["step"] for point in record["gradients"]] == [4, 8, 12]
    for measured, expected in zip(record["gradients"], simulated, strict=True):
        # The scored models may be some steps ahead of the average, on a real clock by others.
        assert measured | {"loss": 0.0} == pytest.approx({**expected, "loss": 0.0}, rel=1e-4)


def test_without_an_average_the_noise_alone_is_measured(four: Pool) -> None:
    record, _ = measure(four, "gossip", {"topology": "ring"}, gradient_noise=4, **WORKLOAD)
    got = [(p["step"], p["noise"] > 0, p["heterogeneity"], p["norm2"]) for p in record["gradients"]]
    assert got == [(step, True, None, None) for step in (4, 8, 12)]
