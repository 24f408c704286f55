"""Parallel Pegasos on real gloo processes in the lab, beside its prediction: benchmarks/svm_real.csv.

    python -m benchmarks.svm_real

Probes the lab, predicts ``scenarios/lab/svm.yaml`` with the factors of that, and runs each period under each
seed for real, the computing times being the same draws on both sides. What is measured is kept as a file, of
which ``python -m benchmarks.papers svm`` makes a part of docs/papers/svm.md.
"""

from __future__ import annotations

import csv
import io
import os
import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, astuple, dataclass, fields
from pathlib import Path
from typing import Final

from paceline.realrun.calibration import cluster_probes, fit
from paceline.realrun.calibration.probes import hosts_of
from paceline.realrun.calibration.validate import processes_for, validate
from paceline.sim.config.csv_tables import read_table
from paceline.sim.config.files import write_atomically
from paceline.sim.records.comparison import Comparison, error_pct
from paceline.sim.scenario.schema import load

ROWS: Final = Path(__file__).with_name("svm_real.csv")
SCENARIO: Final = Path(__file__).parent.parent / "scenarios" / "lab" / "svm.yaml"
MEAN_BAR_PCT: Final = 1.0
WORST_BAR_PCT: Final = 5.0
"""The lab's bars for the wall clock on the same draws."""


@dataclass(frozen=True)
class RealRow:
    """One run, predicted and measured.

    Attributes:
        label, seed: which.
        predicted_s, measured_s: wall clock.
        same_models: whether both sides went through the same models.
        load: processes that wanted to run before the first run.
    """

    label: str
    seed: int
    predicted_s: float
    measured_s: float
    same_models: bool
    load: float

    @property
    def error_pct(self) -> float:
        """How far the prediction is off, in per cent of the measurement."""
        return error_pct(self.predicted_s, self.measured_s)


def rows_of(comparison: Comparison, load: float) -> list[RealRow]:
    """A row for each wall clock of a comparison."""
    same = {(each["label"], each["seed"]): each["same"] is True for each in comparison["trajectories"]}
    return [
        RealRow(
            cell["label"], cell["seed"], cell["predicted"], cell["measured"],
            same[cell["label"], cell["seed"]], load,
        )
        for cell in comparison["cells"]
        if cell["metric"] == "wall_clock_s"
    ]  # fmt: skip


def write_rows(rows: Sequence[RealRow], path: Path = ROWS) -> None:
    """Write a CSV file with a column for each attribute."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([each.name for each in fields(RealRow)])
    writer.writerows(astuple(row) for row in rows)
    write_atomically(path, text.getvalue())


def read_rows(path: Path = ROWS) -> list[RealRow]:
    """The rows of such a file; none where nothing has been measured.

    Raises:
        InputError: it cannot be read, or has other columns.
    """
    if not path.is_file():
        return []
    table = read_table(path)
    at = [table.find(each.name) for each in fields(RealRow)]
    rows = []
    for _, cells in table.rows:
        label, seed, predicted, measured, same, load = (cells[column].strip() for column in at)
        rows.append(RealRow(label, int(seed), float(predicted), float(measured), same == "True", float(load)))
    return rows


def page(rows: Sequence[RealRow]) -> str:
    """The page's part about real processes; without rows it says how they are measured."""
    if not rows:
        return "\n## On real processes\n\nNot yet measured: `python -m benchmarks.svm_real`, in the lab.\n"
    labels = list(dict.fromkeys(row.label for row in rows))
    lines = []
    for label in labels:
        some = [row for row in rows if row.label == label]
        predicted, measured = (
            statistics.median(values)
            for values in zip(*((row.predicted_s, row.measured_s) for row in some), strict=True)
        )
        off = [row.error_pct for row in some]
        lines.append(
            f"| {label} | {predicted:.2f} s | {measured:.2f} s | {min(off):+.2f} to {max(off):+.2f} % |"
        )
    sizes = [abs(row.error_pct) for row in rows]
    mean, worst = statistics.fmean(sizes), max(sizes)

    def gains(side: str) -> str:
        walls = {
            label: statistics.median(asdict(r)[side] for r in rows if r.label == label) for label in labels
        }
        return ", ".join(f"{walls[labels[0]] / walls[label]:.2f} ({label})" for label in labels[1:])

    return "\n".join([
        "\n## On real processes\n",
        f"Four gloo processes in the lab, 64 samples each, {len(rows) // len(labels)} seeds (medians, and "
        "the errors of single runs); the computing times are the same draws on both sides.\n",
        "| | predicted | measured | off by |\n| --- | ---: | ---: | ---: |",
        *lines,
        f"\nWall clock over all runs: mean error {mean:.2f} % (bar: {MEAN_BAR_PCT:g} %, "
        f"{'met' if mean <= MEAN_BAR_PCT else 'missed'}), worst {worst:.2f} % (bar: {WORST_BAR_PCT:g} %, "
        f"{'met' if worst <= WORST_BAR_PCT else 'missed'}). "
        f"{sum(row.same_models for row in rows)} of {len(rows)} runs went through the predicted models. "
        f"Gain over MSF 1, predicted: {gains('predicted_s')}; measured: {gains('measured_s')}. "
        f"Processes that wanted to run when it began, on 2 cores: {rows[0].load:.1f}.\n",
    ])  # fmt: skip


def main() -> None:
    """Probe, predict, measure, keep."""
    scenario, load_before = load(SCENARIO), os.getloadavg()[0]
    with processes_for(scenario, lab=True, probing=True) as pool:
        probes = cluster_probes.measure(pool, hosts_of(scenario, lab=True), cluster_probes.standard(None))
        profile = fit.calibrate([probes]).profile
        outcome = validate(
            scenario, pool, profile, None, lambda line: print(line, file=sys.stderr, flush=True)
        )
    write_rows(rows_of(outcome.comparison, load_before))
    print(outcome.comparison["verdict"]["text"])
    print(f"wrote {ROWS}")


if __name__ == "__main__":
    main()
