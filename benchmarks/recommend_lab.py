"""Do real runs agree with a recommendation? The first three of four drawn scenarios, in the lab.

The scenarios are those of ``benchmarks.recommend`` with the lowest bandwidths, over gloo. The race ends with
an order: its winner, then the others by their trials. The first three run on the scenario's seeds, which the
recommendation rests on, and on ``REPEATS`` others, simulated (no factors are fitted) and for real. *Regret*:
the recommended candidate's time to the target over that of the fastest of the three, median ratio over
seeds, less 1.

``python -m benchmarks.recommend_lab predict`` writes ``recommend_lab.csv``, before anything is measured;
``python -m benchmarks.recommend_lab measure`` runs what it holds, adds the measured times, and prints the
table of docs/checks.md.
"""

from __future__ import annotations

import csv
import math
import os
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.recommend import OTHER_SEED, draw, first_of
from paceline.extras.recommend.candidates import with_candidates
from paceline.extras.recommend.recommend import run_race, tune_of
from paceline.realrun.calibration.validate import lab_of, successful_run, with_step_limit
from paceline.realrun.launch.cells import run_requests
from paceline.realrun.launch.processes import Processes
from paceline.sim.errors import RunError
from paceline.sim.experiments.prepare import resolve
from paceline.sim.experiments.simulate import simulate
from paceline.sim.experiments.tune import best_first
from paceline.sim.network.build import build_network
from paceline.sim.records.intervals import of_ratio
from paceline.sim.records.run import Run
from paceline.sim.records.summary import TuningTrial, mean_time_s
from paceline.sim.scenario.schema import Scenario, over_transport, resolve_scenario
from paceline.sim.scenario.tuning_grid import with_values

DRAWS: Final = (59, 50, 44, 47)
"""Seeds of the scenarios of 51, 67, 106 and 126 Mbit/s; the next one has 204."""
PLACES: Final = 3
REPEATS: Final = 5
TABLE: Final = Path(__file__).with_suffix(".csv")
COLUMNS: Final = ("draw", "label", "lr", "steps", "seed", "simulated_s", "measured_s", "load")
_SPARE: Final = 1.5
"""Steps of a real run, whose length is fixed before, over those of the longest simulated one."""

Row = dict[str, Any]


def drawn(place: int) -> Scenario:
    """The scenario of a draw with all its candidates, over the lab's transport."""
    scenario = over_transport(resolve_scenario(draw(np.random.default_rng(place))), "gloo")
    return with_step_limit(resolve(with_candidates(scenario), torch.device("cpu")), None)


def of_candidates(scenario: Scenario, rates: dict[str, float], **changes: Any) -> Scenario:
    """The scenario with the candidates of these labels and learning rates, and other fields."""
    entries = {entry.label: entry for entry in scenario.schemes}
    default = scenario.workload.optimizer
    chosen = [with_values(entries[label], default, {"optimizer.lr": lr}) for label, lr in rates.items()]
    return scenario.model_copy(update={"schemes": tuple(chosen), "tune": None, **changes})


def recommended(scenario: Scenario) -> dict[str, float]:
    """Labels and learning rates of the first candidates, the recommended one first."""
    last, tuning, race = run_race(scenario)
    first = first_of(last, list(simulate(last)), tuning)
    best: dict[str, list[TuningTrial]] = {}
    for entry in race.scenario.schemes:
        tried = race.tried[entry.label]
        values = best_first(tune_of(scenario, entry), tried, race.score[1])[0]
        own = [trial for trial in tried if trial["values"] == values]
        if own not in best.values():  # else the same run under another name
            best[entry.label] = own
    order = sorted(best, key=lambda label: (label != first, -len(best[label]), mean_time_s(best[label])))
    return {label: float(str(best[label][0]["values"]["optimizer.lr"])) for label in order[:PLACES]}


def predict() -> list[Row]:
    """Rows of the table, without what is measured."""
    rows = []
    for place in DRAWS:
        scenario = drawn(place)
        rates = recommended(scenario)
        runs = list(simulate(of_candidates(scenario, rates)))
        runs += simulate(of_candidates(scenario, rates, seed=OTHER_SEED, repeats=REPEATS))
        for label, lr in rates.items():
            own = [run for run in runs if run.label == label]
            most = min(scenario.stop.max_iterations or 0, math.ceil(_SPARE * max(x.iterations for x in own)))
            rows += [
                {"draw": place, "label": label, "lr": lr, "steps": most, "seed": run.seed,
                 "simulated_s": f"{time_of(run):.4f}", "measured_s": "", "load": ""}
                for run in own
            ]  # fmt: skip
    return rows


def measure(rows: Sequence[Row]) -> None:
    """Run each row that is not measured yet, all candidates under a seed before the next, and keep it.

    A run in which gradients of this machine took longer than the scenario's is made again.
    """
    scenarios = {place: drawn(place) for place in DRAWS}
    start = scenarios[DRAWS[0]]
    network = build_network(start.cluster.network, start.cluster.workers)
    with Processes(lab=lab_of(start, network)) as processes:
        for place, scenario in scenarios.items():
            assert processes.lab
            processes.lab.reconfigure(build_network(scenario.cluster.network, scenario.cluster.workers))
            left = [row for row in rows if row["draw"] == place and not row["measured_s"]]
            for row in sorted(left, key=lambda row: row["seed"]):
                stop = scenario.stop.model_copy(update={"max_iterations": row["steps"]})
                rates = {row["label"]: row["lr"]}
                one = of_candidates(scenario, rates, stop=stop, seed=row["seed"], repeats=1)
                (request,) = run_requests(one)
                while not row["measured_s"]:
                    row["load"] = f"{os.getloadavg()[0]:.1f}"
                    try:
                        row["measured_s"] = f"{time_of(successful_run(processes.run(request))):.4f}"
                    except RunError as error:
                        sys.stderr.write(f"{error}\n")
                write(rows)


def time_of(run: Run) -> float:
    """Seconds to the target; infinite where it was missed."""
    return math.inf if run.met is None else run.met.time_s


def render(rows: Sequence[Row]) -> str:
    """The tables of the documentation: times of all candidates, then the regrets."""
    lines = ["| draw | place | candidate | simulated | measured |", "| ---: | ---: | --- | ---: | ---: |"]
    regrets = ["| draw | seeds | simulated | measured |", "| ---: | --- | ---: | ---: |"]
    for place in DRAWS:
        own = [row for row in rows if row["draw"] == place]
        for number, label in enumerate(dict.fromkeys(row["label"] for row in own), 1):
            medians = [f"{median_s(own, label, column):.2f} s" for column in ("simulated_s", "measured_s")]
            lines.append(f"| {' | '.join([str(place), str(number), label, *medians])} |")
        for name, others in (("the scenario's", False), ("others", True)):
            part = [row for row in own if (row["seed"] >= OTHER_SEED) == others]
            cells = [f"{100 * regret(part, column):.1f} %" for column in ("simulated_s", "measured_s")]
            regrets.append(f"| {' | '.join([str(place), name, *cells])} |")
    return "\n".join([*lines, "", *regrets])


def median_s(rows: Sequence[Row], label: str, column: str) -> float:
    """A candidate's median time."""
    return statistics.median(_times(rows, label, column).values())


def regret(rows: Sequence[Row], column: str) -> float:
    """That of the first candidate in ``rows``, which are of one draw."""
    labels = list(dict.fromkeys(row["label"] for row in rows))
    best = min(labels, key=lambda label: median_s(rows, label, column))
    ratio = of_ratio(_times(rows, labels[0], column), _times(rows, best, column))["median"]
    return math.inf if ratio is None else ratio - 1


def _times(rows: Sequence[Row], label: str, column: str) -> dict[int, float]:
    return {row["seed"]: float(row[column]) for row in rows if row["label"] == label}


def read() -> list[Row]:
    """The table, with numbers for what identifies a run."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [
            {**row, "draw": int(row["draw"]), "lr": float(row["lr"]), "steps": int(row["steps"]),
             "seed": int(row["seed"])}
            for row in csv.DictReader(file)
        ]  # fmt: skip


def write(rows: Sequence[Row]) -> None:
    """Write the table."""
    with TABLE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def main(arguments: Sequence[str]) -> None:
    """The command."""
    if arguments == ["predict"]:
        write(predict())
        return
    rows = read()
    if arguments == ["measure"]:
        measure(rows)
    sys.stdout.write(render(rows) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
