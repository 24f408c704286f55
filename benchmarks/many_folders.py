"""Seconds and memory of a report on thousands of folders whose scenarios differ in seeds alone.

    python -m benchmarks.many_folders [FOLDERS]         10,000 without a number

A hundred seeds are simulated; further folders are copies under other seeds.
"""

from __future__ import annotations

import re
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

import paceline
from paceline.sim.records.folder import write_results

SIMULATED: Final = 100
SCENARIO: Final = """
name: many-folders
workload: {task: quadratic, batch_size: 8, optimizer: {lr: 0.1}}
cluster: {workers: 2, compute: {time: 10 ms, jitter: {lognormal: {cv: 0.2}}}, network: {latency: 5 ms, bandwidth: 1 Gbit/s}}
evaluate: {every: 5 steps}
schemes: [all_reduce, {local_sgd: {period: 4}}]
stop: {target: {metric: train_loss, value: 20}, max_iterations: 40}
"""  # noqa: E501


def main() -> None:
    """Write the folders, report on them, and print the figures."""
    number = int(sys.argv[1]) if sys.argv[1:] else 10_000
    with tempfile.TemporaryDirectory() as top:
        folders = write(Path(top), number)
        start_s = time.monotonic()
        command = ["paceline", "report", *map(str, folders), "--out", f"{top}/page.html"]
        subprocess.run([sys.executable, "-m", *command], check=True)
        took_s = time.monotonic() - start_s
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20
        page = (Path(top) / "page.html").stat().st_size / 1e6
    print(f"{number:,} folders: {took_s:.0f} s, {memory:.2f} GiB, a page of {page:.1f} MB")


def write(top: Path, number: int) -> list[Path]:
    """Write result folders of the seeds from 0."""
    source = top / "scenario.yaml"
    source.write_text(f"{SCENARIO}\nseed: 0\nrepeats: {min(number, SIMULATED)}\n", encoding="utf-8")
    study = paceline.simulate(source, progress=False)
    study.save(top / "all")
    text = (top / "all" / "scenario.yaml").read_text(encoding="utf-8")
    text = re.sub(r"^repeats: .*$", "repeats: 1", text, flags=re.MULTILINE)
    folders = [top / f"{seed:05d}" for seed in range(number)]
    for seed, folder in enumerate(folders):
        runs = [replace(run, seed=seed) for run in study.runs if run.seed == seed % SIMULATED]
        own = re.sub(r"^seed: .*$", f"seed: {seed}", text, flags=re.MULTILINE)
        write_results(folder, own, "many-folders", runs, facts=study.facts)
    return folders


if __name__ == "__main__":
    main()
