"""The scripts of ``docs/clusters-of-runs.md``: they run as far as one machine goes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.project.test_docs import blocks

PAGE = (Path(__file__).parents[2] / "docs" / "clusters-of-runs.md").read_text(encoding="utf-8")
LOCAL, SLURM, KUBERNETES, SUBMITIT = blocks("python", PAGE)
CERTIFICATE = (
    "openssl req -x509 -newkey rsa:2048 -nodes -keyout key.pem -out cert.pem -days 2 -subj /CN=localhost"
)
WITH_TLS = """
import dask
pair = {"cert": "cert.pem", "key": "key.pem"}
tls = {"ca-file": "cert.pem", "scheduler": pair, "worker": pair, "client": pair}
dask.config.set({"distributed.comm.tls": tls})
"""


def few(script: str) -> str:
    """Fewer and shorter runs."""
    return script.replace('"one-rack",', '"one-rack", changes=["repeats=1", "stop.max_iterations=4"],')


def output(folder: Path, script: str) -> str:
    path = folder / "script.py"
    path.write_text(script, encoding="utf-8")
    done = subprocess.run([sys.executable, path], cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_scripts_are_python() -> None:
    for script in (LOCAL, SLURM, KUBERNETES, SUBMITIT):
        compile(script, "clusters-of-runs.md", "exec")


@pytest.mark.slow
def test_a_local_cluster(tmp_path: Path) -> None:
    pytest.importorskip("distributed")
    assert "time_to_target_s" in output(tmp_path, few(LOCAL))


@pytest.mark.slow
def test_the_batch_script_of_slurm(tmp_path: Path) -> None:
    """Up to the submission: there is no Slurm here."""
    pytest.importorskip("dask_jobqueue")
    subprocess.run(CERTIFICATE.split(), cwd=tmp_path, check=True, capture_output=True)
    script = output(tmp_path, WITH_TLS + SLURM.partition("cluster.scale")[0])
    lines = script.splitlines()
    assert {"#SBATCH -p cpu", "#SBATCH -n 1", "#SBATCH --cpus-per-task=16", "#SBATCH --mem=30G"} <= set(lines)
    worker = next(line for line in lines if "distributed.cli.dask_worker" in line)
    assert " tls://" in worker
    assert "--nthreads 1 " in worker
    assert "--nworkers 16 " in worker
    assert "--tls-cert" in worker


@pytest.mark.slow
def test_submitit_on_this_machine(tmp_path: Path) -> None:
    pytest.importorskip("submitit")
    assert "time_to_target_s" in output(tmp_path, few(SUBMITIT).replace("max_workers=100", "max_workers=2"))
