"""Measures what the search for graphs finds, and what a move costs.

``PYTHONPATH=. python benchmarks/topology_search.py [--only N,K] [--seed S]``

For every size: the best second-largest eigenvalue modulus under the default budget, beside the ring
lattice's, the value that it is to reach, and what no regular graph is below. For n = 1,024 also the cost of a
move, against a dense ``eigvalsh`` of the same matrix in the same run. Seconds are processor time of one core.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from threadpoolctl import threadpool_limits

from paceline.sim.topology.search.find import Request, default_budget, search
from paceline.sim.topology.search.objective import alon_boppana, laplacian_modulus, modulus_bound
from paceline.sim.topology.search.spectrum import eigenvalues, lattice

SIZES: dict[tuple[int, int], float | None] = {
    (8, 3): 0.4605,
    (10, 3): 3 / 7,
    (16, 3): 0.65109,
    (16, 4): 0.45813,
    (24, 3): 0.6952,
    (32, 4): 0.6225,
    (64, 4): 0.7116,
    (128, 4): None,
    (1024, 6): None,
}
"""(workers, degree) -> the modulus to reach."""


def main() -> None:
    """Search at every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", metavar="N,K", help="one size")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    sizes = [tuple(map(int, arguments.only.split(",")))] if arguments.only else list(SIZES)
    heads = "n", "degree", "found", "to reach", "none below", "2 sqrt(k-1)/k", "ring lattice"
    print(f"| {' | '.join((*heads, 's', 'moves judged', 'ms a move'))} |")
    print("|---" * (len(heads) + 3) + "|")
    for workers, degree in sizes:
        began = time.process_time()
        best = search(Request(workers, degree, None, "laplacian", arguments.seed, *default_budget(workers)))
        seconds = time.process_time() - began
        values = eigenvalues(workers, lattice(workers, degree))
        start = float(laplacian_modulus(values[1:2], values[-1:])[0])
        wanted = SIZES.get((workers, degree))
        cells = [
            str(workers),
            str(degree),
            f"{best.modulus:.6f}",
            "" if wanted is None else f"{wanted:.5f}",
            f"{modulus_bound(workers, degree):.4f}",
            f"{alon_boppana(degree):.4f}",
            f"{start:.4f}",
            f"{seconds:.0f}",
            f"{best.tally.moves:,}",
            f"{1e3 * seconds / best.tally.moves:.3f}",
        ]
        print(f"| {' | '.join(cells)} |", flush=True)
        if workers == 1024:
            with threadpool_limits(1):
                matrix_s = []
                for _ in range(5):
                    began = time.process_time()
                    eigenvalues(workers, np.array(best.edges))
                    matrix_s.append(time.process_time() - began)
            dense_s = float(np.median(matrix_s))
            times = dense_s / (seconds / best.tally.moves)
            print(f"\ndense eigvalsh: {1e3 * dense_s:.1f} ms; a move costs {times:.0f} times less\n")


if __name__ == "__main__":
    main()
