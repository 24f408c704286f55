"""Bias, intervals and cost of the measured gradient noise: ``python -m benchmarks.gradient_noise``.

Bias: means over many draws on finite populations whose S2, H2 and G2 are known. Intervals: of 200 runs of 12
points each, how many hold the true S2 / G2 and H2 / G2. Cost: time of a simulation with and without.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from paceline.sim.devices import one_thread
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.records.carry.noise import MeanRatio, ratio_of_means
from paceline.sim.scenario.schema import resolve_scenario
from paceline.sim.seeds import Floats
from paceline.sim.training.gradient_noise import half_batch, moments

DIMENSIONS: Final = 40
RUNS: Final = 200
POINTS: Final = 12
DRAWS: Final = 20_000
NAMES: Final = ("S2", "H2", "G2")


@dataclass(frozen=True)
class Population:
    """Gradients of every worker's examples, [N_i, d] each, at one point; batches of ``batch_size``."""

    examples: tuple[Floats, ...]
    batch_size: int

    @classmethod
    def drawn(cls, sizes: Sequence[int], spread: float, batch_size: int, seed: int) -> Population:
        """Skewed examples around a mean per worker, which are ``spread`` apart."""
        rng = np.random.default_rng(seed)
        mean = rng.normal(0, 1, DIMENSIONS) / np.sqrt(DIMENSIONS)
        scale = np.geomspace(3, 0.1, DIMENSIONS)  # few directions carry most of the noise, as in networks
        return cls(
            tuple(
                mean
                + spread * rng.normal(0, 1, DIMENSIONS) / np.sqrt(DIMENSIONS)
                + scale * (rng.standard_exponential((size, DIMENSIONS)) - 1)
                for size in sizes
            ),
            batch_size,
        )

    @property
    def true(self) -> Floats:
        """S2, H2 and G2, from all examples."""
        full = np.stack([each.mean(axis=0) for each in self.examples])
        within = np.mean([each.var(axis=0, ddof=1).sum() for each in self.examples])
        return np.array([within, full.var(axis=0, ddof=1).sum(), np.square(full.mean(axis=0)).sum()])

    def draw(self, draws: int, seed: int) -> Floats:
        """Moments at the point, [draws, 3]."""
        rng = np.random.default_rng(seed)
        batches = np.array([2.0 * half_batch(self.batch_size, len(each)) for each in self.examples])
        gaps2, norms2, total = [], [], np.zeros((draws, DIMENSIONS))
        for each, batch in zip(self.examples, batches.astype(int), strict=True):
            order = np.argsort(rng.random((draws, len(each))), axis=1)[:, :batch]
            halves = each[order].reshape(draws, 2, batch // 2, DIMENSIONS).mean(axis=2)
            gaps2.append(np.square(halves[:, 0] - halves[:, 1]).sum(axis=1))
            norms2.append(np.square(halves.mean(axis=1)).sum(axis=1))
            total += halves.mean(axis=1)
        shards = [len(each) for each in self.examples]
        columns = np.stack(gaps2, axis=1), np.stack(norms2, axis=1)
        means2 = np.square(total / len(shards)).sum(axis=1).tolist()
        return np.array(
            [
                moments(batches * gaps / 4, norms, mean2, batches, shards)
                for gaps, norms, mean2 in zip(*columns, means2, strict=True)
            ],
            float,
        )


POPULATIONS: Final[Mapping[str, Population]] = {
    "iid, 8 x 40, b = 32": Population.drawn([40] * 8, 0.0, 32, 1),
    "uneven, 8 x 180, b = 16": Population.drawn([180] * 8, 4.0, 16, 2),
    "uneven, 8 x 40, b = 16": Population.drawn([40] * 8, 4.0, 16, 3),
    "uneven, 6 to 300, b = 32": Population.drawn([6, 11, 20, 40, 80, 120, 200, 300], 4.0, 32, 4),
}


def holds(ratio: MeanRatio, true: float) -> bool | None:
    """Whether an interval holds the true ratio; None: not resolved."""
    low, high = ratio["low"], ratio["high"]
    return None if low is None or high is None else bool(low <= true <= high)


def coverage(population: Population, runs: int, points: int) -> list[tuple[int, int]]:
    """Number of resolved intervals, and of those that hold the truth, of S2 / G2 and H2 / G2."""
    noise, between, norm2 = population.true
    counts = []
    drawn = population.draw(runs * points, 1).reshape(runs, points, 3)
    for column, true in ((0, noise / norm2), (1, between / norm2)):
        held = [holds(ratio_of_means(each[:, column], each[:, 2]), true) for each in drawn]
        counts.append((sum(each is not None for each in held), sum(each is True for each in held)))
    return counts


def cost(workload: dict[str, Any], workers: int, steps: int, every: int) -> tuple[float, float]:
    """Seconds per step of an all-reduce simulation, and the median share that is added, of 5 pairs."""
    scenario = resolve_scenario(
        {
            "name": "cost", "workload": workload, "schemes": ["all_reduce"],
            "cluster": {
                "workers": workers, "compute": {"time": "10 ms"},
                "network": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
            },
            "evaluate": {"gradient_noise": f"{every} steps"},
            "stop": {"max_iterations": steps}, "events": "none",
        },
        None,
        (),
    )  # fmt: skip
    job = prepare(scenario.model_copy(update={"gradients": "batched"}), scenario.schemes[0], 0)
    unmeasured = replace(job, scoring=replace(job.scoring, gradient_noise=None))
    taken_s: dict[bool, list[float]] = {False: [], True: []}
    with one_thread():
        for number in range(6):
            for measured in (False, True) if number % 2 else (True, False):
                begin_s = time.process_time()
                simulate_job(job if measured else unmeasured)
                taken_s[measured].append(time.process_time() - begin_s)
    ratios = [b / a for a, b in zip(taken_s[False][1:], taken_s[True][1:], strict=True)]  # the first warms up
    return statistics.median(taken_s[False][1:]) / steps, statistics.median(ratios) - 1


def main(draws: int = DRAWS) -> None:
    """Print the three tables."""
    print(f"Bias, {draws:,} draws: error in % (standard error)")
    for name, population in POPULATIONS.items():
        values, true = population.draw(draws, 0), population.true
        error = 100 * (values.mean(axis=0) / true - 1)
        sure = 100 * values.std(axis=0) / np.sqrt(draws) / true
        cells = [
            f"{n} {t:.3g}: {e:+.2f} ({s:.2f})" for n, t, e, s in zip(NAMES, true, error, sure, strict=True)
        ]
        print(f"  {name:26} {', '.join(cells)}", flush=True)
    print(f"Intervals, {RUNS} runs of {POINTS} points: in % of the resolved ones")
    for name, population in POPULATIONS.items():
        cells = [
            f"{of} {100 * held / resolved:.1f} of {resolved}" if resolved else f"{of} none resolved"
            for of, (resolved, held) in zip(
                ("S2/G2", "H2/G2"), coverage(population, RUNS, POINTS), strict=True
            )
        ]
        print(f"  {name:26} {', '.join(cells)}", flush=True)
    print("Cost, processor time of an all-reduce simulation, one thread")
    for task, batch_size, workers in (("digits-mlp", 32, 8), ("digits-mlp", 32, 64), ("digits-cnn", 32, 8)):
        workload = {"task": task, "batch_size": batch_size, "optimizer": {"lr": 0.05}}
        step_s, share = cost(workload, workers, 300, 10)
        of_step = f"a step {1e3 * step_s:.1f} ms, a point {10 * share:.1f} steps"
        print(f"  {task}, {workers} workers: {of_step}, every 100th step {10 * share:.1f} %", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
