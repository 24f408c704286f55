"""Where the event driver's time goes, with gradients: 64 workers, the digits MLP.

    python -m benchmarks.event_profile

Processor time by cProfile, which makes Python look slower beside torch than it is.
"""

from __future__ import annotations

import cProfile
import pstats
import time
from typing import Final

import torch

from benchmarks.bars import Part
from benchmarks.speed.ours import SCHEMES, event_driver
from benchmarks.speed.work import Work

WORK: Final = Work(workers=64, hidden=64)
STEPS: Final = 100
PHASES: Final = {
    "gradients, in batches": ("training/gradients.py", "gradients"),
    "optimiser's updates": ("training/optimizer.py", "update"),
    "averages": ("program/averaging.py", "mix_values"),
    "mixes and their messages begin": ("drivers/event.py", "_begin_mix"),
    "collectives begin": ("drivers/event.py", "_begin_collective"),
    "models published": ("drivers/event.py", "publish"),
}
"""Name -> file and function; none of them is called by another one."""


def main() -> None:
    """Measure and print."""
    print(measure().text, end="")


def measure() -> Part:
    """A table, without bars."""
    torch.set_num_threads(1)
    shares = {scheme: measure_shares(scheme) for scheme in SCHEMES}
    rows = [
        f"| {phase} | {' | '.join(f'{100 * shares[scheme][phase]:.0f} %' for scheme in SCHEMES)} |"
        for phase in next(iter(shares.values()))
    ]
    return Part((), "\n".join([f"| | {' | '.join(SCHEMES)} |", "| --- | ---: | ---: |", *rows]) + "\n")


def measure_shares(scheme: str) -> dict[str, float]:
    """By phase, its share of a block."""
    block = event_driver(scheme, WORK)
    block(3)
    profile = cProfile.Profile(time.process_time)
    profile.runcall(block, STEPS)
    taken_s = dict.fromkeys(PHASES, 0.0)
    statistics = pstats.Stats(profile)
    for (file, _, function), (_, _, _, cumulative_s, _) in statistics.stats.items():  # type: ignore[attr-defined]
        for name, (path, wanted) in PHASES.items():
            if file.endswith(path) and function == wanted:
                taken_s[name] += cumulative_s
    whole_s: float = statistics.total_tt  # type: ignore[attr-defined]
    rest_s = whole_s - sum(taken_s.values())
    return {name: each / whole_s for name, each in taken_s.items()} | {
        "coroutines, clock, arrivals": rest_s / whole_s
    }


if __name__ == "__main__":
    main()
