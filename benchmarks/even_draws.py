"""How often the most frequent of several comes up where each round draws one of them evenly.

What docs/papers/leader-sgd.md counts, the rounds of the most frequent leader over an even share, is above 1
by chance alone, and more so the fewer rounds a run has.
"""

from __future__ import annotations

from fractions import Fraction
from math import comb
from typing import Final

SHORT: Final = ((4, (12, 15, 20)), (16, (10, 14, 20)))
"""Workers, and rounds that runs of that page have."""
LONG_ROUNDS: Final = 100


def laws_of_most(rounds: int, workers: int) -> list[Fraction]:
    """The chance that nobody is drawn more than m times, for m = 0 to ``rounds``; exact."""
    laws = []
    for most in range(rounds + 1):
        ways = [1] + [0] * rounds  # of so many rounds among those workers that were counted
        for _ in range(workers):
            ways = [
                sum(ways[done - own] * comb(done, own) for own in range(min(most, done) + 1))
                for done in range(rounds + 1)
            ]
        laws.append(Fraction(ways[rounds], workers**rounds))
    return laws


def most_over_share(rounds: int, workers: int) -> tuple[float, float, float]:
    """Median of the most frequent one's rounds over an even share, and where 95 % of all runs lie."""
    laws, share = laws_of_most(rounds, workers), rounds / workers

    def at(level: float) -> float:
        return next(most for most, law in enumerate(laws) if law >= level) / share

    return at(0.5), at(0.025), at(0.975)


def page() -> str:
    """The part of docs/papers/leader-sgd.md about chance."""
    lines = [
        "## The most frequent leader, where every round draws one evenly\n",
        "| workers | rounds | most frequent over an even share | 95 % of all runs |",
        "| ---: | ---: | ---: | ---: |",
    ]
    for workers, short in SHORT:
        for rounds in (*short, LONG_ROUNDS):
            median, low, high = most_over_share(rounds, workers)
            lines.append(f"| {workers} | {rounds} | {median:.2f} | {low:.2f} to {high:.2f} |")
    return "\n".join([*lines, ""])
