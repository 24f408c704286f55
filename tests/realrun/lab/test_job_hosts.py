"""A job of two hosts under torchrun: namespaces of the lab, each with an agent and two ranks."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from paceline.realrun.lab import Lab
from paceline.realrun.lab.lab import python_environment
from paceline.sim.network.network import Link, Network
from paceline.sim.network.profile import HostKind, dump
from paceline.sim.records.folder import read_results
from tests.support.made_measurements import exact_fit

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

LATENCY_S, BYTES_PER_S = 0.01, 50e6
SCENARIO = """
name: two-hosts
seed: 1
workload: {task: digits-mlp, batch_size: 32, optimizer: {lr: 0.1}, payload: 200 kB}
cluster:
  workers: 4
  compute: {time: 60 ms}
  network:
    sites: {here: 2, there: 2}
    within: {latency: 50 us, bandwidth: 10 Gbit/s}
    between: {latency: 10 ms, bandwidth: 400 Mbit/s}
evaluate: {every: 5 steps}
schemes: [all_reduce, {gossip: {topology: ring}}]
stop: {max_iterations: 10}
repeats: 3
"""


def two_hosts() -> Network:
    links = tuple(Link(f"{way} {host}", BYTES_PER_S) for host in range(2) for way in ("up", "down"))
    up, down = {0: 0, 1: 2}, {0: 1, 1: 3}
    return Network(("star",), (0, 0), links, ((LATENCY_S,),), ((math.inf,),), up, down)


def _torchrun(lab: Lab, host: int) -> list[str]:
    rendezvous = f"--rdzv-backend c10d --rdzv-id 1 --rdzv-endpoint {lab.address(0)}:29400"
    who = f"--rdzv-conf is_host={int(host == 0)} --local-addr {lab.address(host)}"
    options = f"--nnodes 2 --nproc-per-node 2 {rendezvous} {who}"
    return [sys.executable, "-m", "torch.distributed.run", *options.split()]


class Job:
    """torchrun on both hosts of a lab, by a rendezvous on the first one, as docs/clusters.md has it."""

    def __init__(self, lab: Lab, *arguments: str, module: str = "paceline.realrun") -> None:
        environment = {
            **python_environment(), "PACELINE_SECRET": "s" * 32, "GLOO_SOCKET_IFNAME": lab.interface,
            "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.agents = [
            lab.popen(
                host,
                [*_torchrun(lab, host), "-m", module, *arguments],
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for host in range(2)
        ]
        self.errors = ["", ""]
        self._seen = threading.Event()
        self._wanted = ""
        self._readers = [threading.Thread(target=self._read, args=(host,)) for host in range(2)]
        for reader in self._readers:
            reader.start()

    def _read(self, host: int) -> None:
        stream = self.agents[host].stderr
        assert stream is not None
        with stream:
            for line in stream:
                self.errors[host] += line.decode(errors="replace")
                if self._wanted and self._wanted in self.errors[host]:
                    self._seen.set()

    def wait_for(self, words: str) -> None:
        """Wait until a host has printed some words."""
        self._wanted = words
        if not any(words in text for text in self.errors):
            assert self._seen.wait(200), self.text()

    def text(self) -> str:
        """What both hosts have printed on standard error, its end."""
        return "\n".join(text[-3000:] for text in self.errors)

    def ranks(self, host: int) -> list[int]:
        """The processes of a host's ranks."""
        agent = self.agents[host].pid
        return [int(pid) for pid in Path(f"/proc/{agent}/task/{agent}/children").read_text().split()]

    def end(self) -> tuple[list[int], str]:
        """Wait for both agents; returns their exit statuses, and what the first host printed."""
        printed = []
        for agent in self.agents:
            assert agent.stdout is not None
            with agent.stdout:
                printed.append(agent.stdout.read().decode())
        statuses = [agent.wait(200) for agent in self.agents]
        for reader in self._readers:
            reader.join()
        return statuses, printed[0] + printed[1]


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Factors of some cluster, so that nothing need be probed."""
    path = tmp_path_factory.mktemp("factors") / "profile.yaml"
    cluster = {"hosts": HostKind(kind="cluster")}
    path.write_text(dump(exact_fit().profile.model_copy(update=cluster)))
    return path


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "two-hosts.yaml"
    path.write_text(SCENARIO)
    return path


def largest_median_pct(comparison: dict[str, Any], label: str) -> float:
    return float(median(abs(cell["error_pct"]) for cell in comparison["cells"] if cell["label"] == label))


@pytest.mark.slow
def test_a_validation_over_gloo_has_the_labs_errors(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with Lab(two_hosts()) as lab:
        job = Job(lab, "validate", str(scenario), "--out", str(out), "--json", "--tolerance", "10")
        statuses, printed = job.end()
    assert statuses == [0, 0], job.text()
    comparison = json.loads(printed)
    assert json.loads((out / "validation.json").read_text()) == comparison
    for label in ("all_reduce", "gossip"):
        assert largest_median_pct(comparison, label) < 10
    assert [each["same"] for each in comparison["trajectories"]] == [True] * 6
    assert comparison["status"] == "completed"
    assert comparison["noise_floor_pct"] is not None
    assert comparison["verdict"]["outcome"] in ("pass", "noisy")
    assert comparison["verdict"]["text"].split(":")[0].capitalize() in (out / "report.html").read_text()
    order = [line for line in job.errors[0].splitlines() if line.endswith("measuring")]
    assert [line.partition(",")[0] for line in order] == ["all_reduce", "gossip"] * 3


@pytest.mark.slow
def test_a_validation_with_the_rules_of_nccl_ends_with_a_comparison(scenario: Path) -> None:
    with Lab(two_hosts()) as lab:
        job = Job(
            lab, "validate", str(scenario), "--json", "--set", "cluster.backend=nccl", "--set", "repeats=1",
            module="tests.support.nccl_rank",
        )  # fmt: skip
        statuses, printed = job.end()
    comparison = json.loads(printed)
    assert statuses == [int(comparison["verdict"]["outcome"] == "fail")] * 2, job.text()
    assert comparison["status"] == "completed"
    assert {cell["label"] for cell in comparison["cells"]} == {"all_reduce", "gossip"}
    assert [each["same"] for each in comparison["trajectories"]] == [True] * 2
    assert "nothing is fitted over nccl" in job.errors[0]


@pytest.mark.parametrize(
    ("backend", "host"),
    [
        ("gloo", 1),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("gloo", 0), ("nccl", 0), ("nccl", 1))),
    ],
)
def test_a_validation_ends_with_what_it_has_when_a_rank_is_killed(
    backend: str, host: int, scenario: Path, profile: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    options = ["--out", str(out), "--set", "stop.max_iterations=100", "--set", f"cluster.backend={backend}"]
    module = "paceline.realrun" if backend == "gloo" else "tests.support.nccl_rank"
    if backend == "gloo":
        options += ["--profile", str(profile)]
    with Lab(two_hosts()) as lab:
        job = Job(lab, "validate", str(scenario), *options, module=module)
        job.wait_for("gossip, seed 1: predicted")
        time.sleep(4.0)  # of the 7 that the run lasts: scores without the lost worker are recorded
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.ranks(host)[1], signal.SIGKILL)
        statuses, _ = job.end()
    assert statuses == [1, 1], job.text()
    comparison = json.loads((out / "validation.json").read_text())
    assert comparison["status"] == "partial"
    assert comparison["verdict"]["outcome"] == "fail"
    assert "worker" in comparison["message"]
    assert "was lost" in comparison["message"] or "ended" in comparison["message"]
    assert "all_reduce" in {cell["label"] for cell in comparison["cells"]}
    measured = [run for run in read_results(out).summary["runs"] if run["source"] == "measured"]
    assert measured[0]["label"] == "all_reduce"
    assert "was lost" in (out / "report.html").read_text()


@pytest.mark.slow
def test_probes_of_two_hosts(scenario: Path, tmp_path: Path) -> None:
    out = tmp_path / "measured.json"
    with Lab(two_hosts()) as lab:
        statuses, _ = Job(lab, "probe", str(scenario), "--out", str(out)).end()
    assert statuses == [0, 0]
    assert json.loads(out.read_text())["hosts"]["kind"] == "cluster"
