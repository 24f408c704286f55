"""Runs in several processes: the same bytes, kept as they come, and none left behind."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typing_extensions import override

from paceline.commands.app import app
from paceline.sim.errors import InputError
from paceline.sim.experiments import jobs
from paceline.sim.experiments import simulate as simulator
from paceline.sim.experiments.jobs import JobProcesses, PlannedRun, check_jobs
from paceline.sim.experiments.simulate import run_here, simulate
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import load
from tests.support.alive import wait_for_end
from tests.support.made_runs import made_run

SCENARIO = """\
name: many-runs
seed: 3
workload: {task: quadratic, batch_size: 4, optimizer: {lr: 0.1}}
cluster:
  workers: 3
  compute: {time: 20 ms, jitter: {lognormal: {cv: 0.2}}}
  network: {latency: 1 ms, bandwidth: 1 Gbit/s}
schemes: [all_reduce, "mine:scheme"]
stop: {max_iterations: 6}
repeats: 3
"""
MINE = """\
import os
from paceline import Worker

if DIES and os.environ.get("MORTAL", str(os.getpid() != PID)) == "True":
    try:
        os.close(os.open(__file__ + ".died", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        pass
    else:
        os._exit(1)

async def scheme(worker: Worker) -> None:
    x = worker.start
    async for k in worker.steps():
        x = await worker.all_reduce(x)
        await worker.publish(k, x)
"""


def write_scenario(folder: Path, dies: bool = False) -> Path:
    code = MINE.replace("PID", str(os.getpid())).replace("DIES", str(dies))
    (folder / f"{folder.name}.py").write_text(code, encoding="utf-8")
    scenario = folder / "many-runs.yaml"
    scenario.write_text(SCENARIO.replace("mine", folder.name), encoding="utf-8")
    return scenario


def processes_of(processes: JobProcesses) -> list[int]:
    assert processes.executor is not None
    return [*processes.executor._processes]  # type: ignore[attr-defined]


def digests(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


@pytest.mark.slow
def test_the_bytes_do_not_depend_on_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's code beside the scenario is there in all of them."""
    monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
    scenario = write_scenario(tmp_path)
    written = []
    for number in ("1", "2"):
        out = tmp_path / f"out{number}"
        result = CliRunner().invoke(app, ["simulate", str(scenario), "--out", str(out), "--jobs", number])
        assert result.exit_code == 0, result.output
        written.append(digests(out))
    assert written[0] == written[1]


def test_time_in_which_others_had_the_processor_begins_no_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a busy machine changes nothing of what ``paceline check`` foretells."""
    monkeypatch.setattr(jobs, "MIN_WORK_S", 1e-9)
    monkeypatch.setattr("time.process_time", lambda: 1.0)
    with JobProcesses(2) as processes:
        assert len(list(simulate(load(write_scenario(tmp_path)), processes=processes))) > 2
        assert processes.executor is None


@pytest.mark.slow
def test_what_a_lost_process_was_to_do_is_done_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
    monkeypatch.chdir(tmp_path)
    scenario = load(write_scenario(tmp_path, dies=True))
    with JobProcesses(2) as processes:
        assert list(simulate(scenario, processes=processes)) == list(simulate(scenario))
    assert list(tmp_path.glob("*.died"))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 3])
def test_a_process_killed_from_outside_costs_what_was_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kills: int
) -> None:
    """The executor breaks whole: the run of the other process begins again, too, and none else."""
    monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
    scenario = load(write_scenario(tmp_path)).model_copy(update={"repeats": 12})
    submitted: list[int] = []
    submit = JobProcesses.submit

    def count(self: JobProcesses, work: Any, text: str) -> Future[bytes]:
        submitted.append(json.loads(text)["number"])
        return submit(self, work, text)

    monkeypatch.setattr(JobProcesses, "submit", count)
    runs = []
    killed: list[int] = []
    with JobProcesses(2) as processes:
        for run in simulate(scenario, processes=processes):
            runs.append(run)
            if processes.executor is None or len(killed) == kills:
                continue
            (first, *_) = processes_of(processes)
            if first not in killed:  # else the executor is known to be broken
                killed.append(first)
                os.kill(first, signal.SIGKILL)
    assert len(killed) == kills
    assert runs == list(simulate(scenario))
    assert len(submitted) - len(set(submitted)) <= 2 * kills


@pytest.mark.slow
def test_no_process_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
    with JobProcesses(2) as processes:
        runs = simulate(load(write_scenario(tmp_path)), processes=processes)
        next(runs)
        next(runs)
        started = processes_of(processes)
        runs.close()  # type: ignore[attr-defined]
    assert started
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def run_elsewhere(*arguments: Any) -> Run:
    assert os.environ["PID_OF_TEST"] != str(os.getpid()), "nothing more runs in this process"
    return run_here(*arguments)


@pytest.mark.slow
def test_processes_serve_all_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
    monkeypatch.setenv("PID_OF_TEST", str(os.getpid()))
    scenario = load(write_scenario(tmp_path))
    with JobProcesses(2) as processes:
        before = list(simulate(scenario, processes=processes))
        started = processes_of(processes)
        monkeypatch.setattr(simulator, "run_here", run_elsewhere)
        assert list(simulate(scenario, processes=processes)) == before
        assert processes_of(processes) == started
    assert len(started) == 2


def test_processes_begin_as_soon_as_what_is_left_is_worth_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first run is under way, too: a long one is not waited for."""
    scenario = load(write_scenario(tmp_path))
    monkeypatch.setattr(jobs, "can_be_sent", lambda _: True)
    seen: list[str] = []

    class Answering(Executor):
        @override
        def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
            order, future = json.loads(args[0]), Future[bytes]()
            seen.append(f"{order['number']} is handed out")
            future.set_result(jobs._ANSWER.dump_json((made_run(seed=order["seed"]), [], "")))
            return future

    def begin(processes: JobProcesses, most: int) -> None:
        seen.append(f"processes, at most {most}")
        processes.executor = Answering()

    def run_here(
        device: None, engine: str, planned: PlannedRun, follow: Callable[[str, int], None] | None, _: object
    ) -> Run:
        for step in range(2):
            seen.append(f"run {planned.number}, step {step}")
            if planned.number == 1:
                monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
            if follow is not None:
                follow(planned.entry.label, step)
        return made_run(planned.entry.label, planned.seed)

    monkeypatch.setattr(JobProcesses, "begin", begin)
    planned = [PlannedRun("run", k, scenario, scenario.schemes[0], k) for k in range(4)]
    runs = list(JobProcesses(2).run_all(planned, partial(run_here, None, "auto")))
    assert [run.seed for run in runs] == [0, 1, 2, 3]
    assert seen[2:] == [
        "run 1, step 0",
        "processes, at most 2",
        "2 is handed out",
        "3 is handed out",
        "run 1, step 1",
    ]


KILLED = """
import os, sys
from paceline.sim.experiments import jobs
from paceline.sim.experiments.simulate import run_here, simulate
from paceline.sim.scenario.schema import load

jobs.MIN_WORK_S = 0.0
with jobs.JobProcesses(2) as processes:
    for run in simulate(load(sys.argv[1]).model_copy(update={"repeats": 1000}), processes=processes):
        print(*(processes.executor._processes if processes.executor else ()), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_nothing_is_left_where_the_command_is_killed(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = [sys.executable, "-c", KILLED, str(write_scenario(tmp_path))]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "TMPDIR": str(temporary)})
    assert child.stdout is not None
    started = [int(pid) for pid in child.stdout.readline().split()]
    child.kill()
    child.wait()
    child.stdout.close()
    assert started
    wait_for_end(started)
    assert not list(temporary.glob("paceline*"))


def test_one_at_a_time_begins_only_what_is_wanted(tmp_path: Path) -> None:
    scenario = load(write_scenario(tmp_path))
    begun: list[int] = []

    def run_here(planned: PlannedRun, *_: object) -> Run:
        begun.append(planned.seed)
        return made_run(planned.entry.label, planned.seed)

    planned = [PlannedRun("run", k, scenario, scenario.schemes[0], k) for k in range(3)]
    runs = JobProcesses(1).run_all(planned, partial(run_here))
    assert next(runs).seed == 0
    assert begun == [0]


def test_what_was_handed_over_from_python_stays_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load("scenarios/one-rack.yaml")
    assert jobs.can_be_sent(scenario)
    monkeypatch.setattr("paceline.sim.config.user_code.call._GIVEN", {"digits-cnn": object()})
    assert not jobs.can_be_sent(scenario)


def test_less_than_one_job_is_refused() -> None:
    with pytest.raises(InputError, match="--jobs 0"):
        check_jobs(0)


def grow(text: str) -> bytes:
    """Take 400 MB for as long as the process lives."""
    TAKEN.append(bytearray(400_000_000))
    time.sleep(float(text))
    return str(os.getpid()).encode()


TAKEN: list[bytearray] = []


@pytest.mark.slow
def test_a_process_that_needs_much_memory_stays() -> None:
    with JobProcesses() as processes:
        processes.begin(1)
        ends = [processes.submit(grow, "1.1").result() for _ in range(3)]
    assert len(set(ends)) == 1
