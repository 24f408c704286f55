"""A worker that is gone: who notices, and who goes on."""

from __future__ import annotations

from dataclasses import astuple
from io import StringIO

import pytest
from rich.console import Console

from paceline.extras.replay.replay_driver import replay
from paceline.realrun.launch.cells import run_requests
from paceline.realrun.launch.processes import Processes, measure_runs
from paceline.reports.tables import render_summary, warnings
from paceline.reports.words import failures
from paceline.sim.errors import InputError
from paceline.sim.experiments.costs.step_cost import step_cost
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.run import Run
from paceline.sim.records.summarise import summarise
from paceline.sim.records.summary import Summary
from paceline.sim.scenario.schema import Scenario, parse
from paceline.sim.training.scoring import digest
from paceline.sim.training.snapshots import Published
from tests.support import warm

SCENARIO = """\
name: crash
workload: {{task: quadratic, dimension: 4, batch_size: 2, optimizer: {{lr: 0.01}}}}
cluster:
  workers: 3
  compute: {{time: 10 ms}}
  stragglers: [{straggler}]
  network: {{latency: 1 ms}}
evaluate: {{every: 1 steps}}
schemes: [{scheme}]
stop: {{max_iterations: 8{target}}}
gradients: looped
"""
DOWNPOUR = "{downpour: {period: 1}}"
CRASH = "{workers: [2], at: 3 steps, crash: true}"


def scenario(scheme: str, straggler: str = CRASH, target: str = "") -> Scenario:
    return parse(SCENARIO.format(scheme=scheme, straggler=straggler, target=target))


def simulated(asked: Scenario) -> Run:
    (run,) = simulate(asked)
    return run


def computations(run: Run) -> list[int]:
    return [sum(e.worker == w and e.operation == "gradient" for e in run.events) for w in range(3)]


def test_who_needs_it_breaks_off() -> None:
    run = simulated(scenario("all_reduce"))
    assert (run.status, run.iterations) == ("partial", 3.0)
    assert "worker 2 was lost during all_reduce" in run.message
    # The others have computed the fourth gradient when they miss it.
    assert computations(run) == [4, 4, 3]


def test_who_does_not_goes_on() -> None:
    whole = simulated(scenario(DOWNPOUR, "{workers: [2], at: 3 steps, slowdown: 1}"))
    run = simulated(scenario(DOWNPOUR))
    assert (run.status, run.message) == ("completed", "worker 2 died")
    assert computations(whole) == [8, 8, 8]
    assert computations(run) == [8, 8, 3]
    assert run.digest != whole.digest


def test_a_target_reached_without_it_counts() -> None:
    run = simulated(scenario(DOWNPOUR, target=", target: {metric: train_loss, value: 1.585}"))
    assert (run.status, run.reached_target) == ("completed", True)
    assert (run.time_to_target_s or 0.0) > 0.05  # when worker 2 was gone
    assert failures(summarise("crash", [run])) == []
    assert warnings(summarise("crash", [run]), "simulated") == ["downpour: worker 2 died."]


@pytest.mark.parametrize(
    "scheme",
    [
        DOWNPOUR, "{all_reduce: {quorum: 2}}", "{local_sgd: {period: 2, deadline: 40 ms}}",
        "{diloco: {period: 2, quorum: 2}}", "{fedavg: {period: 2, quorum: 2}}",
        "{easgd: {period: 2, asynchronous: true}}",
    ],
)  # fmt: skip
def test_a_run_that_goes_on_has_its_rank_and_its_time_per_step(scheme: str) -> None:
    crashed, whole = (
        summarise("crash", [simulated(scenario(scheme, straggler)), simulated_other(straggler)])
        for straggler in (CRASH, "{workers: [2], at: 3 steps, slowdown: 1}")
    )
    assert crashed["winner"] == whole["winner"] == "alone"
    assert crashed["summary"][0]["partial"] == 0
    assert [share is None for share in crashed["runs"][0]["step_shares"]] == [False, False, True]
    assert crashed["runs"][0]["step_s"] == pytest.approx(crashed["runs"][0]["wall_clock_s"] / 8, rel=0.2)
    assert crashed["summary"][0]["step_s"]["median"] is not None
    assert crashed["summary"][0]["ratio_to_best"]["median"] is not None
    assert [run["status"] for run in crashed["runs"]] == ["completed"] * 2
    assert [run.get("message") for run in whole["runs"]] == [None] * 2
    assert warnings(crashed, "simulated")[0].endswith(": worker 2 died.")
    assert "worker 2 died" in shown(crashed)


def simulated_other(straggler: str) -> Run:
    """A scheme to compare with: one that needs nobody."""
    return simulated(scenario("{easgd: {period: 100, asynchronous: true, label: alone}}", straggler))


def shown(summary: Summary) -> str:
    """What the terminal shows."""
    console = Console(width=200, file=StringIO())
    console.print(render_summary(summary))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_who_are_all_gone_complete_nothing() -> None:
    run = simulated(scenario(DOWNPOUR, "{workers: [0, 1, 2], at: 3 steps, crash: true}"))
    assert run.status == "partial"


def test_the_model_of_who_is_gone_is_not_scored() -> None:
    asked = scenario(DOWNPOUR)
    scorer = prepare(asked, asked.schemes[0], 0).scorer()
    job = prepare(asked, asked.schemes[0], 0)
    scorer.begin([job.start] * 3)
    scorer.publish(Published(2, 0, 0.5, job.start + 100.0))
    scorer.lose(2, 0.7)
    for rank in (0, 1):
        for step in range(job.scoring.every):
            scorer.publish(Published(rank, step, 1.0 + step, job.start))
    scorer.settle()
    assert scorer.evaluations[-1].steps[2] == -1
    assert scorer.evaluations[-1].metrics["train_loss"] == scorer.evaluations[0].metrics["train_loss"]


@pytest.mark.timeout(120)
@pytest.mark.slow
def test_processes_crash_alike() -> None:
    asked = scenario(DOWNPOUR)
    with Processes(popen=warm.popen, timeout_s=20.0) as processes:
        requests = run_requests(asked) * 2  # the second has new processes
        run, again = (each.run for each in measure_runs(asked, requests, processes))
    assert (run.status, run.message) == (again.status, again.message) == ("completed", "worker 2 died")
    # What it wrote down is lost with it.
    assert computations(run) == [8, 8, 0]


HANGS = "{workers: [2], at: 3 steps, pause: 30 s}"
IN_TIME = ["{local_sgd: {period: 2, deadline: 60 ms}}", "{all_reduce: {quorum: 2}}"]


@pytest.mark.parametrize(
    "scheme", [*IN_TIME, "{diloco: {period: 2, quorum: 2}}", "{fedavg: {period: 2, deadline: 60 ms}}"]
)
def test_a_run_is_over_when_its_steps_are_whoever_hangs(scheme: str) -> None:
    asked = scenario(scheme, HANGS)
    run = simulated(asked)
    assert (run.status, run.iterations, run.message) == ("completed", 8.0, "")
    assert run.wall_clock_s < 0.5
    assert sum(astuple(run.time_s)) == pytest.approx(run.wall_clock_s)
    job = prepare(asked, asked.schemes[0], 0)
    finals = replay(job, [job.program(rank) for rank in range(3)], run.events)
    assert digest(finals) == run.digest


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_processes_do_not_wait_for_who_hangs() -> None:
    asked = scenario(IN_TIME[0], HANGS)
    with Processes(popen=warm.popen, timeout_s=60.0) as processes:
        requests = run_requests(asked) * 2
        runs = [each.run for each in measure_runs(asked, requests, processes)]
    assert [(run.status, run.iterations) for run in runs] == [("completed", 8.0)] * 2
    assert max(run.wall_clock_s for run in runs) < 10.0


@pytest.mark.parametrize(
    ("straggler", "said"),
    [
        ("{crash: true}", "say who is slow"),
        ("{at: 3 steps, crash: true}", "say who (workers) and after how many computations (at)"),
        ("{workers: [2], crash: true}", "say who (workers) and after how many computations (at)"),
        ("{workers: [2], at: 3 steps, crash: true, slowdown: 2}", "a crash takes no slowdown"),
        ("{workers: [2], at: 3 steps, crash: true, duration: 2 steps}", "a crash takes no slowdown"),
    ],
)
def test_what_makes_no_sense_is_refused(straggler: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        scenario("all_reduce", straggler)
    assert said in str(caught.value)


def test_a_check_of_the_scenario_does_without() -> None:
    asked = scenario("all_reduce")
    assert step_cost(asked, asked.schemes[0]).problem == ""


@pytest.mark.parametrize("announcement", [0, 1])
def test_a_send_that_nobody_has_heard_of_yet_is_lost_too(announcement: int) -> None:
    asked = scenario("{ad_psgd: {topology: path}}", "{workers: [1], at: 3 steps, crash: true}")
    network = asked.cluster.network.model_copy(update={"announcement": float(announcement)})
    cluster = asked.cluster.model_copy(update={"network": network})
    run = simulated(asked.model_copy(update={"cluster": cluster}))
    assert (run.status, run.message) == ("partial", "worker 1 was lost during send")
