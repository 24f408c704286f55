"""A grid of networks and stragglers, against the trainings that it needs: seconds, and the ratio.

    python -m benchmarks.grid

5 latencies x 4 bandwidths x 3 straggler levels x 5 synchronous schemes on the digits, 16 workers, links not
shared, 200 steps. The trainings alone are ``simulate`` of one setting. Medians of interleaved rounds; seconds
of the processor, of one process with one thread.

    python -m benchmarks.grid folder

The same with 8 workers by the command ``paceline sweep --out``, once; then with ``ad_psgd`` in place of
``slowmo``, which is trained anew at each setting.
"""

from __future__ import annotations

import json
import math
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import paceline
from benchmarks.bars import Bar, Part, at_most, print_bars
from paceline.sim.experiments.costs.check import check
from paceline.sim.experiments.prepare import device_named
from paceline.sim.scenario.schema import resolve_scenario

ROUNDS: Final = 3
STEPS: Final = 200
SCENARIO: Final[dict[str, Any]] = {
    "name": "grid",
    "workload": {
        "task": "digits-mlp",
        "batch_size": 32,
        "optimizer": {"lr": 0.1, "momentum": 0.9},
        "payload": "100 MB",
    },
    "cluster": {
        "workers": 16,
        "compute": {"time": "50 ms", "jitter": {"lognormal": {"cv": 0.1}}},
        "network": {"latency": "1 ms", "bandwidth": "1 Gbit/s", "sharing": "none"},
    },
    "schemes": [
        "all_reduce",
        {"local_sgd": {"period": 8}},
        {"post_local_sgd": {"switch_at": 50, "period": 8}},
        {"adaptive_local_sgd": {"initial_period": 4}},
        {"slowmo": {"period": 8}},
    ],
    "stop": {"max_iterations": STEPS},
    "events": "none",
}
GRID: Final[dict[str, list[Any]]] = {
    "cluster.network.latency": ["0.1 ms", "1 ms", "5 ms", "20 ms", "100 ms"],
    "cluster.network.bandwidth": ["100 Mbit/s", "1 Gbit/s", "10 Gbit/s", "100 Gbit/s"],
    "cluster.stragglers": [
        [],
        [{"probability": 0.05, "slowdown": 4}],
        [{"workers": [3], "slowdown": 2}, {"probability": 0.05, "slowdown": 4}],
    ],
}


def main() -> None:
    """Measure and print."""
    print_bars(folder_bars() if sys.argv[1:] == ["folder"] else measure_bars())


def measure() -> Part:
    """All bars, for the page."""
    return Part(tuple(measure_bars()))


def measure_bars() -> Iterator[Bar]:
    """One for each way to score."""
    for on in ("averaged", "mean"):
        scenario = {**SCENARIO, "evaluate": {"every": "10 steps", "on": on}}
        training = partial(paceline.simulate, scenario, device="cpu", progress=False, jobs=1)
        grid = partial(paceline.sweep, scenario, GRID, device="cpu", progress=False)
        times: list[tuple[float, float]] = []
        vectors = settings = 0
        for _ in range(ROUNDS):
            training_s, (grid_s, sweep) = _seconds(training)[0], _seconds(grid)
            times.append((training_s, grid_s))
            vectors, settings = num_step_vectors(sweep), len(sweep.studies)
        training_s, grid_s = (statistics.median(column) for column in zip(*times, strict=True))
        more_s = statistics.median(each[1] - each[0] for each in times)
        detail = (
            f"{len(SCENARIO['schemes'])} trainings {training_s:.1f} s, {settings} settings {grid_s:.1f} s"
        )
        allowed_s = 20.0
        if on == "mean":
            once_s = check(resolve_scenario(scenario), device_named("cpu"))["score_s"]
            allowed_s += vectors * once_s
            detail += f"; {vectors:,} step vectors, by `check` {1e3 * once_s:.1f} ms each"
        yield at_most(
            f"grid scored on `{on}`, beyond its trainings, processor", allowed_s, more_s, "s", detail
        )


def folder_bars() -> Iterator[Bar]:
    """One for each list of schemes, with the folder that the command writes."""
    shared, apart = SCENARIO["schemes"], {"ad_psgd": {"topology": "ring"}}
    cluster = {**SCENARIO["cluster"], "workers": 8}
    settings = math.prod(map(len, GRID.values()))
    for name, together, alone in (("synchronous", shared, []), ("with ad_psgd", shared[:-1], [apart])):
        scenario = {**SCENARIO, "cluster": cluster, "schemes": [*together, *alone]}
        training_s = _seconds(partial(_train, scenario, together))[0]
        training_s += settings * _seconds(partial(_train, scenario, alone))[0] if alone else 0.0
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "grid.yaml"
            path.write_text(json.dumps(scenario))
            grid = [f"--grid={key}={json.dumps(values)[1:-1]}" for key, values in GRID.items()]
            command = [sys.executable, "-m", "paceline", "sweep", str(path), *grid, "--out", f"{folder}/out"]
            begin = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([*command, "--jobs", "1"], check=True, capture_output=True)
            end = resource.getrusage(resource.RUSAGE_CHILDREN)
        grid_s = end.ru_utime + end.ru_stime - begin.ru_utime - begin.ru_stime
        detail = f"trainings {training_s:.1f} s, {settings} settings of 5 schemes {grid_s:.1f} s"
        yield at_most(f"{name} grid, beyond its trainings, processor", 20.0, grid_s - training_s, "s", detail)


def _train(scenario: dict[str, Any], schemes: list[Any]) -> None:
    paceline.simulate({**scenario, "schemes": schemes}, device="cpu", progress=False, jobs=1)


def num_step_vectors(sweep: Any) -> int:
    """How many combinations of models have been scored, over all schemes."""
    return len(
        {(run.label, each.steps) for study in sweep.studies for run in study.runs for each in run.evaluations}
    )


def _seconds(run: Callable[[], Any]) -> tuple[float, Any]:
    begin_s = time.process_time()
    result = run()
    return time.process_time() - begin_s, result


if __name__ == "__main__":
    main()
