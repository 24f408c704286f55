"""What records cost a real run, as a share of its wall clock.

    python -m benchmarks.records

During a run a rank only makes a row and appends it; everything else happens after its clock has stopped. So
the cost is the number of rows of a worker, of a real run with short steps, times what one row takes.
Four gloo processes on this machine's loopback, ring gossip, 2 ms of computation a step.
"""

from __future__ import annotations

import statistics
import time

from benchmarks.bars import Part, at_most, print_bars
from paceline.realrun.driver.rank_log import Exchange, LoggedOperation
from paceline.realrun.launch.cells import RunRequest
from paceline.realrun.launch.processes import Processes
from paceline.sim.scenario.schema import dump, parse

STEPS, ROWS = 300, 100_000
SCENARIO = """
name: records
workload: {task: digits-mlp, batch_size: 32, optimizer: {lr: 0.1}}
cluster: {workers: 4, compute: {time: 2 ms}, network: {latency: 1 ms}}
evaluate: {every: 300 steps}
schemes: [{gossip: {topology: ring}}]
stop: {max_iterations: 300}
gradients: looped
events: all
"""


def seconds_per_row() -> float:
    """What it takes to make a row and to append it."""
    rows: list[LoggedOperation] = []
    begin = time.perf_counter()
    for step in range(ROWS):
        rows.append(LoggedOperation(0, -1, step, "mix", 0.1, 0.2, 19240, -1, Exchange("mix", (1, 3))))
    return (time.perf_counter() - begin) / ROWS


def main() -> None:
    """Measure and print."""
    print_bars(measure().bars)


def measure() -> Part:
    """One bar."""
    with Processes() as processes:
        run = processes.run(RunRequest(dump(parse(SCENARIO)), 0, 0, STEPS)).run
    row_s = statistics.median(seconds_per_row() for _ in range(5))
    rows = len(run.events) / 4
    share = rows * row_s / run.wall_clock_s
    detail = f"{rows:.0f} rows a worker in {run.wall_clock_s:.2f} s, {1e6 * row_s:.1f} us a row"
    return Part((at_most("records of a real run, of its wall clock", 2, 100 * share, "%", detail),))


if __name__ == "__main__":
    main()
