"""Processes that the launcher starts, and torchrun: results, one message, nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from paceline.realrun.launch.cells import run_requests
from paceline.realrun.launch.processes import Processes, _popen_here, measure_runs
from paceline.sim.errors import InputError
from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import Scenario, parse
from tests.support import warm

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
    """Starts processes and remembers them; from the third on they need not load torch."""

    def __init__(self) -> None:
        self.children: list[subprocess.Popen[bytes]] = []

    def __call__(
        self, rank: int, argv: list[str], env: Mapping[str, str], /, **options: Any
    ) -> subprocess.Popen[bytes]:
        start = warm.popen if len(self.children) >= 2 else _popen_here
        self.children.append(start(rank, argv, env, **options))
        return self.children[-1]

    def at_step(self, step: int, what: signal.Signals) -> Callable[[int], None]:
        """Send the youngest process a signal once a step is reached."""

        def progress(steps: int) -> None:
            if steps >= step:
                self.children[-1].send_signal(what)

        return progress


@pytest.mark.slow
def test_a_pool_of_processes() -> None:
    started = _Started()
    scenario = _small()
    predicted = [run.digest for run in simulate(scenario)]
    endless = run_requests(_small(stop__max_iterations=100000))[0]
    with Processes(2, popen=started, timeout_s=2.0) as processes:
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
        assert hung.message == "no worker can go on: worker 0 waits in mix; worker 1 does not answer"
        assert len(started.children) == 4
    assert all(child.returncode is not None for child in started.children)


def _parent(folder: str, pipe: Connection) -> None:
    """Starts two processes and tells who they are, and that they are at work."""
    tempfile.tempdir = folder  # nobody is left to tidy up
    started = _Started()
    with Processes(2, popen=started) as processes:

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
    for child in children:
        with pytest.raises(ProcessLookupError):
            _wait_until_gone(child)


def _wait_until_gone(pid: int) -> None:
    """Raises ProcessLookupError when the process is gone, or a zombie of whoever took it over."""
    for _ in range(1000):
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state in "ZX":
            raise ProcessLookupError(pid)
        signal.sigtimedwait([], 0.01)


def test_a_run_without_an_end_is_refused() -> None:
    open_ended = parse(SCENARIO.replace("max_iterations: 20", "max_time: 1 s"))
    with pytest.raises(InputError, match=r"gossip: .*give stop\.max_iterations$"):
        run_requests(open_ended)


def test_plain_python_is_told_about_torchrun() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "RANK"}
    done = warm.WarmProcess(
        [sys.executable, "-m", "paceline.realrun", "any.yaml"], env=environment, stderr=subprocess.PIPE
    )
    assert done.stderr is not None
    for pipe in (done.stdin, done.stdout):
        pipe.close()
    with done.stderr:
        said = done.stderr.read().decode()
    assert done.wait() == 2
    assert "torchrun --nproc-per-node N -m paceline.realrun SCENARIO" in said
    assert said.count("\n") == 1


def _torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, "-m", "paceline.realrun", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=90,
    )


@pytest.mark.slow
def test_torchrun(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SCENARIO)
    out = tmp_path / "out"
    done = _torchrun(
        str(tmp_path / "small.yaml"), "--set", "stop.max_iterations=6", "--out", str(out), "--json"
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    assert [(run["label"], run["source"], run["iterations"]) for run in summary["runs"]] == [
        ("gossip", "measured", 6), ("ad_psgd", "measured", 6),
    ]  # fmt: skip
    assert json.loads((out / "summary.json").read_text()) == summary
