"""Mixing matrices of 100,000 workers: time to build and validate them, time for their rate, peak memory.

    python benchmarks/topologies.py

The bar: seconds, and less than 2 GiB. Each topology has a process of its own.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import time

from paceline.extras.topology.topology_page import exact_after
from paceline.sim.topology import plan
from paceline.sim.topology.matrix import product_norm

WORKERS = 100_000
CASES = {
    "ring": WORKERS,
    "grid": WORKERS,
    "torus": WORKERS,
    "hypercube": 2**17,
    "static_exponential": WORKERS,
    "one_peer_exponential": WORKERS,
    "p_peer_exponential": WORKERS,
    "random_matching": WORKERS,
    "random_regular": WORKERS,
    "erdos_renyi": WORKERS,
    "small_world": WORKERS,
    "base": WORKERS,
}


def measure(name: str) -> None:
    """Print one row: the matrices of one period, one pattern for the drivers, and the rate."""
    begun = time.perf_counter()
    mixing = plan(name, CASES[name])
    stochastic = mixing.row_stochastic and mixing.column_stochastic
    built = time.perf_counter()
    mixing.at(0)
    spelled = time.perf_counter()
    matrices = mixing.first
    rate = mixing.rate
    if rate is None:
        exact = exact_after(matrices)
        rate = 0.0 if exact is not None else product_norm(matrices) ** (1.0 / len(matrices))
    done = time.perf_counter()
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(
        f"{name:22}{CASES[name]:>8}{len(matrices):>8}{sum(w.nnz for w in matrices):>12}"
        f"{built - begun:>9.1f}{spelled - built:>9.1f}{done - spelled:>9.1f}{peak_gib:>7.2f}"
        f"  {rate:.9f}{'' if stochastic else '  NOT doubly stochastic'}"
    )


def main() -> None:
    """Measure all topologies, or the one that is named."""
    if len(sys.argv) > 1:
        measure(sys.argv[1])
        return
    print("topology                     n   steps     weights  build s  spell s   rate s    GiB  rate a step")
    for name in CASES:
        sys.stdout.flush()
        subprocess.run([sys.executable, __file__, name], check=True)


if __name__ == "__main__":
    main()
