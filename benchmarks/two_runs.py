"""Steps to a target at numbers of workers between two tuned runs: predicted, committed, then trained.

    python -m benchmarks.two_runs --ends    trains 1 and 16 workers and writes the predictions
    python -m benchmarks.two_runs           trains 2, 4, 8 workers, prints the table of docs/checks.md

The predictions stand in ``two_runs.csv``. About ten minutes each on one core.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from statistics import median
from typing import Final

from paceline.sim.experiments.simulate import choose_values, simulate
from paceline.sim.records.sweeps.content import steps_at
from paceline.sim.scenario.schema import Scenario, parse

FILE: Final = Path(__file__).with_suffix(".csv")
ENDS: Final = (1, 16)
BETWEEN: Final = (2, 4, 8)

_RATES: Final = [0.05 * 2 ** (step / 2) for step in range(14)]
_TASKS: Final = {
    "digits-mlp": ("task: digits-mlp", 0.35, _RATES[4:11]),
    "mnist-5k-mlp": ("task: mnist-5k-mlp, hidden: 32", 0.45, _RATES[2:9]),
    "digits-cnn": ("task: digits-cnn, channels: 4", 0.6, _RATES[2:9]),
    "logistic": ("task: logistic", 0.45, _RATES[6:13]),
    "text-transformer": ("task: text-transformer, context: 16, width: 16", 3.1, _RATES[3:10]),
}
"""Options, training loss to reach and candidate rates, a factor of sqrt(2) apart."""


def scenario(task: str, workers: int) -> Scenario:
    """All-reduce with batches of 16, tuned, under five seeds."""
    options, loss, rates = _TASKS[task]
    return parse(f"""\
name: two-runs
seed: 200
workload: {{{options}, batch_size: 16, optimizer: {{lr: 0.1}}}}
cluster: {{workers: {workers}, compute: {{time: 100 ms}}, network: {{latency: 1 ms}}}}
evaluate: {{every: 10 steps}}
schemes: [all_reduce]
tune: {{optimizer.lr: {[round(rate, 4) for rate in rates]}}}
stop: {{target: {{metric: train_loss, value: {loss}}}, max_iterations: 300}}
repeats: 5
events: none
""")


def steps_of(task: str, workers: int) -> float:
    """Median steps to the target with the tuned rate, infinite where most runs miss it."""
    chosen, (tuned,) = choose_values(scenario(task, workers))
    steps = [float("inf") if run.met is None else run.met.step for run in simulate(chosen)]
    print(f"{task}, {workers} workers: {sorted(steps)} with {tuned['chosen']} {tuned['at_edge']}", flush=True)
    return median(steps)


def write_predictions(tasks: list[str]) -> None:
    """Train both ends of each task, and write the steps between."""
    with FILE.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["task", *(f"steps at {n}" for n in ENDS), *(f"predicted at {n}" for n in BETWEEN)])
        for task in tasks:
            known = {workers: steps_of(task, workers) for workers in ENDS}
            predicted = [steps_at(workers, known) for workers in BETWEEN]
            rows.writerow([task, *known.values(), *(f"{steps:.1f}" for steps in predicted)])
            file.flush()


def main(arguments: list[str] | None = None) -> None:
    """Predict, or compare the predictions with runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ends", action="store_true", help="train 1 and 16 workers, and predict")
    if parser.parse_args(arguments).ends:
        write_predictions(list(_TASKS))
        return
    lines = []
    with FILE.open(newline="") as file:
        for row in csv.DictReader(file):
            cells = []
            for workers in BETWEEN:
                predicted, got = float(row[f"predicted at {workers}"]), steps_of(row["task"], workers)
                cells.append(f"{predicted:.0f} / {got:g} ({100 * (predicted / got - 1):+.0f} %)")
            ends = " / ".join(f"{float(row[f'steps at {workers}']):g}" for workers in ENDS)
            lines.append(f"| {row['task']} | {ends} | {' | '.join(cells)} |")
    print(f"| task | steps at {ENDS[0]} / {ENDS[1]} | {' | '.join(map(str, BETWEEN))}: predicted / trained |")
    print("| --- | ---: | ---: | ---: | ---: |", *lines, sep="\n")


if __name__ == "__main__":
    main()
