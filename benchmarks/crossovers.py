"""Do crossovers of a sweep hold the value at which the winner changes?

Two schemes on 4 to 16 workers with jitter and stragglers, six latencies (or bandwidths) over a factor of 300,
then twelve between the neighbours of the crossover, 12 repeats. The value to find is where the median paired
difference changes its sign, by bisection: of the same seeds, which shows the error between settings, and of
24 other seeds.

``python -m benchmarks.crossovers [NUMBER]`` prints the figures of docs/checks.md for 20 drawn scenarios.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

import paceline
from paceline.sim.config.units import parse_number
from paceline.sim.records.summary import race_s
from paceline.sim.records.sweeps.content import Crossover

REPEATS: Final = 12
OTHERS: Final = 24
COARSE: Final = 6
FINE: Final = 12
PARTS: Final = 6
"""Of the bisection's interval, each some 5 % of the value; in the last one it interpolates."""
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
    """Draw scenarios until enough of them have a crossover, look closer between its neighbours, and print."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    rows: list[tuple[bool, bool, float]] = []
    drawn = 0
    print("| scenario | key | between | crossover | interval | bisection | other seeds | held | width |")
    print("| --- | --- | --- | ---: | --- | ---: | ---: | --- | ---: |")
    while len(rows) < 2 * wanted:
        drawn += 1
        scenario, key = draw(np.random.default_rng(drawn))
        coarse = only_crossover(scenario, key, KEYS[key][:2], COARSE)
        fine = only_crossover(scenario, key, neighbours(coarse), FINE) if coarse else None
        if coarse is None or fine is None:
            continue
        true = bisect(scenario, key, fine, REPEATS)
        other = bisect(scenario | {"seed": 5000}, key, fine, OTHERS)
        for crossover in (coarse, fine):
            median, low, high = (float(crossover["at"][end] or math.nan) for end in ("median", "low", "high"))
            held = [low <= each <= high for each in (true, other)]
            rows.append((held[0], held[1], 100 * (high - low) / median))
            cells = (
                f"{drawn}: {crossover['before']} to {crossover['after']}", key.rsplit(".", 1)[1],
                " and ".join(f"{end:.4g}" for end in neighbours(crossover)), f"{median:.4g}",
                f"{low:.4g} to {high:.4g}", f"{true:.4g}", f"{other:.4g}",
                " / ".join("yes" if each else "no" for each in held), f"{rows[-1][2]:.1f} %",
            )  # fmt: skip
            print(f"| {' | '.join(cells)} |", flush=True)
    print(f"\n{drawn} drawn")
    for name, own in (("coarse", rows[::2]), ("fine", rows[1::2])):
        same, others, widths = zip(*own, strict=True)
        print(
            f"{name}: {sum(same)} of {wanted} hold the bisection, {sum(others)} that of other seeds; "
            f"{sum(width <= 10 for width in widths)} at most 10 % wide, median {np.median(widths):.1f} %, "
            f"widest {max(widths):.1f} %"
        )


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
        "events": "none",
        "schemes": [SCHEMES[one], SCHEMES[other]],
        "stop": {"max_iterations": 600, "target": {"metric": "suboptimality", "value": 0.1}},
    }  # fmt: skip
    return scenario, key


def sweep(scenario: dict[str, Any], key: str, values: Sequence[float], repeats: int) -> Any:
    """Sweep these values of the key."""
    texts = [f"{value:.9g} {KEYS[key][2]}" for value in values]
    return paceline.sweep(scenario | {"repeats": repeats}, {key: texts}, progress=False)


def only_crossover(
    scenario: dict[str, Any], key: str, ends: Sequence[float], number: int
) -> Crossover | None:
    """The crossover of a sweep between these ends, if it has one with both bounds and no other."""
    values = np.geomspace(ends[0], ends[1], number).tolist()
    crossovers = sweep(scenario, key, values, REPEATS).totals["crossovers"]
    known = len(crossovers) == 1 and None not in crossovers[0]["at"].values()
    return crossovers[0] if known else None


def neighbours(crossover: Crossover) -> list[float]:
    """The settings beside a crossover, in SI."""
    return [number[0] for text in crossover["between"] if (number := parse_number(text))]


def bisect(scenario: dict[str, Any], key: str, crossover: Crossover, repeats: int) -> float:
    """The key's value about a crossover's neighbours at which the median difference changes its sign."""
    ends = neighbours(crossover)
    values = np.geomspace(ends[0] / 1.1, ends[1] * 1.1, PARTS + 1).tolist()
    studies = sweep(scenario, key, values, repeats).studies
    runs = [study.totals["runs"] for study in studies]
    less = [median_difference(own, crossover["before"], crossover["after"]) for own in runs]
    turns = [place for place, (left, right) in enumerate(pairwise(less)) if left <= 0 < right]
    if not turns:
        return math.nan
    ends = values[turns[0] : turns[0] + 2]
    share = -less[turns[0]] / (less[turns[0] + 1] - less[turns[0]])
    return float(ends[0] + share * (ends[1] - ends[0]))


def median_difference(runs: Sequence[Any], before: str, after: str) -> float:
    """The median over seeds of one scheme's time less the other's."""
    times: dict[str, dict[int, float]] = {before: {}, after: {}}
    for run in runs:
        times[run["label"]][run["seed"]] = race_s(run, by_step=False)
    return float(np.median([times[before][seed] - times[after][seed] for seed in times[before]]))


if __name__ == "__main__":
    main()
