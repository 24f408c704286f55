"""The members of a group connect at their first collective, once, on both drivers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.drivers.job import Job
from paceline.sim.experiments.costs.step_cost import step_cost
from paceline.sim.program.worker import Worker
from paceline.sim.scenario.schema import parse
from paceline.sim.schemes.scheme import Scheme
from tests.support.both_drivers import assert_the_same, by_events, job_of
from tests.support.factory import NoOptions, make_job, make_scheme

PAIRS = ((0, 1), (2, 3))


def connecting(job: Job, connect_s: float) -> Job:
    return replace(job, transfer=replace(job.transfer, connect_s=connect_s))


def wall_s(scheme: str | Scheme, options: dict[str, Any], connect_s: float, **given: Any) -> float:
    job = job_of((scheme, options), workers=4, compute_s=1.0, trains=False, max_iterations=4, **given)
    return by_events(connecting(job, connect_s))[1].wall_clock_s


@pytest.mark.parametrize("transport", ["ideal", "gloo", "nccl"])
@pytest.mark.parametrize("scheme", [("all_reduce", {}), ("local_sgd", {"period": 2})])
def test_a_run_is_longer_by_it_once(scheme: tuple[str, dict[str, Any]], transport: str) -> None:
    network: dict[str, Any] = {
        "latency_s": 0.01, "bandwidth_bytes_per_s": 100.0, "transport": transport
    }  # fmt: skip
    plain_s = wall_s(*scheme, 0.0, **network)
    assert wall_s(*scheme, 0.5, **network) == pytest.approx(plain_s + 0.5)


@settings(max_examples=20)
@given(st.floats(0.0, 10.0), st.floats(1.0, 5.0), st.floats(0.0, 1.0))
def test_stragglers_change_nothing_about_that(connect_s: float, slowdown: float, latency_s: float) -> None:
    given: dict[str, Any] = {
        "latency_s": latency_s, "stragglers": (Straggler(workers=(2,), slowdown=slowdown),)
    }  # fmt: skip
    plain_s = wall_s("all_reduce", {}, 0.0, **given)
    assert wall_s("all_reduce", {}, connect_s, **given) == pytest.approx(plain_s + connect_s)


async def _by_pairs(worker: Worker, options: NoOptions) -> None:
    x = worker.start
    async for k in worker.steps():
        x = await worker.all_reduce(await worker.gradient(x), PAIRS if k % 2 else None)
        await worker.publish(k, x)


def test_every_group_connects() -> None:
    scheme = make_scheme(_by_pairs)
    assert wall_s(scheme, {}, 0.5, latency_s=0.0) == 4 * 1.0 + 2 * 0.5


def test_what_began_while_connecting_goes_on_in_order() -> None:
    """Both layers are ready while the group connects, and are sent together 2 s after the first was."""
    timed: dict[str, Any] = {"workers": 2, "compute_s": 1.0, "bandwidth_bytes_per_s": 19_240.0}
    job = make_job("all_reduce", {"overlap": True}, task="digits-mlp", max_iterations=1, **timed)
    plain, late = (by_events(connecting(job, connect_s))[1] for connect_s in (0.0, 2.0))
    ready_s = next(e.end_s for e in plain.events if e.operation == "segment")
    assert late.wall_clock_s == pytest.approx(ready_s + 2.0 + 1.0)
    assert plain.digest == late.digest


@pytest.mark.parametrize("transport", ["ideal", "gloo", "nccl"])
@pytest.mark.parametrize(
    "scheme", [("all_reduce", {}), ("local_sgd", {"period": 3}), (make_scheme(_by_pairs), {})]
)
def test_both_drivers_agree(scheme: tuple[str | Scheme, dict[str, Any]], transport: str) -> None:
    slow = (Straggler(workers=(1,), slowdown=3.0),)
    job = job_of(
        scheme, transport=transport, workers=4, latency_s=0.01, bandwidth_bytes_per_s=1e3, stragglers=slow,
        max_iterations=7,
    )  # fmt: skip
    assert_the_same(connecting(job, 0.7))


@pytest.mark.usefixtures("little_work")
def test_a_step_in_the_long_run_does_not_count_it() -> None:
    text = """\
name: connecting
workload: {timing_only: true, payload: 1 MB}
cluster: {workers: 2, compute: {time: 1 s}, network: {latency: 0 s, bandwidth: 8 Mbit/s, connect: 5 s}}
schemes: [all_reduce]
stop: {max_iterations: 1}
"""
    scenario = parse(text)
    cost = step_cost(scenario, scenario.schemes[0])
    assert cost.step_s == pytest.approx(2.0)
    assert "connecting" in cost.leaves_out
