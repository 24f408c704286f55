"""Processes that stay, over the loopback: what they are asked comes back as a record."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, replace

import pytest

from benchmarks.validation.design import with_draws
from paceline.realrun.calibration.measure import durations
from paceline.realrun.calibration.probes import ProbePlan, ProbeTrial
from paceline.realrun.calibration.validate import measured_stop, request, successful_run
from paceline.realrun.launch.pool import Answer, Pool, run_from
from paceline.sim.errors import RunError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.records.run import Machine
from paceline.sim.scenario.schema import parse
from tests.support import warm
from tests.support.factory import flat_network, make_job, simulated

SCENARIO = parse("""
name: tiny
seed: 3
workload: {task: quadratic, dimension: 5, examples: 64, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 2, compute: {time: 5 ms, jitter: {lognormal: {cv: 0.3}}}, network: {latency: 1 ms}}
evaluate: {every: 2 steps}
schemes: [{gossip: {topology: ring}}, ad_psgd]
stop: {max_iterations: 6}
gradients: looped
""")


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(subprocess, "Popen", warm.WarmProcess)
            made = stack.enter_context(Pool(flat_network(3, 0.0, 1e9), lab=False))
        yield made


def test_a_run_comes_back_with_the_simulators_bits(pool: Pool) -> None:
    answer = pool.run(2, request(SCENARIO, 0, 3, {"max_iterations": 6}))
    predicted = simulate_job(prepare(SCENARIO, SCENARIO.schemes[0], 3))
    assert (answer.run.source, answer.run.status, answer.gradients) == ("measured", "completed", 12)
    assert answer.run.digest == predicted.digest
    drawn = {
        e.step: e.end_s - e.start_s for e in answer.run.events if (e.operation, e.worker) == ("gradient", 1)
    }
    meant = {
        e.step: e.end_s - e.start_s for e in predicted.events if (e.operation, e.worker) == ("gradient", 1)
    }
    assert len(meant) == 6
    assert all(drawn[step] >= meant[step] - 1e-9 for step in meant)


def test_other_draws_are_other_computing_times(pool: Pool) -> None:
    asked = request(SCENARIO, 0, 3, {"max_iterations": 6})
    first, again = (pool.run(2, {**asked, "draws": draws}).run for draws in (7, 8))
    assert first.digest == again.digest
    job = prepare(SCENARIO, SCENARIO.schemes[0], 3)
    for run, draws in ((first, 7), (again, 8)):
        took_s = next(e.end_s - e.start_s for e in run.events if (e.operation, e.worker) == ("gradient", 0))
        assert took_s >= with_draws(job, draws).compute.duration_s(0, 0)


def test_probes_run_in_groups_of_any_size(pool: Pool) -> None:
    trials = (
        ProbeTrial(kind="message", num_bytes=640, slot_s=0.02),
        ProbeTrial(kind="barrier", num_bytes=0, slot_s=0.02),
    )
    for workers in (3, 2):
        plan = ProbePlan(workers=workers, trials=trials, repeats=3)
        found = durations(pool.run(workers, {"probe": plan.model_dump(mode="json")}).run.events, 2, skip=1)
        barriers = [(1, "barrier", rank, 0) for rank in range(workers)]
        assert set(found) == {(0, "send", 0, 0), (0, "receive", 1, 0), *barriers}
        assert {len(values) for values in found.values()} == {2}


@pytest.mark.slow
def test_a_process_that_dies_is_an_error() -> None:
    with Pool(flat_network(2, 0.0, 1e9), lab=False) as made:
        made._members[1].kill()
        made._members[1].wait()
        with pytest.raises(RunError, match="worker 1 has ended"):
            made.run(2, request(SCENARIO, 0, 3, {"max_iterations": 6}))


def test_a_record_survives_json() -> None:
    run = simulated(make_job("gossip", {"topology": "ring"}, workers=3, task="quadratic"))
    run = replace(run, machines=(Machine("a", 0.0), Machine("b", None), Machine("b", 1e-3)))
    assert run_from(json.loads(json.dumps(asdict(run)))) == run


def test_a_run_that_overran_its_time_is_refused() -> None:
    run = simulated(make_job("gossip", {"topology": "ring"}, workers=3))
    assert successful_run(Answer(run, 1, 100, 0.0)) is run
    with pytest.raises(RunError, match="2 of 100 gradients took longer"):
        successful_run(Answer(run, 2, 100, 0.0))


def test_a_real_run_goes_beyond_the_predicted_target() -> None:
    target = parse(SCENARIO_WITH_TARGET)
    run = replace(
        simulated(make_job("gossip", {"topology": "ring"}, workers=3)), reached_target=True, iterations=20.0
    )
    stop = measured_stop(target, target.schemes[0], replace(run, time_to_target_s=5.0))
    assert stop == {"max_iterations": 24}
    stop = measured_stop(target, target.schemes[1], replace(run, time_to_target_s=5.0))
    assert stop == {"max_time_s": 6.0}


SCENARIO_WITH_TARGET = """
name: tiny
workload: {task: quadratic, dimension: 5, examples: 64, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 2, compute: {time: 5 ms}, network: {latency: 1 ms}}
evaluate: {every: 2 steps}
schemes: [{gossip: {topology: ring}}, ad_psgd]
stop: {target: {metric: suboptimality, value: 0.02}, max_iterations: 100}
"""
