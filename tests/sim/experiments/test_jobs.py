"""Runs in several processes: the same bytes, kept as they come, and none left behind."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from paceline.commands.app import app
from paceline.sim.errors import InputError
from paceline.sim.experiments import jobs
from paceline.sim.experiments import simulate as simulator
from paceline.sim.experiments.costs.bounds import describe_schemes
from paceline.sim.experiments.jobs import JobProcesses, PlannedRun, check_jobs
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.run import Run
from paceline.sim.records.unfinished import NOTHING_KEPT
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario, load
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

if DIES and os.getpid() != PID:
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


@pytest.mark.slow
def test_what_a_lost_process_was_to_do_is_done_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
    monkeypatch.chdir(tmp_path)
    scenario = load(write_scenario(tmp_path, dies=True))
    with JobProcesses(2) as processes:
        assert list(simulate(scenario, processes=processes)) == list(simulate(scenario))


@pytest.mark.slow
def test_no_process_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
    with JobProcesses(2) as processes:
        runs = simulate(load(write_scenario(tmp_path)), processes=processes)
        next(runs)
        next(runs)
        assert processes._others is not None
        started = [*processes._others.executor._processes]
        runs.close()  # type: ignore[attr-defined]
    assert started
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.slow
def test_other_processes_serve_all_runs_and_this_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
    scenario = load(write_scenario(tmp_path))
    here: list[int] = []
    run_here = simulator.run_here

    def note(*arguments: Any) -> Run:
        here.append(os.getpid())
        return run_here(*arguments)

    with JobProcesses(2) as processes:
        before = list(simulate(scenario, processes=processes))
        others = processes._others
        assert others is not None
        assert len(others.executor._processes) == 1
        monkeypatch.setattr(simulator, "run_here", note)
        assert list(simulate(scenario, processes=processes)) == before
        assert processes._others is others
    assert here


@pytest.mark.slow
def test_what_bounds_schemes_does_not_depend_on_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor on whether they live: what a lost one was to do is done here."""
    monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
    scenario = load(write_scenario(tmp_path))
    alone = describe_schemes(scenario)
    with JobProcesses(2) as processes:
        list(simulate(scenario, processes=processes))
        assert describe_schemes(scenario, processes=processes) == alone
        assert processes._others is not None
        processes._others.executor.submit(os._exit, 1)
        assert describe_schemes(scenario, processes=processes) == alone


def test_a_scheme_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another process is measuring is waited for; threads stand for processes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(jobs, "_can_be_sent", lambda _: True)
    monkeypatch.setattr(jobs, "one_thread", nullcontext)
    scenario = load(write_scenario(tmp_path))
    here, seen, measured_here = threading.get_ident(), list[str](), threading.Event()

    def measure(_: Scenario, entry: SchemeEntry) -> str:
        if threading.get_ident() == here:
            measured_here.set()
        else:
            assert measured_here.wait(60.0)
            time.sleep(0.05)
        seen.append(entry.label)
        return entry.label

    processes = JobProcesses(2)
    with ThreadPoolExecutor(1) as executor:
        processes._others = SimpleNamespace(number=1, executor=executor)  # type: ignore[assignment]
        measured = processes.measure_all(scenario, measure)
    assert measured == [entry.label for entry in scenario.schemes]
    assert sorted(seen) == sorted(measured)


def test_others_begin_as_soon_as_what_is_left_is_worth_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the first run is under way, too: a long one is not waited for."""
    scenario = load(write_scenario(tmp_path))
    monkeypatch.setattr(jobs, "_can_be_sent", lambda _: True)
    seen: list[str] = []

    def begin(_: JobProcesses, most: int) -> None:
        seen.append(f"others, at most {most}")

    def run_here(planned: PlannedRun, follow: Callable[[str, int], None] | None, _: object) -> Run:
        for step in range(2):
            seen.append(f"run {planned.number}, step {step}")
            if planned.number == 1:
                monkeypatch.setattr(jobs, "MIN_WORK_S", 0.0)
            if follow is not None:
                follow(planned.entry.label, step)
        return made_run(planned.entry.label, planned.seed)

    monkeypatch.setattr(JobProcesses, "_begin", begin)
    planned = [PlannedRun("run", k, scenario, scenario.schemes[0], k) for k in range(4)]
    assert len(list(JobProcesses(2).run_all(planned, run_here, parts=NOTHING_KEPT))) == 4
    assert seen.index("others, at most 2") == seen.index("run 1, step 0") + 1
    assert len(seen) == 9


KILLED = """
import os, sys
from paceline.sim.experiments import jobs
from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import load

jobs.MIN_WORK_S = 0.0
with jobs.JobProcesses(2) as processes:
    for run in simulate(load(sys.argv[1]).model_copy(update={"repeats": 1000}), processes=processes):
        print(*processes._others.executor._processes, flush=True)
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
    runs = JobProcesses(1).run_all(planned, run_here, parts=NOTHING_KEPT)
    assert next(runs).seed == 0
    assert begun == [0]


def test_a_run_alone_has_all_cores(tmp_path: Path) -> None:
    scenario = load(write_scenario(tmp_path))
    given: list[int | None] = []

    def run_here(planned: PlannedRun, *_: object) -> Run:
        given.append(planned.cores)
        return made_run(planned.entry.label, planned.seed)

    planned = [PlannedRun("run", k, scenario, scenario.schemes[0], k) for k in range(2)]
    for at_once in (None, 1):
        processes = JobProcesses(at_once)
        for runs in (planned[:1], planned):
            assert len(list(processes.run_all(runs, run_here, parts=NOTHING_KEPT))) == len(runs)
    assert given == [None, 1, 1, 1, 1, 1]
    assert replace(planned[0], cores=None).threads() == jobs.num_cores()
    assert replace(planned[0], cores=10**6).threads() == jobs.num_cores()
    assert planned[0].threads() == 1


def test_one_thread_is_enough_where_the_system_allows_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch ends the process where it cannot start its threads."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(jobs, "num_cores", lambda: 64)
    jobs._can_start.cache_clear()
    assert jobs.threads_on(3) == 3
    jobs._can_start.cache_clear()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert jobs.threads_on(None) == 1
    jobs._can_start.cache_clear()


def test_what_was_handed_over_from_python_stays_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = load("scenarios/one-rack.yaml")
    assert jobs._can_be_sent(scenario)
    monkeypatch.setattr("paceline.sim.config.user_code.call._GIVEN", {"digits-cnn": object()})
    assert not jobs._can_be_sent(scenario)


def test_less_than_one_job_is_refused() -> None:
    with pytest.raises(InputError, match="--jobs 0"):
        check_jobs(0)
