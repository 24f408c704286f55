"""The script for Slurm, run by a shell with a made-up Slurm around it."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from paceline.commands.app import app
from paceline.sim.errors import InputError
from tests.sim.scenario.test_schema import FLAT

SRUN = f"""#!{sys.executable}
# srun: starts SLURM_NTASKS tasks, SLURM_PER_NODE on each node
import os, subprocess, sys
words = sys.argv[1:]
assert words.pop(0) == "--kill-on-bad-exit=1"
per_node = int(os.environ["SLURM_PER_NODE"])
for task in range(int(os.environ["SLURM_NTASKS"])):
    mine = {{"SLURM_PROCID": str(task), "SLURM_LOCALID": str(task % per_node)}}
    subprocess.run(words, env={{**os.environ, **mine}}, check=True)
"""
SCONTROL = """#!/bin/bash
[ "$*" = "show hostnames node[07-08]" ] || exit 1
printf 'node07\\nnode08\\n'
"""
PYTHON = f"""#!{sys.executable}
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS")
with open(os.environ["LOG"], "a") as log:
    print(json.dumps([sys.argv[1:], *(os.environ[name] for name in names)]), file=log)
with open(os.environ["LOG"] + ".secret", "a") as log:
    print(os.environ["PACELINE_SECRET"], file=log)
"""


def script(*arguments: str, command: str = "realrun") -> str:
    found = CliRunner().invoke(app, [command, *arguments, "--slurm"], catch_exceptions=False)
    assert found.exit_code == 0
    return found.stdout


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "it's small.yaml"
    path.write_text(FLAT)
    return path


def test_the_script_starts_every_rank_as_torchrun_would(
    scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    text = script(
        str(scenario), "--per-node", "2", "--set", "stop.max_iterations=7", "--out", "a b", "--json"
    )
    for name, content in {"srun": SRUN, "scontrol": SCONTROL, "python": PYTHON}.items():
        (tmp_path / name).write_text(content)
        (tmp_path / name).chmod(0o755)
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks=4\n#SBATCH --ntasks-per-node=2\n" in text
    assert "gpu" not in text
    job = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(tmp_path / "log"), "SLURM_PER_NODE": "2",
        "SLURM_NTASKS": "4", "SLURM_JOB_ID": "123456", "SLURM_JOB_NODELIST": "node[07-08]",
    }  # fmt: skip
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)
    subprocess.run(["bash"], input=text, text=True, check=True, env=job)
    words = [
        "-P", "-m", "paceline.realrun", str(scenario), "--set=stop.max_iterations=7", "--timeout=60",
        "--out=a b", "--json",
    ]  # fmt: skip
    assert [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()] == [
        [words, str(rank), "4", str(rank % 2), "node07", str(15000 + 123456 % 40000), "1"]
        for rank in range(4)
    ]
    secrets = (tmp_path / "log.secret").read_text().split()
    assert (len(secrets), len(set(secrets)), len(bytes.fromhex(secrets[0]))) == (4, 1, 32)


def test_a_node_gets_no_more_processes_than_there_are(scenario: Path) -> None:
    assert "#SBATCH --nodes=1\n#SBATCH --ntasks=4\n#SBATCH --ntasks-per-node=4\n" in script(
        str(scenario), "--per-node", "8"
    )


def test_with_nccl_every_process_has_a_gpu(scenario: Path) -> None:
    text = script(str(scenario), "--per-node", "2", "--set", "cluster.backend=nccl")
    head = text[: text.index("\nset -euo")]
    assert "#SBATCH --gpus-per-task=1\n" in head
    assert "#SBATCH --gpu-bind=none\n" in head
    assert all(
        line.startswith("#") for line in head.splitlines() if line
    )  # sbatch reads up to the first command


def test_what_cannot_be_run_is_refused_before_it_waits_in_a_queue(scenario: Path) -> None:
    unbounded = ["--set", 'stop={max_time: "1 s"}']
    with pytest.raises(InputError, match="a real run's length is fixed before it starts"):
        script(str(scenario), *unbounded)
    with pytest.raises(InputError, match="--per-node 0: a node runs at least one process"):
        script(str(scenario), "--per-node", "0")
    with pytest.raises(InputError, match="--per-node 3: does not divide 4 workers; write 2, say"):
        script(str(scenario), "--per-node", "3")


def test_a_validation_waits_in_a_queue_too(scenario: Path) -> None:
    text = script(
        str(scenario), "--per-node", "2", "--steps", "5", "--tolerance", "2.5", "--out", "out",
        command="validate",
    )  # fmt: skip
    assert "by 'paceline validate --slurm'" in text
    assert "#SBATCH --nodes=2\n#SBATCH --ntasks=4\n#SBATCH --ntasks-per-node=2\n" in text
    words = shlex.split(text.splitlines()[-1].removeprefix("' "))
    assert words[-5:] == ["validate", str(scenario), "--steps=5", "--tolerance=2.5", "--out=out"]
    target = ["--set", "repeats=auto", "--set", "stop.target={metric: train_loss, value: 0.1}"]
    with pytest.raises(InputError, match="a real run needs a number of repeats"):
        script(str(scenario), *target, command="validate")
