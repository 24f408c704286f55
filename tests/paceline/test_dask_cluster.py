"""Runs on a Dask cluster: the same bytes, whatever dies; nothing goes beyond this machine without TLS."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from paceline.sim.errors import InputError
from paceline.sim.experiments.jobs import connect
from tests.sim.experiments.test_jobs import digests, write_scenario

CLUSTER = """
import sys
from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""
LONG = "--set=stop.max_iterations=1000"


class Cluster(NamedTuple):
    """A scheduler with two workers in processes of their own."""

    process: subprocess.Popen[bytes]
    address: str


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    pytest.importorskip("distributed")
    script = tmp_path / "cluster.py"
    script.write_text(CLUSTER)
    pipe = subprocess.PIPE
    environment = {**os.environ, "PYTHONWARNINGS": "ignore", "MORTAL": "True"}
    with subprocess.Popen([sys.executable, script], stdin=pipe, stdout=pipe, env=environment) as process:
        assert process.stdout is not None
        yield Cluster(process, process.stdout.readline().decode().strip())
        process.kill()


@contextmanager
def simulating(scenario: Path, out: Path, *options: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "paceline", "simulate", str(scenario), "--out", str(out), *options]
    pipe, patience = subprocess.PIPE, {"DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s"}
    environment = {**os.environ, **patience, "MORTAL": "False"}
    with subprocess.Popen(command, stderr=pipe, stdout=pipe, text=True, env=environment) as child:
        yield child


def simulate(scenario: Path, out: Path, *options: str) -> tuple[int, str]:
    with simulating(scenario, out, *options) as child:
        _, err = child.communicate(timeout=200)
        return child.returncode, err


@pytest.mark.slow
@pytest.mark.parametrize("dies", [False, True])
def test_two_workers_give_the_bytes_of_one_core(tmp_path: Path, cluster: Cluster, dies: bool) -> None:
    """The user's code beside the scenario is read there, too; one worker ends in its first run."""
    scenario = write_scenario(tmp_path)
    assert simulate(scenario, tmp_path / "one", "--jobs", "1")[0] == 0
    write_scenario(tmp_path, dies)
    code, err = simulate(scenario, tmp_path / "two", "--dask", cluster.address)
    assert code == 0, err
    assert digests(tmp_path / "one") == digests(tmp_path / "two")
    assert bool(list(tmp_path.glob("*.died"))) == dies


@pytest.mark.slow
def test_the_same_command_goes_on_where_the_scheduler_was_killed(tmp_path: Path, cluster: Cluster) -> None:
    scenario, out = write_scenario(tmp_path), tmp_path / "out"
    with simulating(scenario, out, LONG, "--dask", cluster.address) as child:
        until_s = time.monotonic() + 100
        while not list(out.glob("parts/run-*")):
            assert time.monotonic() < until_s
            time.sleep(0.01)
        cluster.process.kill()
        _, err = child.communicate(timeout=200)
    assert child.returncode == 1
    assert err.splitlines()[-1].endswith("the scheduler died; the same command continues")
    assert "Traceback" not in err
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("parts/run-*")}
    assert 1 <= len(kept) < 6
    code, err = simulate(scenario, out, LONG)
    assert code == 0
    assert f"{len(kept)} runs are there" in err
    assert simulate(scenario, tmp_path / "whole", LONG)[0] == 0
    assert digests(out) == digests(tmp_path / "whole")


@pytest.mark.slow
def test_a_run_that_ends_worker_after_worker_is_named(tmp_path: Path, cluster: Cluster) -> None:
    scenario = write_scenario(tmp_path)
    scenario.with_name(f"{tmp_path.name}.py").write_text(
        f"import os\nif os.getppid() != {os.getpid()}:\n    os._exit(1)\n"
        "async def scheme(worker):\n    pass\n"
    )
    code, err = simulate(scenario, tmp_path / "out", "--dask", cluster.address)
    assert code == 1
    assert "each worker that did one of the runs died" in err.splitlines()[-1]


@pytest.mark.parametrize("address", ["tcp://10.0.0.1:8786", "10.0.0.1:8786", "gpu-1:8786", "ws://far:80", ""])
def test_nothing_goes_beyond_this_machine_without_tls(address: str) -> None:
    with pytest.raises(InputError, match="only with TLS"), connect(address):
        pass


def test_what_says_half_a_length_and_no_more_is_no_scheduler() -> None:
    def answer(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            connection.sendall(b"\x05\0")
            connection.recv(1)

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer, args=(server,), daemon=True).start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(InputError, match="what listens there is no scheduler of Dask"), connect(address):
            pass


def test_a_connection_with_tls_that_fails_names_the_settings_of_certificates() -> None:
    with (
        pytest.raises(InputError, match=r"--dask tls:.*'distributed\.comm\.tls' name"),
        connect("tls://[::1]:1"),
    ):
        pass


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    for address in ("localhost:8786", "tcp://127.0.0.1:1", "[::1]:8786", "tls://gpu-1:8786"):
        with pytest.raises(InputError, match=r"pip install 'paceline\[dask\]'"), connect(address):
            pass
