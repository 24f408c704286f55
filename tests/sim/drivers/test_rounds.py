"""Hierarchical all-reduces on equal clusters: by hand, and as their messages one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from paceline.sim.drivers.job import UNRECORDED, Job
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from paceline.sim.experiments.prepare import prepare, resolve
from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import parse
from tests.support.factory import run_events

SCENARIO = """\
name: rounds
workload: {{timing_only: true, payload: {payload}}}
cluster:
  compute: {{time: {compute}}}
  network:
    sites: {{a: 4, b: 4}}
    within: {{latency: 0.5 s, bandwidth: 32 Mbit/s}}
    between: {{latency: 1 s, bandwidth: 16 Mbit/s}}
    host: {{gpus: 2, latency: 0.25 s, bandwidth: 64 Mbit/s}}
    transport: {transport}
collectives: {{all_reduce: {algorithm}}}
schemes: [{scheme}]
stop: {{max_iterations: {steps}}}
"""
OVERLAPPED = "{all_reduce: {overlap: true, bucket: 2 MB}}"


def job_of(
    scheme: str = "all_reduce", payload: str = "8 MB", compute: str = "1 s", transport: str = "ideal",
    algorithm: str = "hierarchical", steps: int = 1, changes: tuple[str, ...] = (),
) -> Job:  # fmt: skip
    text = SCENARIO.format(
        scheme=scheme, payload=payload, compute=compute, transport=transport, algorithm=algorithm, steps=steps
    )
    scenario = parse(text, changes=changes)
    return prepare(scenario, scenario.schemes[0], scenario.seed)


@pytest.mark.parametrize("priced", [True, False])
def test_an_iteration_takes_what_it_takes_by_hand(priced: bool) -> None:
    """Of 8 MB, each way: 4 MB inside a host at 8 MB/s and 0.25 s; 2 MB of each of two GPUs over a card of 4
    MB/s and 0.5 s; 1 MB of each of four GPUs over the pipe of 2 MB/s and 1 s."""
    each_way_s = (4 / 8 + 0.25) + (2 * 2 / 4 + 0.5) + (4 * 1 / 2 + 1.0)
    outcome = run_events(job_of(), priced=priced)
    assert outcome.wall_s == 1.0 + 2 * each_way_s == 11.5
    assert {each.bytes_sent for each in outcome.breakdowns} == {2 * (4_000_000 + 2_000_000 + 1_000_000)}


@pytest.mark.parametrize(("payload", "chosen"), [("8 kB", "hierarchical"), ("8 MB", "ring")])
def test_auto_prices_the_hierarchy_among_the_others(payload: str, chosen: str) -> None:
    """Six latencies; but a ring has one flow on each pipe, and pieces that hide latency behind bytes."""
    text = SCENARIO.format(
        scheme="all_reduce", payload=payload, compute="1 s", transport="ideal", algorithm="auto", steps=1
    )
    resolved = resolve(parse(text), torch.device("cpu"))
    assert resolved.collectives.chosen == {"all_reduce": {"all_reduce": chosen}}
    took_s = {
        algorithm: run_events(job_of(payload=payload, algorithm=algorithm)).wall_s
        for algorithm in ("hierarchical", "ring", "double_tree", "halving_doubling")
    }
    (run,) = simulate(resolved)
    assert run.wall_clock_s == pytest.approx(took_s[chosen], rel=1e-9)
    assert took_s[chosen] == min(took_s.values())


@pytest.mark.parametrize("transport", ["ideal", "nccl"])
@pytest.mark.parametrize("compute", ["1 s", "30 s", "0.01 s"])
def test_layers_that_meet_on_the_links_share_them_as_their_messages_do(transport: str, compute: str) -> None:
    job = job_of(OVERLAPPED, compute=compute, transport=transport, steps=2)
    priced, single = run_events(job, priced=True), run_events(job)
    assert priced.wall_s == pytest.approx(single.wall_s, rel=1e-9)
    for ours, theirs in zip(priced.breakdowns, single.breakdowns, strict=True):
        assert ours.bytes_sent == theirs.bytes_sent
        assert ours.communicate_s == pytest.approx(theirs.communicate_s, rel=1e-9)


def test_who_comes_late_makes_every_message_count() -> None:
    late = ("cluster.stragglers=[{workers: [3], slowdown: 2}]",)
    job = job_of(changes=late)
    assert run_events(job, priced=True).wall_s == pytest.approx(run_events(job).wall_s, rel=1e-9)
    overlapped = job_of(OVERLAPPED, changes=late)
    assert run_events(overlapped, priced=True).wall_s == pytest.approx(
        run_events(overlapped).wall_s, rel=1e-12
    )


def test_anything_else_on_the_links_makes_every_message_count() -> None:
    job = job_of("{local_sgd: {period: 2}}", steps=4)
    assert run_events(job, priced=True).wall_s == pytest.approx(run_events(job).wall_s, rel=1e-9)
    job = job_of("{gossip: {topology: ring, global_period: 2}}", steps=4)
    assert run_events(job, priced=True).wall_s == pytest.approx(run_events(job).wall_s, rel=1e-12)


def test_lockstep_finds_the_same_time() -> None:
    job = replace(job_of(steps=3), recording=UNRECORDED)
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    assert LockstepDriver(job, scorer).run().wall_s == pytest.approx(run_events(job).wall_s, rel=1e-9)


def test_a_payload_that_does_not_divide_goes_in_equal_parts() -> None:
    job = job_of(payload="8000003 B")
    priced, single = run_events(job, priced=True), run_events(job)
    assert priced.wall_s == pytest.approx(single.wall_s, rel=1e-12)
    assert priced.wall_s == pytest.approx(1.0 + 2 * (8_000_003 * (1 / 16e6 + 1 / 8e6 + 1 / 4e6) + 1.75))
