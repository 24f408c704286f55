"""The same scenario and seed give the same bytes, however busy the machine is."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

SCENARIO = """\
name: busy
seed: 3
workload: {task: digits-cnn, batch_size: 32, optimizer: {lr: 0.1, momentum: 0.9}}
cluster:
  workers: 16
  compute: {time: 20 ms, jitter: {lognormal: {cv: 0.2}}}
  network: {latency: 1 ms, bandwidth: 1 Gbit/s}
evaluate: {every: 2 steps}
schemes: [all_reduce, ad_psgd]
stop: {max_iterations: 6}
"""
FILES = ("summary.json", "metrics.parquet", "events.parquet", "scenario.yaml")
RUNS = 10
SPIN = "while True: pass"
SIMULATE = [sys.executable, "-m", "paceline", "simulate"]


@pytest.mark.slow
def test_ten_equal_runs_under_changing_load_have_the_same_bytes(tmp_path: Path) -> None:
    """Run k has k mod 5 busy processes beside it, half of which start and stop while it computes."""
    scenario = tmp_path / "busy.yaml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    versions: dict[str, set[str]] = {name: set() for name in FILES}
    for number in range(RUNS):
        folder = tmp_path / f"run{number}"
        busy = [subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(number % 5)]
        try:
            run = subprocess.Popen([*SIMULATE, str(scenario), "--out", str(folder)])
            while run.poll() is None:
                try:
                    run.wait(timeout=1.0)
                except subprocess.TimeoutExpired:
                    if busy:
                        busy[0].kill()
                        busy.pop(0).wait()
                        busy.append(subprocess.Popen([sys.executable, "-c", SPIN]))
            assert run.returncode == 0
        finally:
            for process in busy:
                process.kill()
                process.wait()
        for name in FILES:
            versions[name].add(hashlib.sha256((folder / name).read_bytes()).hexdigest())
    assert {name: len(each) for name, each in versions.items()} == dict.fromkeys(FILES, 1)
