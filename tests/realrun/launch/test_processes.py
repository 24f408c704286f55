"""Processes that the launcher starts, and torchrun: records, one message, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from paceline.realrun.calibration.cluster_probes import durations
from paceline.realrun.calibration.probes import ProbePlan, ProbeTrial, probe_scenario
from paceline.realrun.calibration.validate import successful_run
from paceline.realrun.driver.rank_log import Timing
from paceline.realrun.group.job_store import SECRET_VARIABLE
from paceline.realrun.launch.cells import (
    REQUEST,
    RESULT,
    Result,
    RunRequest,
    run_requests,
    with_draws,
    with_length,
    with_lengths,
)
from paceline.realrun.launch.processes import Processes, measure_runs, popen_here
from paceline.sim.errors import InputError, RunError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate, simulate_job
from paceline.sim.records.folder import read_results, runs_of
from paceline.sim.records.run import Event, Machine, Run
from paceline.sim.scenario.schema import Scenario, parse
from tests.support import warm
from tests.support.alive import wait_for_end
from tests.support.factory import make_job, simulated

SCENARIO = """
name: small
seed: 1
workload: {task: quadratic, dimension: 30, batch_size: 4, optimizer: {lr: 0.1}, payload: 2 kB}
cluster: {workers: 2, compute: {time: 5 ms}, network: {latency: 1 ms, bandwidth: 1 Gbit/s}}
schemes: [gossip: {topology: ring}, ad_psgd: {topology: complete}]
stop: {max_iterations: 20}
"""


def _small(**changes: Any) -> Scenario:
    return parse(SCENARIO, "small", [f"{key.replace('__', '.')}={value}" for key, value in changes.items()])


class _Started:
    """Starts processes and remembers them; only the ``genuine`` first ones load torch."""

    def __init__(self, genuine: int = 2) -> None:
        self.children: list[subprocess.Popen[bytes]] = []
        self._genuine = genuine

    def __call__(
        self, rank: int, argv: list[str], env: Mapping[str, str], /, **options: Any
    ) -> subprocess.Popen[bytes]:
        start = popen_here if len(self.children) < self._genuine else warm.popen
        self.children.append(start(rank, argv, env, **options))
        return self.children[-1]

    def at_step(self, step: int, what: signal.Signals) -> Callable[[int], None]:
        """Send the youngest process a signal once a step is reached."""

        def progress(steps: int) -> None:
            if steps >= step:
                self.children[-1].send_signal(what)

        return progress


UNEVEN = parse("""
name: uneven
seed: 3
workload: {task: quadratic, dimension: 5, examples: 64, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 2, compute: {time: 5 ms, jitter: {lognormal: {cv: 0.3}}}, network: {latency: 1 ms}}
evaluate: {every: 2 steps}
schemes: [{gossip: {topology: ring}}, ad_psgd]
stop: {max_iterations: 6}
gradients: looped
""")


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with Processes(popen=warm.popen) as processes:
        yield processes


def _first_gradient_s(run: Run, worker: int) -> dict[int, float]:
    """Step -> seconds that its gradient took on a worker."""
    return {
        e.step: e.end_s - e.start_s for e in run.events if (e.operation, e.worker) == ("gradient", worker)
    }


def test_a_run_has_the_simulators_bits(processes: Processes) -> None:
    result = processes.run(run_requests(UNEVEN)[0])
    predicted = simulate_job(prepare(UNEVEN, UNEVEN.schemes[0], 3))
    gradients = sum(timing.gradients for timing in result.timings)
    assert (result.run.source, result.run.status, gradients) == ("measured", "completed", 12)
    assert result.run.digest == predicted.digest
    drawn, meant = (_first_gradient_s(run, 1) for run in (result.run, predicted))
    assert len(meant) == 6
    assert all(drawn[step] >= meant[step] - 1e-9 for step in meant)


def test_other_draws_are_other_computing_times(processes: Processes) -> None:
    request = run_requests(UNEVEN)[0]
    first, second = (processes.run(replace(request, draws=draws)).run for draws in (7, 8))
    assert first.digest == second.digest
    job = prepare(UNEVEN, UNEVEN.schemes[0], 3)
    for run, draws in ((first, 7), (second, 8)):
        assert _first_gradient_s(run, 0)[0] >= with_draws(job, draws).compute.duration_s(0, 0)


@pytest.mark.parametrize(("hosts", "joins"), [("tuned", 0), ("stock", 2)])
def test_on_stock_hosts_every_run_has_new_connections(processes: Processes, hosts: str, joins: int) -> None:
    # A window that the run before has left behind is no part of what is predicted.
    (request, *_) = run_requests(_small(cluster__network__hosts=hosts, stop__max_iterations=3))
    processes.run(run_requests(_small(stop__max_iterations=3))[0])  # two workers have met
    before = processes._num_joins
    digests = {processes.run(request).run.digest for _ in range(2)}
    assert (processes._num_joins - before, len(digests)) == (joins, 1)


def test_probes_run_in_groups_of_any_size(processes: Processes) -> None:
    trials = (
        ProbeTrial(kind="message", num_bytes=640, slot_s=0.02),
        ProbeTrial(kind="barrier", num_bytes=0, slot_s=0.02),
    )
    for workers in (3, 2):
        (request,) = run_requests(probe_scenario(ProbePlan(workers=workers, trials=trials, repeats=3)))
        lasted = durations(processes.run(request).run.events, 2, skip=1)
        barriers = [(1, "barrier", rank, 0) for rank in range(workers)]
        assert set(lasted) == {(0, "send", 0, 0), (0, "receive", 1, 0), *barriers}
        assert {len(values) for values in lasted.values()} == {2}


@pytest.mark.parametrize(
    ("change", "num_bytes"),
    [
        ({"cluster__network": "{latency: 1 ms, transport: nccl}"}, 3_000),
        ({"collectives": "{all_reduce: double_tree}"}, 3_000),
        ({"collectives": "{all_reduce: ring}"}, 3_000),
    ],
)
def test_a_prediction_of_blocks_can_be_measured(
    processes: Processes, change: dict[str, str], num_bytes: int
) -> None:
    scenario = _small(schemes="[all_reduce]", workload__payload="3 kB", stop__max_iterations=1, **change)
    (request,) = run_requests(scenario)
    run = processes.run(request).run
    assert (run.status, run.message) == ("completed", "")
    assert (
        run.bytes_sent == 2 * num_bytes == simulate_job(prepare(scenario, scenario.schemes[0], 1)).bytes_sent
    )


def test_a_process_that_dies_between_runs_is_an_error() -> None:
    started = _Started(genuine=0)
    request = run_requests(UNEVEN)[0]
    with Processes(popen=started) as processes:
        processes.run(request)
        started.children[1].kill()
        started.children[1].wait()
        with pytest.raises(RunError, match=r"worker 1 was lost .*\(worker 1 was killed by SIGKILL\)"):
            processes.run(request)
        assert processes.run(request).run.status == "completed", "by new processes"


def test_a_process_dies_where_a_test_wants_it_to() -> None:
    with Processes(popen=warm.popen, faults={1: 4}) as processes:
        run = processes.run(run_requests(UNEVEN)[0]).run
    assert run.status == "partial"
    assert run.message.startswith("worker 1 was lost; worker 0 noticed during ")


def test_requests_and_results_survive_json() -> None:
    run = simulated(make_job("gossip", {"topology": "ring"}, workers=3, task="quadratic"))
    run = replace(run, machines=(Machine("a", 0.0), Machine("b", None), Machine("b", 1e-3)))
    assert isinstance(run.events[0], Event)
    result = Result(run, (Timing(3, 1, 0.1, 0.2, 0.3, ["a note"]), Timing()))
    assert RESULT.validate_python(json.loads(json.dumps(RESULT.dump_python(result, mode="json")))) == result
    request = RunRequest("name: a\n", 1, 2**40, None, 0.1, draws=7)
    assert REQUEST.validate_python(json.loads(json.dumps(REQUEST.dump_python(request)))) == request


def test_a_run_that_overran_its_time_is_refused() -> None:
    run = simulated(make_job("gossip", {"topology": "ring"}, workers=3))
    assert successful_run(Result(run, (Timing(60, 1), Timing(40)))) is run
    with pytest.raises(RunError, match="2 of 100 gradients took longer"):
        successful_run(Result(run, (Timing(60, 1), Timing(40, 1))))
    with pytest.raises(RunError, match="worker 1 was lost"):
        successful_run(Result(replace(run, status="partial", message="worker 1 was lost"), (Timing(100),)))


@pytest.mark.parametrize(
    ("limit", "steps", "reached", "lengths"),
    [
        ("max_iterations: 100", 20.0, True, [(24, None), (100, 6.0)]),
        ("max_iterations: 21", 20.0, True, [(21, None), (21, 6.0)]),
        ("max_time: 7 s", 20.5, True, [(26, None), (None, 6.0)]),
        ("max_time: 7 s", 20.0, False, [(24, None), (None, 8.4)]),
    ],
)
def test_a_real_run_goes_beyond_what_the_prediction_needed(
    limit: str, steps: float, reached: bool, lengths: list[tuple[int | None, float | None]]
) -> None:
    scenario = parse(f"""
name: tiny
workload: {{task: quadratic, dimension: 5, examples: 64, batch_size: 4, optimizer: {{lr: 0.1}}}}
cluster: {{workers: 2, compute: {{time: 5 ms}}, network: {{latency: 1 ms}}}}
evaluate: {{every: 2 steps}}
schemes: [{{gossip: {{topology: ring}}}}, ad_psgd]
stop: {{target: {{metric: suboptimality, value: 0.02}}, {limit}}}
""")
    run = simulated(make_job("gossip", {"topology": "ring"}, workers=3))
    time_s = 5.0 if reached else None
    run = replace(run, reached_target=reached, iterations=steps, wall_clock_s=7.0, time_to_target_s=time_s)
    requests = [with_length(RunRequest("", 0, 0), scenario, entry, run) for entry in scenario.schemes]
    assert [(each.max_iterations, each.max_time_s) for each in requests] == lengths


def test_a_real_run_goes_by_the_worker_that_was_furthest_and_by_whole_periods() -> None:
    scenario = parse("""
name: tiny
workload: {task: quadratic, dimension: 5, examples: 64, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 2, compute: {time: 5 ms}, network: {latency: 1 ms}}
evaluate: {every: 10 steps}
schemes: [{local_sgd: {period: 16}}]
stop: {target: {metric: suboptimality, value: 0.02}, max_time: 7 s}
""")
    run = simulated(make_job("gossip", {"topology": "ring"}, workers=2, task="quadratic"))
    ahead = replace(run.evaluations[-1], steps=(40, 3))
    run = replace(run, iterations=21.5, evaluations=(*run.evaluations[:-1], ahead))
    request = with_length(RunRequest("", 0, 0), scenario, scenario.schemes[0], run)
    assert request.max_iterations == 64  # 48 steps of the first, 50 to be scored, 4 periods


def test_lengths_are_the_scenarios_or_predicted() -> None:
    assert with_lengths(UNEVEN) == run_requests(UNEVEN)
    timed = parse(SCENARIO.replace("max_iterations: 20", "max_time: 30 ms"))
    first, second = with_lengths(timed)
    assert first.max_time_s is second.max_iterations is None
    assert first.max_iterations == 10, "one evaluation"
    assert second.max_time_s == pytest.approx(1.2 * 0.03, rel=0.3)


@pytest.mark.slow
def test_records_messages_and_new_processes() -> None:
    started = _Started()
    scenario = _small()
    predicted = [run.digest for run in simulate(scenario)]
    endless = run_requests(_small(stop__max_iterations=100000))[0]
    with Processes(popen=started, timeout_s=2.0) as processes:
        measured = [result.run for result in measure_runs(scenario, run_requests(scenario), processes)]
        assert [(run.label, run.source, run.status) for run in measured] == [
            ("gossip", "measured", "completed"), ("ad_psgd", "measured", "completed"),
        ]  # fmt: skip
        assert measured[0].digest == predicted[0]
        assert len(started.children) == 2

        killed = processes.run(endless, started.at_step(3, signal.SIGKILL)).run
        assert killed.status == "partial"
        assert killed.message.startswith("worker 1 was lost; worker 0 noticed during mix at step ")
        assert killed.message.endswith("(worker 1 was killed by SIGKILL)")
        assert killed.iterations > 0
        assert len(started.children) == 2

        hung = processes.run(endless, started.at_step(3, signal.SIGSTOP)).run
        assert hung.status == "partial"
        assert hung.message.startswith("no worker can go on: worker 0 waits in mix; worker 1 does not answer")
        for run in (killed, hung):
            assert min(asdict(run.time_s).values()) >= 0.0, run.time_s
        assert len(started.children) == 4
    assert all(child.returncode is not None for child in started.children)


@pytest.mark.slow
def test_a_process_that_is_stopped_while_it_joins_is_ended_after_the_time_out() -> None:
    started = _Started()

    def stop_the_last(
        rank: int, argv: list[str], env: Mapping[str, str], /, **options: Any
    ) -> subprocess.Popen[bytes]:
        child = started(rank, argv, env, **options)
        if rank == 1:
            child.send_signal(signal.SIGSTOP)
        return child

    request = run_requests(_small())[0]
    with (
        Processes(popen=stop_the_last, timeout_s=1.0) as processes,
        pytest.raises(RunError, match=r"worker 1 was stopped for longer than 1 s"),  # others may be first
    ):
        processes.run(request)
    assert all(child.returncode is not None for child in started.children)


def _parent(folder: str, pipe: Connection) -> None:
    """Starts two processes and tells who they are, and that they are at work."""
    tempfile.tempdir = folder  # nobody is left to tidy up
    started = _Started()
    with Processes(popen=started) as processes:

        def progress(steps: int) -> None:
            pipe.send([child.pid for child in started.children])

        processes.run(run_requests(_small(stop__max_iterations=100000))[0], progress)


@pytest.mark.slow
def test_processes_die_with_their_parent(tmp_path: Path) -> None:
    here, there = warm.forks().Pipe()
    parent = warm.forks().Process(target=_parent, args=(str(tmp_path), there))
    parent.start()
    there.close()
    children = here.recv()
    assert len(children) == 2
    parent.kill()
    parent.join()
    wait_for_end(children)


def test_a_run_without_an_end_is_refused() -> None:
    open_ended = parse(SCENARIO.replace("max_iterations: 20", "max_time: 1 s"))
    with pytest.raises(InputError, match=r"gossip: .*give stop\.max_iterations$"):
        run_requests(open_ended)


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        ({}, "torchrun --nproc-per-node N -m paceline.realrun SCENARIO"),
        (
            {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "10.1.2.3", "MASTER_PORT": "29500"},
            "on every host add the line: export PACELINE_SECRET=",
        ),
    ],
)
def test_a_rank_says_what_it_lacks(job: dict[str, str], expected: str) -> None:
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", SECRET_VARIABLE)
    } | job
    done = warm.WarmProcess(
        [sys.executable, "-m", "paceline.realrun", "any.yaml"], env=environment, stderr=subprocess.PIPE
    )
    assert done.stderr is not None
    for pipe in (done.stdin, done.stdout):
        pipe.close()
    with done.stderr:
        said = done.stderr.read().decode()
    assert done.wait() == 2
    assert expected in said
    assert said.count("\n") == 1


TORCHRUN = [
    sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
    "-m", "paceline.realrun",
]  # fmt: skip


def _torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*TORCHRUN, *arguments], env=environment, capture_output=True, text=True, timeout=90
    )


def _ranks(agent: subprocess.Popen[Any]) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{agent.pid}/task/{agent.pid}/children").read_text().split()]


@pytest.mark.slow
def test_torchrun_goes_on_after_its_death(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    out = tmp_path / "out"
    arguments = [str(tmp_path / "small.yaml"), "--set", "stop.max_iterations=200", "--set", "repeats=3"]
    arguments += ["--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen([*TORCHRUN, *arguments], env=environment, stderr=subprocess.DEVNULL) as agent:
        while not (out / "parts" / "run-000001").is_dir():
            assert agent.poll() is None
            signal.sigtimedwait([], 0.01)
        ranks = _ranks(agent)
        agent.kill()
    assert len(ranks) == 2
    wait_for_end(ranks)
    before = runs_of(read_results(out))
    assert 2 <= len(before) < 6
    done = _torchrun(*arguments)
    assert done.returncode == 0, done.stderr
    assert f"going on with {out}: {len(before)} runs are there" in done.stderr
    after = runs_of(read_results(out))
    assert [run.digest for run in after[: len(before)]] == [run.digest for run in before]
    assert len(after) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "small.yaml"]


@pytest.mark.slow
def test_a_rank_that_is_stopped_before_the_first_meeting_is_named(tmp_path: Path) -> None:
    """It stops while it reads the scenario, which others wait for as long as it gives signs of life."""
    (tmp_path / "small.yaml").write_text(SCENARIO.replace("{time: 5 ms}", "{model: mine:seconds}"))
    (tmp_path / "mine.py").write_text(
        "import os, signal\n"
        "if os.environ.get('RANK') == '1':\n"
        "    os.kill(os.getpid(), signal.SIGSTOP)\n"
        "def seconds(worker, index, random):\n"
        "    return 0.005\n"
    )
    argv, environment = [*TORCHRUN, "small.yaml", "--timeout", "5"], {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(argv, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as agent:
        assert agent.stderr is not None
        said = next(line for line in agent.stderr if line.startswith("worker 1 "))
        for rank in _ranks(agent):  # torchrun waits half a minute for the end of one that is stopped
            os.kill(rank, signal.SIGCONT)
        agent.communicate(timeout=60)
    assert said == "worker 1 has not answered for 5 s: it was stopped, or hangs (scenario)\n"
    assert agent.returncode == 1


@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["tuned", "stock"])  # on these the ranks meet anew between the runs
def test_torchrun(hosts: str, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    out = tmp_path / "out"
    changes = ("--set", "stop.max_iterations=6", "--set", f"cluster.network.hosts={hosts}")
    done = _torchrun(str(tmp_path / "small.yaml"), *changes, "--out", str(out), "--json")
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert [(run["label"], run["source"], run["iterations"]) for run in summary["runs"]] == [
        ("gossip", "measured", 6), ("ad_psgd", "measured", 6),
    ]  # fmt: skip
    assert json.loads((out / "summary.json").read_text()) == summary
