"""Compares predictions from the record of a training loop with runs of each scheme.

Two processes train under ``paceline.attach`` over loopback, with each scheme in turn. The record of each
makes a profile, which predicts all of them, each with the gradients that were measured under it. Every round
has profiles of its own; of all rounds the medians count. Printed beside them: how far apart runs of a scheme
were.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from paceline.realrun.calibration import fit, training_run
from paceline.sim.compute.attached import AttachedRun, load
from paceline.sim.experiments.simulate import simulate
from paceline.sim.network import profile
from paceline.sim.scenario.schema import parse
from tests.support import attach_jobs
from tests.support.cluster_pool import Pool

WORKERS, STEPS, TIMES = 2, 150, 5
SCHEMES: dict[str, Any] = {
    "all_reduce": "all_reduce",
    "gossip": {"gossip": {"topology": "ring"}},
    "local_sgd": {"local_sgd": {"period": 4}},
}
SCENARIO = """
name: here
workload: {{task: digits-mlp, batch_size: 32, optimizer: {{lr: 0.1, momentum: 0.9}}}}
cluster:
  workers: {workers}
  compute: {{trace: {{attached: {record}}}}}
  network: {{latency: 20 us, bandwidth: 10 Gbit/s}}
{profile}
evaluate: {{every: {steps} steps}}
schemes: [{scheme}]
repeats: 5
stop: {{max_iterations: {steps}}}
"""


def wall_s(record: AttachedRun) -> float:
    """How long the run took."""
    return max(event.end_s for event in record.events)


def predicted_s(record: Path, scheme: Any, fitted: Path) -> float:
    """How long the simulator says that it takes."""
    text = SCENARIO.format(
        workers=WORKERS, record=record, steps=STEPS, scheme=scheme, profile=f"  profile: {fitted}"
    )
    return statistics.median(run.wall_clock_s for run in simulate(parse(text)))


def main() -> None:
    """Measure, and print a line for each profile and scheme."""
    pool = Pool(WORKERS)
    walls: dict[str, list[float]] = {name: [] for name in SCHEMES}
    errors: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(TIMES + 1):
            paths = {}
            for name, scheme in SCHEMES.items():
                place = Path(folder) / f"{name}-{number}"
                pool.ask(attach_jobs.train, scheme=scheme, steps=STEPS, loops=STEPS, records=str(place))
                paths[name] = place / "attached.json"
            if number == 0:
                continue  # it warms up
            for name, path in paths.items():
                walls[name].append(wall_s(load(path)))
                text = SCENARIO.format(
                    workers=WORKERS, record=path, steps=STEPS, scheme="all_reduce", profile=""
                )
                evidence = training_run.TrainingRun(load(path), parse(text), path)
                fitted = Path(folder) / f"{name}-{number}.yaml"
                fitted.write_text(profile.dump(fit.calibrate([evidence]).profile))
                for other, there in paths.items():
                    error = predicted_s(there, json.dumps(SCHEMES[other]), fitted) / wall_s(load(there)) - 1
                    errors.setdefault((name, other), []).append(100 * error)
    pool.close()
    for (name, other), off_pct in errors.items():
        apart = 100 * (max(walls[other]) / min(walls[other]) - 1)
        sys.stdout.write(
            f"profile from {name:>10}: {other:>10} {statistics.median(off_pct):+.1f} % "
            f"({min(off_pct):+.1f} to {max(off_pct):+.1f}); its runs differ by up to {apart:.0f} %\n"
        )


if __name__ == "__main__":
    main()
