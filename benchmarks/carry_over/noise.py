"""Two numbers of an all-reduce run, beside which ratios of steps are laid: noise and heterogeneity.

u = B / (n b), with the noise scale B = S2 / G2, and v = H2 / G2. The moments S2, H2 and G2 are the product's
(``paceline.sim.training.gradient_noise``): means over the steps up to a level, at that level's best rate, on
the seeds that score it. B is a property of the task and this rate, not of the task alone.
"""

from __future__ import annotations

import csv
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Final

from benchmarks.carry_over.runs import FOLDER, LEVELS, Cell, Table
from benchmarks.carry_over.study import (
    REFERENCE,
    SCORED_ON,
    TASKS,
    WORKERS,
    best_rate,
    cells,
    crossing,
    fall,
    scenario,
    simulate,
)
from paceline.sim.records.carry.noise import ratio_of_means

FILE: Final = FOLDER / "noise.csv"


@dataclass(frozen=True)
class Noise:
    """Means of S2, H2 and G2 up to a level over ``points`` of three runs.

    ``resolved``: whether these tell the mean of G2 from 0.
    """

    task: str
    partition: str
    batch: int
    level: int
    noise: float
    heterogeneity: float
    norm2: float
    points: int
    resolved: int

    @property
    def u(self) -> float:
        """Noise scale over the examples of a step."""
        return self.noise / self.norm2 / (WORKERS * self.batch)

    @property
    def v(self) -> float:
        """Heterogeneity over the squared norm; 0 where its estimate is negative."""
        return max(0.0, self.heterogeneity / self.norm2)


def read(file: Path = FILE) -> dict[tuple[Cell, int], Noise]:
    """What was measured, by cell and level."""
    if not file.is_file():
        file.write_text(",".join(field.name for field in fields(Noise)) + "\n")
    known = {}
    with file.open(newline="") as lines:
        for task, partition, batch, level, s2, h2, g2, points, resolved in list(csv.reader(lines))[1:]:
            moments = float(s2), float(h2), float(g2)
            counts = int(points), int(resolved)
            cell = Cell(task, partition, int(batch))
            known[cell, int(level)] = Noise(task, partition, int(batch), int(level), *moments, *counts)
    return known


def measure(table: Table, task: str) -> None:
    """Measure the cells of a task that were trained and not yet measured."""
    known = read()
    for cell in cells(task):
        for place, level in enumerate(LEVELS):
            rate = best_rate(table, cell, REFERENCE, place)
            if (cell, level) in known or rate is None:
                continue
            with FILE.open("a", newline="") as lines:
                csv.writer(lines, lineterminator="\n").writerow(
                    f"{each:.6g}" if isinstance(each, float) else each
                    for each in astuple(_measured(table, cell, place, rate))
                )


def _measured(table: Table, cell: Cell, place: int, rate: int) -> Noise:
    wanted = fall(cell.task).level(LEVELS[place])
    cap = table.rows[cell, REFERENCE, rate, SCORED_ON].cap
    described = scenario(cell, REFERENCE, 2 ** (rate / 2), SCORED_ON, cap)
    every = max(1, TASKS[cell.task].every // 2)
    described["evaluate"] |= {"every": f"{every} steps", "gradient_noise": f"{every} steps"}
    described["stop"]["target"] = {"metric": "train_loss", "value": wanted}
    points = [
        (each["noise"], each["heterogeneity"], each["norm2"])
        for run in simulate(described)
        for each in run.gradients
        if each["step"] <= crossing(run, wanted)
    ]
    s2, h2, g2 = ([float(each or 0.0) for each in column] for column in zip(*points, strict=True))
    resolved = ratio_of_means(s2, g2)["value"] is not None
    where = cell.task, cell.partition, cell.batch, LEVELS[place]
    return Noise(*where, fmean(s2), fmean(h2), fmean(g2), len(points), int(resolved))
