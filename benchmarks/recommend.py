"""How far is a recommendation from the best candidate, and what part of trying all of them does it cost?

Twenty drawn scenarios of 4 workers, each with all candidates of the command that are possible there.
*Exhaustive*: every candidate tunes on the same grid (all values on one seed, the best two on two more) and
runs on the scenario's seeds, without cut-offs. *Regret*: the recommended candidate's time to the target over
that of the exhaustive first, each with its own values, median ratio on ``OTHERS`` other seeds, less 1.
*Cost*: steps of all workers in trials and runs, the recommendation's over the exhaustive's.

``python -m benchmarks.recommend [DRAW ...]`` prints the table of docs/checks.md;
``python -m benchmarks.recommend periods`` that of the smallest periods beside a stranger's measurements.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from benchmarks.board.diloco_measured.mapping import COMPUTE_S, PAYLOAD_OF_FRAME, SCENARIO
from benchmarks.board.tables import HERE
from paceline.extras.recommend.candidates import with_candidates
from paceline.extras.recommend.plan import smallest_period, smallest_periods
from paceline.extras.recommend.recommend import run_race, tune_of
from paceline.sim.config.csv_tables import read_table
from paceline.sim.config.units import parse_bandwidth
from paceline.sim.devices import one_thread
from paceline.sim.experiments.prepare import resolve
from paceline.sim.experiments.simulate import run_here, simulate
from paceline.sim.experiments.tune import choose, next_trials
from paceline.sim.records.intervals import of_ratio
from paceline.sim.records.run import Run
from paceline.sim.records.summarise import summarise_resolved
from paceline.sim.records.summary import Tuned
from paceline.sim.scenario.schema import Scenario, dump, load, resolve_scenario

DRAWS: Final = range(41, 61)
"""Seeds of the drawn scenarios; the race was changed after draws 1, 2, 11, and 21 to 24 and 31 to 34."""
OTHERS: Final = 9
OTHER_SEED: Final = 10_000
BARS: Final = ("5 Gbit/s", "1 Gbit/s", "200 Mbit/s")
"""Rates of the shaper at which the smallest period is to be within 10 %."""
_CPU: Final = torch.device("cpu")


def draw(rng: np.random.Generator) -> dict[str, Any]:
    """A scenario whose runs take some tenths of a second."""

    def spread(low: float, high: float) -> float:
        return float(np.exp(rng.uniform(np.log(low), np.log(high))))

    stragglers: list[Any] = [[], [{"workers": [1], "slowdown": 2}], [{"probability": 0.05, "slowdown": 4}]]
    partition: list[Any] = [{"kind": "iid"}, {"kind": "dirichlet", "alpha": 0.5}]
    return {
        "name": "drawn",
        "seed": int(rng.integers(1000)),
        "workload": {
            "task": "digits-mlp", "batch_size": int(rng.choice([16, 32])),
            "optimizer": {"lr": round(spread(0.05, 0.2), 3), "momentum": 0.9},
            "payload": f"{spread(1, 100):.3g} MB", "partition": partition[rng.integers(2)],
        },
        "cluster": {
            "workers": 4,
            "compute": {"time": f"{spread(20, 200):.3g} ms", "jitter": {"lognormal": {"cv": 0.2}}},
            "stragglers": stragglers[rng.integers(3)],
            "network": {"latency": f"{spread(1, 100):.3g} ms", "bandwidth": f"{spread(50, 5000):.4g} Mbit/s"},
        },
        "evaluate": {"every": "4 steps"},
        "schemes": ["all_reduce"],
        "stop": {
            "target": {"metric": "test_accuracy", "value": float(rng.choice([0.85, 0.9]))},
            "max_iterations": 100,
        },
        "repeats": 3,
        "events": "none",
    }  # fmt: skip


def exhaustive(scenario: Scenario) -> tuple[Scenario, str, float]:
    """All candidates with their values, the label of the first, and the steps of all workers."""
    tuned = scenario.model_copy(update={"tune": tune_of(scenario, scenario.schemes[0])})
    trials: list[Run] = []
    with one_thread():
        while planned := next_trials(tuned, trials):
            trials += [run_here(None, "auto", each, None, None) for each in planned]
    chosen, tuning = choose(tuned, trials)
    runs = list(simulate(chosen))
    steps = sum(run.iterations for run in [*trials, *runs]) * scenario.cluster.workers
    return chosen, first_of(chosen, runs, tuning), steps


def first_of(scenario: Scenario, runs: Sequence[Run], tuning: Sequence[Tuned]) -> str:
    """Label of the first, by the rule of verdicts."""
    return str(summarise_resolved(dump(scenario), scenario.name, runs, tuning, facts={})["winner"])


def times(scenario: Scenario, label: str) -> dict[int, float]:
    """Seed -> time to the target of one candidate on other seeds; infinite where it was missed."""
    one = tuple(entry for entry in scenario.schemes if entry.label == label)
    changed = scenario.model_copy(
        update={"schemes": one, "seed": OTHER_SEED, "repeats": OTHERS, "tune": None}
    )
    return {run.seed: float("inf") if run.met is None else run.met.time_s for run in simulate(changed)}


def compare(places: Sequence[int]) -> None:
    """Print a row for each drawn scenario, then the means."""
    rows = []
    print("| scenario | candidates | recommended | exhaustive first | regret | cost | seconds |", flush=True)
    print("| ---: | ---: | --- | --- | ---: | ---: | --- |", flush=True)
    for place in places:
        scenario = resolve(with_candidates(resolve_scenario(draw(np.random.default_rng(place)))), _CPU)
        begin_s = time.process_time()
        last, tuning, race = run_race(scenario)
        runs = list(simulate(last))
        middle_s = time.process_time()
        chosen, first, steps = exhaustive(scenario)
        end_s = time.process_time()
        mine = first_of(last, runs, tuning)
        regret = (of_ratio(times(last, mine), times(chosen, first))["median"] or np.inf) - 1
        cost = (race.steps + sum(run.iterations for run in runs) * last.cluster.workers) / steps
        rows.append((regret, cost))
        seconds = f"{middle_s - begin_s:.0f} of {end_s - middle_s:.0f}"
        cells = (
            place,
            len(scenario.schemes),
            mine,
            first,
            f"{100 * regret:.1f} %",
            f"{100 * cost:.0f} %",
            seconds,
        )
        print(f"| {' | '.join(map(str, cells))} |", flush=True)
    regrets, costs = zip(*rows, strict=True)
    mean, worst, cost = (100 * x for x in (statistics.fmean(regrets), max(regrets), statistics.fmean(costs)))
    near = sum(x <= 0.03 for x in regrets)
    print(f"\nregret: mean {mean:.1f} %, worst {worst:.1f} %, at most 3 % in {near} of {len(places)}")
    print(f"cost: mean {cost:.0f} %")


def periods() -> list[tuple[str, int, int]]:
    """Rate, smallest period by prediction, and by the measured seconds of a step and an average.

    Rates of the table's shaper; no run at any of them is needed.
    """
    rows = []
    table = read_table(HERE / "diloco_measured" / "measured.csv")
    for _, cells in table.rows:
        row = dict(zip(table.names, cells, strict=True))
        if row["algorithm"] == "diloco" and row["period"] == "1":
            rate = parse_bandwidth(row["rate"]) * PAYLOAD_OF_FRAME
            average_s = float(row["measured_s"]) / int(row["averages"]) - COMPUTE_S  # an average a step
            (mine,) = smallest_periods(load(SCENARIO, [f"cluster.network.bandwidth={rate:.0f} B/s"]))
            rows.append((row["rate"], mine["period"], smallest_period(COMPUTE_S, average_s)))
    return rows


def main(arguments: Sequence[str]) -> None:
    """The command."""
    if arguments == ["periods"]:
        print("| rate | predicted | measured | apart |\n| --- | ---: | ---: | ---: |")
        for rate, mine, measured in periods():
            print(f"| {rate} | {mine} | {measured} | {100 * (mine / measured - 1):+.1f} % |")
    else:
        compare([int(each) for each in arguments] or DRAWS)


if __name__ == "__main__":
    main(sys.argv[1:])
