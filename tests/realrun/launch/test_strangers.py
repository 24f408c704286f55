"""What a stranger's bytes do at the ports of gloo and of torchrun: never a false result."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from benchmarks.ports import Listeners
from paceline.realrun.launch.cells import run_requests
from paceline.realrun.launch.processes import Processes
from paceline.sim.errors import RunError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.records.folder import read_results, runs_of
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import parse
from tests.realrun.launch.test_processes import TORCHRUN

SCENARIO = """
name: disturbed
seed: 1
workload: {task: quadratic, dimension: 30, batch_size: 4, optimizer: {lr: 0.1}, payload: 2 kB}
cluster: {workers: 2, compute: {time: 5 ms}, network: {latency: 1 ms, bandwidth: 1 Gbit/s}}
schemes: [gossip: {topology: ring}]
stop: {max_iterations: 100}
gradients: looped
"""
RUBBISH = {
    "http": b"GET / HTTP/1.1\r\nHost: anybody\r\n\r\n",
    "nothing": b"",
    "zeros": bytes(4096),
    "ones": b"\xff" * 4096,
    "letters": b"x" * 1_000_000,
}


class Stranger:
    """Connects to each port of the processes with a mark, again and again, from their start on.

    Args:
        mark: in the environment of these processes.
        rubbish: what it sends.
        kind: of process, as in ``benchmarks.ports``; absent: all.
    """

    def __init__(self, mark: str, rubbish: bytes, kind: str = "") -> None:
        self._mark, self._rubbish, self._kind = mark, rubbish, kind
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._disturb)
        self.listeners = Listeners()
        self.connections = 0

    def __enter__(self) -> Stranger:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _disturb(self) -> None:
        while not self._over.wait(0.01):
            self.listeners.look(self._mark)
            for (kind, _), sockets in list(self.listeners.sockets.items()):
                for host, port, _ in sockets if self._kind in ("", kind) else ():
                    with contextlib.suppress(OSError):
                        connection = socket.create_connection((host, port), timeout=0.1)
                        self.connections += 1
                        with connection:
                            connection.sendall(self._rubbish)


def _disturbed(rubbish: bytes, monkeypatch: pytest.MonkeyPatch) -> tuple[Run | str, Stranger]:
    """A run among rubbish: its record, or why there is none; and who sent that."""
    mark = f"PACELINE_TEST_OF_STRANGERS={os.getpid()}-{len(rubbish)}"
    monkeypatch.setenv(*mark.split("="))
    stranger = Stranger(mark, rubbish)
    (request,) = run_requests(parse(SCENARIO))
    try:
        with stranger, Processes(timeout_s=5.0) as processes:
            return processes.run(request).run, stranger
    except RunError as error:
        return str(error), stranger


@pytest.mark.slow
@pytest.mark.parametrize("kind", RUBBISH)
def test_a_stranger_makes_no_false_result(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome, stranger = _disturbed(RUBBISH[kind], monkeypatch)
    assert stranger.connections
    assert {interface for _, interface in stranger.listeners.sockets} == {"loopback"}
    if isinstance(outcome, str):
        assert outcome
    elif outcome.status == "completed":
        scenario = parse(SCENARIO)
        assert outcome.digest == simulate_job(prepare(scenario, scenario.schemes[0], 1)).digest
    else:
        assert outcome.message


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["nothing", "zeros", "letters"])
def test_rubbish_at_torchruns_own_port_makes_no_false_result(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = f"PACELINE_TEST_OF_STRANGERS={os.getpid()}-torchrun-{kind}"
    monkeypatch.setenv(*mark.split("="))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    (tmp_path / "s.yaml").write_text(SCENARIO)
    with Stranger(mark, RUBBISH[kind], "torchrun's agent") as stranger:
        job = subprocess.run(
            [*TORCHRUN, str(tmp_path / "s.yaml"), "--timeout", "5", "--out", str(tmp_path / "r")],
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=120,
        )  # fmt: skip
    assert stranger.connections
    if job.returncode:
        assert "Error" in job.stderr.decode()
        assert not (tmp_path / "r" / "summary.json").exists()
    else:
        scenario = parse(SCENARIO)
        (run,) = runs_of(read_results(tmp_path / "r"))
        assert run.digest == simulate_job(prepare(scenario, scenario.schemes[0], 1)).digest
