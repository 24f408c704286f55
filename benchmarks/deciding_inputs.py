"""Does the input that a sweep names as deciding turn the winner in a new run?

Scenarios are drawn: 4 or 8 workers with three of four schemes, two to four inputs as ranges (bandwidth,
latency, time of a gradient, slowdown of a worker), and swept with 128 draws. Where an input is named, the
scenario is simulated twice anew: with this input in the middle of the draws below its threshold, and in the
middle of those above, all others at their medians.

``python -m benchmarks.deciding_inputs [NUMBER [FIRST]]`` prints the figures of docs/checks.md for 40 named
inputs, from drawn scenario 2001 on. The rule of ``records.sweeps.draws`` was set on others
before (docs/checks.md).
"""

from __future__ import annotations

import sys
from typing import Any, Final

import numpy as np

import paceline
from paceline.sim.config.units import format_rate, format_seconds, parse_number
from paceline.sim.scenario.ranges import read_range

DRAWS: Final = 128
FACTORS: Final = (2.0, 30.0)
"""Ratio of the ends of a range."""
MOST_SCENARIOS: Final = 400
SCHEMES: Final[tuple[Any, ...]] = (
    "all_reduce",
    {"local_sgd": {"period": 4}},
    {"local_sgd": {"period": 16}},
    {"gossip": {"topology": "ring"}},
)
INPUTS: Final[tuple[tuple[str, float, float, Any], ...]] = (
    ("cluster.network.bandwidth", 12.5e6, 1.25e9, format_rate),
    ("cluster.network.latency", 0.5e-3, 50e-3, format_seconds),
    ("cluster.compute.time", 10e-3, 200e-3, format_seconds),
    ("cluster.stragglers.0.slowdown", 1.05, 3.0, lambda factor: f"{factor:.3f}"),
)
"""Key, least lower end, greatest lower end, and how it is written."""


def main() -> None:
    """Draw scenarios until enough of them have a deciding input; print each, and the counts."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    named = turned = as_named = settled_for_one = 0
    print("| scenario | what the sweep says | below | above | turned |")
    print("| ---: | --- | --- | --- | --- |")
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 2001
    for number in range(first, first + MOST_SCENARIOS):
        scenario, ranges = draw(np.random.default_rng(number))
        draws = paceline.sweep(scenario, changes=ranges, sample=DRAWS, progress=False, jobs=1).totals["draws"]
        settled_for_one += len(draws["shares"]) == 1
        if draws["decides"] is None:
            continue
        deciding = next(each for each in draws["inputs"] if each["key"] == draws["decides"])
        below, above = (winner(scenario, ranges, deciding, share) for share in shares_beside(deciding))
        named += 1
        turned += below != above
        as_named += [below, above] == [deciding[side]["first"] for side in ("below", "above")]
        print(
            f"| {number} | {draws['text']} | {below} | {above} | {'yes' if below != above else 'no'} |",
            flush=True,
        )
        if named == wanted:
            break
    drawn = number - first + 1
    neither = drawn - named - settled_for_one
    print(
        f"\n{named} inputs named in {drawn} scenarios ({settled_for_one} with one first in all draws, "
        f"{neither} without a single input that decides): turned the winner in {turned}, to the two schemes "
        f"named in {as_named}"
    )


def draw(random: np.random.Generator) -> tuple[dict[str, Any], list[str]]:
    """A scenario, and two to four changes of an input to a range."""
    scenario: dict[str, Any] = {
        "name": "drawn",
        "seed": int(random.integers(1000)),
        "workload": {
            "task": "digits-mlp", "batch_size": 32, "optimizer": {"lr": 0.1, "momentum": 0.9},
            "partition": {"kind": "dirichlet", "alpha": 0.5}, "payload": "20 MB",
        },
        "cluster": {
            "workers": int(random.choice([4, 8])),
            "compute": {"time": "50 ms"},
            "stragglers": [{"workers": [0], "slowdown": 1.5}],
            "network": {"latency": "5 ms", "bandwidth": "1 Gbit/s", "sharing": "none"},
        },
        "collectives": {"all_reduce": "ring"},
        "evaluate": {"every": "5 steps"},
        "schemes": [SCHEMES[place] for place in sorted(random.choice(len(SCHEMES), 3, replace=False))],
        "stop": {"target": {"metric": "test_accuracy", "value": 0.93}, "max_iterations": 300},
        "events": "none",
    }  # fmt: skip
    ranges = []
    for place in sorted(random.choice(len(INPUTS), int(random.integers(2, len(INPUTS) + 1)), replace=False)):
        key, least, most, written = INPUTS[place]
        low, factor = (np.exp(random.uniform(*np.log(ends))) for ends in ((least, most), FACTORS))
        ranges.append(f"{key}={written(low)} to {written(low * factor)}")
    return scenario, ranges


def shares_beside(deciding: dict[str, Any]) -> tuple[float, float]:
    """The middles of the shares of a range below and above its threshold."""
    drawn = read_range(deciding["range"])
    assert drawn is not None
    known = [parse_number(drawn.at(share)) for share in np.linspace(0, 1, 1001)]
    below = float(np.mean([number[0] <= deciding["at"] for number in known if number is not None]))
    return below / 2, (1 + below) / 2


def winner(scenario: dict[str, Any], ranges: list[str], deciding: dict[str, Any], share: float) -> str | None:
    """Who is first at this share of one range, the others at their medians."""
    drawn = read_range(deciding["range"])
    assert drawn is not None
    changes = [*ranges, f"{deciding['key']}={drawn.at(share)}"]
    return paceline.simulate(scenario, changes=changes, progress=False, jobs=1).winner


if __name__ == "__main__":
    main()
