"""Duration of a step of neighbour averaging on a scenario's cluster, for any graph.

A quick estimate serves the search for a graph; the event driver decides. The estimate:

- All transfers of a step share every link of their routes equally, as if they began together. The
  slowest is then through exactly when max-min fair sharing has it through; others may be faster in truth
  (and with ``sharing: rtt`` this is an estimate too).
- With these durations t, worker i is done with step k's averaging at

      E_i = max over neighbours j of max(R_j, R_i) + t_ji or t_ij,     R_i = E_i(k - 1) + compute_i(k)

  (max-plus algebra; a transfer begins when both ends are there). The mean step time is the growth rate of
  E. It is at least ``max_i (mean compute of i + its slowest transfer)``, and exactly that where computations
  do not vary.

Latencies that vary and bandwidths that change count on the event driver alone; a profile's factors never do.

Source of the second: Baccelli, Cohen, Olsder and Quadrat, Synchronization and Linearity (1992).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.sim.config.settings import Settings
from paceline.sim.drivers.job import JobLayers
from paceline.sim.errors import RunError
from paceline.sim.experiments.prepare import clock_only, prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.program.encoding import message_bytes
from paceline.sim.program.pattern import Pattern
from paceline.sim.program.worker import Worker
from paceline.sim.scenario.schema import Scenario
from paceline.sim.schemes.scheme import Scheme
from paceline.sim.seeds import Floats
from paceline.sim.topology.matrix import undirected
from paceline.sim.topology.plan import metropolis
from paceline.sim.topology.search.spectrum import EdgeArray

TIMED_STEPS: Final = 60
"""Steps of the recursion, and of the event driver."""

WARM_UP_STEPS: Final = 20
"""Steps at the beginning that do not count, since in them the workers only drift apart."""


class AveragingStepTime:
    """Step times of ``gossip`` (a gradient, then an average over neighbours) on the cluster of a scenario.

    Args:
        scenario: its cluster, its seed and the size of its model count.
    """

    def __init__(self, scenario: Scenario) -> None:
        job = clock_only(prepare(scenario, scenario.schemes[0], scenario.seed))
        # One number stands for the whole model.
        self._job = replace(
            job, options=Settings(), label="averaging",
            start=torch.zeros(1), layers=JobLayers((("model", 0, 1),)),
            bytes_per_parameter=float(message_bytes(job.start, job.bytes_per_parameter)),
        )  # fmt: skip
        workers, transfer = self._job.workers, self._job.transfer
        self._compute_s = np.array(
            [[self._job.compute.duration_s(i, k) for i in range(workers)] for k in range(TIMED_STEPS)]
        )
        self._mean_compute_s = self._compute_s.mean(axis=0)
        self._varies = bool(np.any(self._compute_s != self._compute_s[0]))
        self._bytes = float(message_bytes(self._job.start, self._job.bytes_per_parameter))
        self._shared = transfer.sharing != "none"
        links = transfer.network.links
        # One more link, without transfers, pads the routes.
        self._s_per_byte = np.array([1.0 / link.bandwidth_bytes_per_s for link in links] + [0.0])
        routes = [
            [transfer.network.route(i, j) if i != j else None for j in range(workers)] for i in range(workers)
        ]
        longest = max(len(route.links) if route is not None else 1 for row in routes for route in row)
        self._links = np.full((workers, workers, longest), len(links))
        self._latency_s = np.zeros((workers, workers))
        self._own_s = np.zeros((workers, workers))
        for i, row in enumerate(routes):
            for j, route in enumerate(row):
                if route is not None:
                    self._links[i, j, : len(route.links)] = route.links
                    self._latency_s[i, j] = route.latency_s
                    self._own_s[i, j] = self._bytes / route.per_flow_bytes_per_s
        self._announced_s = (0.0 if transfer.plain_patterns else transfer.announcement) * self._latency_s.T
        self._overhead_s = transfer.block_overhead_s

    @property
    def floor_s(self) -> float:
        """Mean computation of the slowest worker, a lower bound of every step."""
        return float(self._mean_compute_s.max())

    def _transfers_s(self, edges: EdgeArray) -> tuple[NDArray[np.int64], NDArray[np.int64], Floats]:
        """Sources and destinations of a step's transfers, and the seconds until the last byte is sent."""
        source = np.concatenate([edges[:, 0], edges[:, 1]])
        destination = np.concatenate([edges[:, 1], edges[:, 0]])
        links = self._links[source, destination]
        if self._shared:
            flows = np.bincount(links.ravel(), minlength=len(self._s_per_byte))
            load_s = self._bytes * flows * self._s_per_byte
        else:
            load_s = self._bytes * self._s_per_byte
        busy_s = np.maximum(load_s[links].max(axis=1), self._own_s[source, destination])
        return source, destination, busy_s + self._overhead_s

    def least_s(self, edges: EdgeArray) -> float:
        """Lower bound of ``mean_s``, without the recursion; edges [edges, 2]."""
        source, destination, busy_s = self._transfers_s(edges)
        there_s = busy_s + self._latency_s[source, destination] + self._announced_s[source, destination]
        slowest_s = np.zeros(self._job.workers)
        np.maximum.at(slowest_s, destination, there_s)
        np.maximum.at(slowest_s, source, busy_s)
        return float((self._mean_compute_s + slowest_s).max())

    def mean_s(self, edges: EdgeArray) -> float:
        """Estimated seconds per step; edges [edges, 2]."""
        if not self._varies:
            return self.least_s(edges)
        source, destination, busy_s = self._transfers_s(edges)
        order = np.argsort(destination, kind="stable")
        source, destination, busy_s = source[order], destination[order], busy_s[order]
        busy, first = np.unique(destination, return_index=True)
        latency_s = self._latency_s[source, destination]
        announced_s = self._announced_s[source, destination]
        reverse = np.lexsort((destination, source))  # of j -> i: i -> j, whose bytes i has to send
        ready_s = self._compute_s[0]
        marks = []
        for k in range(1, TIMED_STEPS + 1):
            begins_s = np.maximum(ready_s[source], ready_s[destination] + announced_s)
            left_s = begins_s + busy_s
            done_s = np.maximum(left_s + latency_s, left_s[reverse])
            end_s = ready_s.copy()
            end_s[busy] = np.maximum.reduceat(done_s, first)
            marks.append(float(end_s.max()))
            if k < TIMED_STEPS:
                ready_s = end_s + self._compute_s[k]
        return (marks[-1] - marks[WARM_UP_STEPS - 1]) / (TIMED_STEPS - WARM_UP_STEPS)

    def checked_s(self, edges: EdgeArray) -> float:
        """Seconds per step on the event driver; ``RunError`` if the run fails."""
        graph = undirected(self._job.workers, edges)
        program = partial(_average, Pattern.from_matrix(metropolis(graph)))
        scheme = Scheme("averaging", program, Settings, True, lambda options, workers: None)
        marks = []
        for steps in (WARM_UP_STEPS, TIMED_STEPS):
            run = simulate_job(replace(self._job, scheme=scheme, max_iterations=steps), engine="event")
            if run.status != "completed":
                raise RunError(f"averaging on the graph failed: {run.message}")
            marks.append(run.wall_clock_s)
        return (marks[1] - marks[0]) / (TIMED_STEPS - WARM_UP_STEPS)


async def _average(pattern: Pattern, worker: Worker, options: Settings) -> None:
    """Average with the neighbours after each gradient, as ``gossip`` does, with the weights of any graph."""
    x = worker.start
    async for k in worker.steps():
        await worker.gradient(x)
        x = await worker.mix(pattern, x)
        await worker.publish(k, x)
