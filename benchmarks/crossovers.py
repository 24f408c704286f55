"""Do crossovers of a sweep hold the value at which the winner changes on other seeds?

Two schemes on 4 to 16 workers with jitter and stragglers, six latencies (or bandwidths), 12 repeats. The
value to find is where the median paired difference of 48 other seeds changes its sign, on a grid 40 times as
fine.

``python -m benchmarks.crossovers [NUMBER]`` prints the figures of docs/records.md for 20 drawn scenarios.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

import paceline
from paceline.sim.records.summary import race_s

REPEATS: Final = 12
OTHERS: Final = 48
COARSE: Final = 6
FINE: Final = 200
KEYS: Final = {
    "cluster.network.latency": (1e-3, 300e-3, "s"),
    "cluster.network.bandwidth": (1e6, 300e6, "B/s"),
}
SCHEMES: Final[tuple[dict[str, Any], ...]] = (
    {"all_reduce": {}},
    {"gossip": {"topology": "ring"}},
    {"gossip": {"topology": "one_peer_exponential"}},
    {"local_sgd": {"period": 2}},
)


def main() -> None:
    """Draw scenarios until enough of them have one settled crossover, and print each."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    held, drawn = 0, 0
    widths: list[float] = []
    print("| scenario | key | crossover | interval | other seeds | held | width |")
    print("| --- | --- | ---: | --- | ---: | --- | ---: |")
    while len(widths) < wanted:
        drawn += 1
        scenario, key = draw(np.random.default_rng(drawn))
        crossovers = sweep(scenario, key, COARSE, REPEATS).totals["crossovers"]
        if len(crossovers) != 1 or None in crossovers[0]["at"].values():
            continue
        before, after = crossovers[0]["before"], crossovers[0]["after"]
        median, low, high = (crossovers[0]["at"][end] for end in ("median", "low", "high"))
        true = change(scenario, key, before, after)
        inside = low <= true <= high
        held += inside
        widths.append(100 * (high - low) / median)
        cells = (
            f"{drawn}: {before} to {after}", key.rsplit(".", 1)[1], f"{median:.4g}",
            f"{low:.4g} to {high:.4g}", f"{true:.4g}", "yes" if inside else "no", f"{widths[-1]:.1f} %",
        )  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{held} of {wanted} held; width {np.median(widths):.1f} % in the median; {drawn} drawn")


def draw(rng: np.random.Generator) -> tuple[dict[str, Any], str]:
    """A scenario with two schemes, and the key to vary."""
    one, other = rng.choice(len(SCHEMES), 2, replace=False)
    key = str(rng.choice(list(KEYS)))
    scenario = {
        "name": "crossing",
        "seed": int(rng.integers(1000)),
        "workload": {
            "task": "quadratic", "dimension": 20, "condition": 10, "noise": 1, "batch_size": 8,
            "optimizer": {"lr": 0.1}, "payload": f"{rng.integers(1, 40)} MB",
        },
        "cluster": {
            "workers": int(rng.choice([4, 8, 16])),
            "compute": {"time": f"{rng.integers(10, 200)} ms", "jitter": {"lognormal": {"cv": 0.2}}},
            "stragglers": [{"probability": 0.02, "slowdown": 5}],
            "network": {
                "latency": f"{rng.integers(1, 60)} ms", "bandwidth": f"{rng.integers(100, 4000)} Mbit/s",
            },
        },
        "evaluate": {"every": "5 steps"},
        "schemes": [SCHEMES[one], SCHEMES[other]],
        "stop": {"max_iterations": 600, "target": {"metric": "suboptimality", "value": 0.1}},
    }  # fmt: skip
    return scenario, key


def sweep(scenario: dict[str, Any], key: str, number: int, repeats: int, seed: int | None = None) -> Any:
    """Sweep ``number`` values of the key, evenly by logarithm."""
    low, high, unit = KEYS[key]
    values = [f"{value:.6g} {unit}" for value in np.geomspace(low, high, number)]
    own = scenario | {"repeats": repeats} | ({} if seed is None else {"seed": seed})
    return paceline.sweep(own, {key: values}, progress=False)


def change(scenario: dict[str, Any], key: str, before: str, after: str) -> float:
    """The key's value at which the other seeds' median difference changes its sign."""
    fine = sweep(scenario, key, FINE, OTHERS, seed=5000)
    values = np.geomspace(*KEYS[key][:2], FINE).tolist()
    signs = [median_difference(study.totals["runs"], before, after) > 0 for study in fine.studies]
    turns = [k for k, (left, right) in enumerate(pairwise(signs)) if right and not left]
    return math.sqrt(values[turns[0]] * values[turns[0] + 1]) if turns else math.nan


def median_difference(runs: Sequence[Any], before: str, after: str) -> float:
    """The median over seeds of one scheme's time less the other's."""
    times: dict[str, dict[int, float]] = {before: {}, after: {}}
    for run in runs:
        times[run["label"]][run["seed"]] = race_s(run, by_step=False)
    return float(np.median([times[before][seed] - times[after][seed] for seed in times[before]]))


if __name__ == "__main__":
    main()
