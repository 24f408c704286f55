"""Time that a run takes longer on a Dask worker of this machine: ``python -m benchmarks.executor_overhead``.

Each run goes alone to a cluster of two workers, whose first runs, with the import of torch, are not counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch

from paceline.sim.experiments.jobs import JobProcesses, PlannedRun
from paceline.sim.experiments.prepare import resolve
from paceline.sim.experiments.simulate import run_here
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import load

_CPU = torch.device("cpu")
_CHANGES = ["tune=null", "stop.target=null", "stop.max_iterations=230"]


def timed(
    device: torch.device, engine: Any, planned: PlannedRun, follow: Any, warn: Callable[[str], None]
) -> Run:
    """Do a run, and give its seconds back as a warning."""
    begin_s = time.perf_counter()
    run = run_here(device, engine, planned, follow, None)
    warn(str(time.perf_counter() - begin_s))
    return run


def main() -> None:
    """Measure and print."""
    from distributed import LocalCluster

    scenario = resolve(load("scenarios/four-regions.yaml", _CHANGES), _CPU)
    more: list[tuple[float, float]] = []
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster:
        processes = JobProcesses(executor=cluster.get_client().get_executor(pure=False))
        for number in range(6):
            notes: list[str] = []
            planned = PlannedRun("run", number, scenario, scenario.schemes[0], number)
            begin_s = time.perf_counter()
            runs = processes.run_all([planned], partial(timed, _CPU, "auto"), warn=notes.append)
            assert len(list(runs)) == 1
            more.append((float(notes[0]), time.perf_counter() - begin_s - float(notes[0])))
    alone_s, added_s = (median(column) for column in zip(*more[2:], strict=True))
    print(f"a run of {alone_s:.1f} s takes {added_s:.2f} s longer, {100 * added_s / alone_s:.1f} %")
    print("each:", ", ".join(f"{a:.2f} + {b:.2f} s" for a, b in more))


if __name__ == "__main__":
    main()
