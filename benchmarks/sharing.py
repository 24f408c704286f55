"""How many transfers a second ``FairSharing`` can take, apart from any driver.

``PYTHONPATH=. python benchmarks/sharing.py [--workers N] [--steps K]``

A ring of workers with full-duplex access links; each sends to both neighbours in every step.

- lockstep: all transfers start and end together (constant compute): one large component per step.
- asynchronous: lognormal compute with a coefficient of variation of 0.3, and transfers that take as long as
  the computation; a transfer starts when both sides have come to that step. Small components that change with
  every start and end.
"""

from __future__ import annotations

import argparse
import heapq
import math
import time

import numpy as np

from paceline.sim.traffic.sharing import FairSharing

BANDWIDTH_BYTES_PER_S = 1e9
SIZE_BYTES = 5e6
COMPUTE_S = 2 * SIZE_BYTES / BANDWIDTH_BYTES_PER_S  # as long as two transfers over one access link


def _links(workers: int) -> dict[tuple[int, int], tuple[int, int]]:
    """(source, destination) of a ring -> (up link of the source, down link of the destination)."""
    return {(i, j): (i, workers + j) for i in range(workers) for j in ((i - 1) % workers, (i + 1) % workers)}


def lockstep(workers: int, steps: int) -> tuple[int, float]:
    """Return the number of flows and the seconds that they took."""
    sharing = FairSharing([BANDWIDTH_BYTES_PER_S] * (2 * workers))
    routes = list(_links(workers).values())
    now_s = 0.0
    began = time.perf_counter()
    for _ in range(steps):
        now_s += COMPUTE_S
        for links in routes:
            sharing.start(now_s, links, SIZE_BYTES, math.inf)
        sharing.solve(now_s)
        now_s = sharing.next_finish_s
        if len(sharing.finished(now_s)) != len(routes):
            raise AssertionError("a symmetric step must end in one instant")
        sharing.solve(now_s)
    return steps * len(routes), time.perf_counter() - began


def asynchronous(workers: int, steps: int) -> tuple[int, float]:
    """Return the number of flows and the seconds spent in ``FairSharing`` (the event loop left out)."""
    routes = _links(workers)
    sigma = math.sqrt(math.log1p(0.3**2))
    durations = COMPUTE_S * np.random.default_rng(0).lognormal(-(sigma**2) / 2, sigma, (steps, workers))
    compute_s = durations.tolist()
    sharing = FairSharing([BANDWIDTH_BYTES_PER_S] * (2 * workers))
    step_of = [0] * workers
    arrived = [-1] * workers  # the step whose exchange this worker has come to
    missing = [0] * workers  # transfers of that exchange that are not through
    pair_of: dict[int, tuple[int, int]] = {}
    events = [(compute_s[0][i], i) for i in range(workers)]
    heapq.heapify(events)
    spent_s, num_flows = 0.0, 0
    clock = time.perf_counter
    while events or pair_of:
        if events and events[0][0] <= sharing.next_finish_s:
            now_s, i = heapq.heappop(events)
            arrived[i], missing[i] = step_of[i], 4
            ready = []
            for j in ((i - 1) % workers, (i + 1) % workers):
                if arrived[j] >= step_of[i]:
                    ready += [(i, j), (j, i)]
            began = clock()
            for pair in ready:
                pair_of[sharing.start(now_s, routes[pair], SIZE_BYTES, math.inf)] = pair
            sharing.solve(now_s)
            spent_s += clock() - began
            num_flows += len(ready)
        else:
            now_s = sharing.next_finish_s
            began = clock()
            done = sharing.finished(now_s)
            sharing.solve(now_s)
            spent_s += clock() - began
            for flow in done:
                for i in pair_of.pop(flow):
                    missing[i] -= 1
                    if missing[i] == 0:
                        step_of[i] += 1
                        if step_of[i] < steps:
                            heapq.heappush(events, (now_s + compute_s[step_of[i]][i], i))
    return num_flows, spent_s


def main() -> None:
    """Measure both patterns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workers", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=20)
    arguments = parser.parse_args()
    for pattern in (lockstep, asynchronous):
        num_flows, seconds = pattern(arguments.workers, arguments.steps)
        print(
            f"{pattern.__name__:12s} {arguments.workers} workers: {num_flows} flows, "
            f"{num_flows / seconds:,.0f} flows/s, {1e6 * seconds / num_flows:.1f} us a flow"
        )


if __name__ == "__main__":
    main()
