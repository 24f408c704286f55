"""Peak memory: of 256 workers with a model of a million parameters each, and beside the estimate of it.

    python -m benchmarks.memory

The first is a digits MLP with 13,333 hidden units, one-peer gossip with momentum, three steps; the bar is
8 GiB. The others are one shape each of what the estimate adds up (``paceline.sim.experiments.memory``),
simulated in a process of its own; what Python and its libraries take is left out.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterable
from typing import Any, Final

import torch

from benchmarks.bars import Part, at_most, print_bars
from paceline.sim.drivers.event import EventDriver
from paceline.sim.experiments.memory import estimate_bytes
from paceline.sim.experiments.prepare import resolve
from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import parse
from tests.support.factory import make_job

_SCENARIO: Final = """\
name: memory
workload: {{{workload}, optimizer: {{lr: 0.01, momentum: 0.9}}}}
cluster:
  workers: {workers}
  compute: {{time: 5 ms, jitter: {{lognormal: {{cv: 0.2}}}}}}
  network: {{latency: 1 ms}}
schemes: [{scheme}]
evaluate: {{every: {every} steps}}
stop: {{{stop}}}
events: {events}
"""
_GOSSIP: Final = "{gossip: {topology: one_peer_exponential}}"
_SMALL: Final[dict[str, str | int]] = {
    "workload": "task: quadratic, dimension: 30, examples: 10000, batch_size: 4", "workers": 10_000,
    "scheme": _GOSSIP, "every": 5, "stop": "max_iterations: 10", "events": "none",
}  # fmt: skip
_LARGE: Final = _SMALL | {
    "workload": "task: digits-mlp, hidden: 100000, batch_size: 8", "workers": 8, "every": 10,
}  # fmt: skip
SHAPES: Final = {
    "warm-up": _SMALL | {"workload": "task: digits-mlp, hidden: 20, batch_size: 4", "workers": 16},
    "many workers of a small model": _SMALL,
    "many workers, asynchronous": _SMALL | {"scheme": "ad_psgd", "stop": "max_iterations: 5"},
    "few workers of a large model": _LARGE,
    "a large model, all-reduce": _LARGE | {"scheme": "all_reduce"},
    "a large model, asynchronous": _LARGE | {"scheme": "ad_psgd"},
    "many examples": _LARGE
    | {"workload": "task: quadratic, dimension: 100, examples: 500000, batch_size: 8"},
    "large batches": _LARGE
    | {"workload": "task: digits-mlp, hidden: 3000, batch_size: 20000", "stop": "max_iterations: 4"},
    "kept models": _LARGE
    | {"workload": "task: digits-mlp, hidden: 13333, batch_size: 8", "workers": 16}
    | {"stop": "target: {metric: train_loss, value: 1e-9}, max_iterations: 12"},
}
"""Name -> what is put into the scenario."""
MANY: Final = "256 workers"
ON_PAGE: Final = (
    "many workers of a small model", "few workers of a large model", "many examples", "kept models",
)  # fmt: skip
"""Shapes that ``make bench`` measures: one of each kind."""


def peak_bytes() -> int:
    """The most memory that this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_shape(shape: str) -> dict[str, float]:
    """Simulate a shape in this process: the peak over that of a small one, and the estimate by parts."""
    list(simulate(resolve(parse(_SCENARIO.format(**SHAPES["warm-up"])), torch.device("cpu"))))
    before = peak_bytes()
    scenario = resolve(parse(_SCENARIO.format(**SHAPES[shape])), torch.device("cpu"))
    runs = list(simulate(scenario))
    assert all(run.status == "completed" for run in runs)
    return {"measured": float(peak_bytes() - before), **estimate_bytes(scenario)}


def peak_of_many() -> float:
    """Run 256 workers of a million parameters each in this process: the peak, in GiB."""
    job = make_job(
        "gossip", {"topology": "one_peer_exponential"}, task="digits-mlp", workers=256, momentum=0.9,
        task_options={"hidden": 13_333}, cv=0.1, max_iterations=3, every=3,
        latency_s=0.01, bandwidth_bytes_per_s=1e9,
    )  # fmt: skip
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    EventDriver(job, [job.program(r) for r in range(job.workers)], scorer).run()
    return peak_bytes() / 2**30


def measure_page(shapes: Iterable[str]) -> Part:
    """Measure 256 workers, and these shapes, each in a process of its own: a bar, and a table."""
    peak = at_most(
        f"memory of {MANY} with a model of a million parameters each", 8, _in_a_process(MANY), "GiB"
    )
    rows = ["| shape | estimated | measured | estimated / measured | largest part |",
            "| --- | ---: | ---: | ---: | --- |"]  # fmt: skip
    for name in shapes:
        parts = _in_a_process(name)
        measured = parts.pop("measured")
        estimated, largest = sum(parts.values()), max(parts, key=parts.__getitem__)
        rows.append(
            f"| {name} | {estimated / 1e6:.0f} MB | {measured / 1e6:.0f} MB | {estimated / measured:.2f} "
            f"| {largest} |"
        )
    return Part((peak,), "\n".join(rows) + "\n")


def _in_a_process(shape: str) -> Any:
    command = [sys.executable, "-m", "benchmarks.memory", "--shape", shape]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure() -> Part:
    """What the page shows: the bar, and one shape of each kind."""
    return measure_page(ON_PAGE)


def main() -> None:
    """Measure all shapes and print, or one in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=[MANY, *SHAPES], help="in this process, as JSON")
    shape = parser.parse_args().shape
    torch.set_num_threads(1)
    if shape is not None:
        print(json.dumps(peak_of_many() if shape == MANY else measure_shape(shape)))
        return
    part = measure_page(list(SHAPES)[1:])
    print_bars(part.bars)
    print(f"\n{part.text}", end="")


if __name__ == "__main__":
    main()
