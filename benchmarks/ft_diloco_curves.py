"""Somebody else's losses, priced: seconds to three levels beside the clock of their logs; docs/curves.md.

    python -m benchmarks.ft_diloco_curves

``ft_diloco_curves.csv`` has the evaluations of three runs of nicholicaron/ft-diloco (63dfa11), replica 0 of
``experiments/m1-h{25,100,500}-s1337``: losses, and seconds since the evaluation before the first step. A
step takes what it takes on the board; the source has two costs more, which no network explains.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Final

from docs.make.page import renewed
from paceline import simulate
from paceline.sim.config.files import write_atomically

HERE: Final = Path(__file__).parent
MEASURED: Final = HERE / "ft_diloco_curves.csv"
PAGE: Final = HERE.parent / "docs" / "curves.md"
MARK: Final = "<!-- What follows is made by: python -m benchmarks.ft_diloco_curves -->\n"
LEVELS: Final = (2.2, 2.0, 1.85)
PERIODS: Final = (25, 100, 500)
EVERY: Final = {25: 250, 100: 200, 500: 500}
"""Steps between two evaluations, by period."""
DIGESTS_S: Final = 0.7
"""Digests after an average, as on the board."""
EVALUATION_S: Final = 7.1
"""An evaluation: the first one of each log, which is over before the first step."""
BAR: Final = 0.05

_CHANGES: Final = (
    f"workload={{curves: {{file: {MEASURED}, scores: [eval_loss]}}, batch_size: 32, payload: 204.76928 MB}}",
    # Two namespaces of one host without netem: nothing says how fast, and at this rate little hangs on it.
    "cluster.network={latency: 50 us, bandwidth: 10 Gbit/s, transport: gloo}",
    f"schemes=[{', '.join(f'diloco: {{period: {h}, label: H = {h}}}' for h in PERIODS)}]",
    "seed=1337",
)


@dataclass(frozen=True)
class Crossing:
    """When a run's loss is at a level: its step, and seconds as priced and as logged."""

    level: float
    period: int
    step: int
    priced_s: float
    logged_s: float

    @property
    def error(self) -> float:
        """Relative error of the price."""
        return self.priced_s / self.logged_s - 1


def crossings(level: float) -> list[Crossing]:
    """The crossings of all runs at a level."""
    with MEASURED.open(encoding="utf-8") as file:
        logged = {(row["scheme"], int(row["step"])): float(row["logged_s"]) for row in csv.DictReader(file)}
    target = f"stop={{target: {{metric: eval_loss, value: {level}}}, max_iterations: 3000}}"
    study = simulate(
        HERE / "board" / "ft_diloco" / "two-namespaces.yaml",
        changes=[*_CHANGES, target],
        jobs=1,
        progress=False,
    )
    all_crossings = []
    for run, period in zip(study.runs, PERIODS, strict=True):
        assert run.met is not None
        assert run.time_to_target_s is not None
        step = run.met.step
        beside_s = DIGESTS_S * (step // period) + EVALUATION_S * (step // EVERY[period])
        all_crossings.append(
            Crossing(level, period, step, run.time_to_target_s + beside_s, logged[run.label, step])
        )
    return all_crossings


def in_order(all_crossings: list[Crossing]) -> int:
    """Number of pairs of runs whose order is that of the logs."""
    return sum(
        (a.priced_s < b.priced_s) == (a.logged_s < b.logged_s) for a, b in combinations(all_crossings, 2)
    )


def page(all_crossings: list[list[Crossing]]) -> str:
    """The table, and what it comes to."""
    lines = [
        "",
        "| loss | H | step | priced | logged | error |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {c.level:g} | {c.period} | {c.step:,} | {c.priced_s:,.0f} s | {c.logged_s:,.0f} s "
        f"| {c.error:+.1%} |"
        for level in all_crossings
        for c in level
    ]
    worst = max(abs(c.error) for level in all_crossings for c in level)
    pairs = sum(len(list(combinations(level, 2))) for level in all_crossings)
    right = sum(map(in_order, all_crossings))
    verdict = "within" if worst <= BAR else "beyond"
    lines += [
        "",
        f"Worst error {worst:.1%}, {verdict} the bar of {BAR:.0%}; order right in {right} of {pairs} pairs.",
    ]
    return "\n".join(lines).replace("%", " %") + "\n"


def main() -> None:
    """Write the lower part of the page."""
    text = page([crossings(level) for level in LEVELS])
    write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8"), MARK, text))


if __name__ == "__main__":
    main()
