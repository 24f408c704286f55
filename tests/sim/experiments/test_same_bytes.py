"""The same scenario and seed give the same bytes, however busy the machine is."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.commands.app import app

SCENARIO = """\
name: busy
seed: 3
workload: {task: digits-cnn, batch_size: 32, optimizer: {lr: 0.1, momentum: 0.9}}
cluster:
  workers: 6
  compute: {time: 20 ms, jitter: {lognormal: {cv: 0.2}}}
  network: {latency: 1 ms, bandwidth: 1 Gbit/s}
evaluate: {every: 2 steps}
schemes: [all_reduce, ad_psgd]
stop: {max_iterations: 4}
"""
FILES = ("summary.json", "metrics.parquet", "events.parquet", "scenario.yaml")
RUNS = 10
BUSY_NOW_AND_THEN = """
import time
while True:
    end = time.monotonic() + 0.15
    while time.monotonic() < end:
        pass
    time.sleep(0.1)
"""


@contextmanager
def load() -> Iterator[None]:
    """A process beside this one that keeps a core busy, stops, and goes on."""
    with subprocess.Popen([sys.executable, "-c", BUSY_NOW_AND_THEN]) as process:
        try:
            yield
        finally:
            process.kill()


@pytest.mark.slow
def test_ten_equal_runs_under_changing_load_have_the_same_bytes(tmp_path: Path) -> None:
    """Run k has k mod 4 processes beside it."""
    scenario = tmp_path / "busy.yaml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    versions: dict[str, set[str]] = {name: set() for name in FILES}
    for number in range(RUNS):
        folder = tmp_path / f"run{number}"
        with ExitStack() as beside:
            for _ in range(number % 4):
                beside.enter_context(load())
            result = CliRunner().invoke(app, ["simulate", str(scenario), "--out", str(folder)])
        assert result.exit_code == 0, result.output
        for name in FILES:
            versions[name].add(hashlib.sha256((folder / name).read_bytes()).hexdigest())
    assert {name: len(each) for name, each in versions.items()} == dict.fromkeys(FILES, 1)
