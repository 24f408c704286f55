"""How well tuned learning rates hold on fresh seeds: ``tune`` with and without confirmed points.

Five tasks, even and uneven shards, two batch sizes and five schemes make 100 choices. Each is made by the
product's own rule from five rates, a factor of two apart, and trained on three fresh seeds.

``python -m benchmarks.tuned_rates`` prints the table of docs/checks.md (25 minutes on one core).
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import product
from statistics import fmean, median, quantiles
from typing import Final, NamedTuple

from paceline.sim.devices import one_thread
from paceline.sim.experiments.jobs import PlannedRun
from paceline.sim.experiments.prepare import seeds_of
from paceline.sim.experiments.simulate import run_here
from paceline.sim.experiments.tune import choose, next_trials
from paceline.sim.records.run import Run
from paceline.sim.records.summary import mean_time_s
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario, parse

CONFIRMED: Final = (0, 2, 3)
"""Points of a grid that are tried on three seeds."""

_POINTS: Final = 5
_UNEVEN: Final = "dirichlet, alpha: 0.3"


class _Task(NamedTuple):
    """Options of a task, batch sizes, smallest rate, the loss to reach, and its uneven shards."""

    options: str
    batches: tuple[int, int]
    rate: float
    loss: float
    uneven: str = _UNEVEN


_TASKS: Final = (
    _Task("task: logistic", (8, 32), 0.4, 0.45),
    _Task("task: digits-mlp", (8, 32), 0.1, 0.35),
    _Task("task: digits-cnn, channels: 4", (8, 32), 0.1, 0.6),
    _Task("task: mnist-5k-mlp, hidden: 32", (8, 32), 0.05, 0.45),
    _Task("task: text-transformer, context: 16, width: 16", (4, 16), 0.1, 3.1, "by_source"),
)


class Choice(NamedTuple):
    """A scheme's choice: mean seconds of its trials, and the runs on fresh seeds."""

    tuning_s: float
    fresh: tuple[Run, ...]

    def fresh_s(self) -> float:
        """Mean seconds to the target, infinite where a run missed it."""
        times = [run.time_to_target_s for run in self.fresh]
        return fmean(math.inf if time_s is None else time_s for time_s in times)


def settings(tasks: Sequence[_Task] = _TASKS) -> list[Scenario]:
    """A scenario for each task, kind of shards and batch size, with five schemes and five rates."""
    return [
        parse(f"""\
name: tuned-rates
seed: 100
workload: {{{task.options}, batch_size: {batch}, partition: {{kind: {shards}}}, optimizer: {{lr: 0.1}}}}
cluster: {{workers: 8, compute: {{time: 100 ms}}, network: {{latency: 1 ms, bandwidth: 10 Gbit/s}}}}
evaluate: {{every: 5 steps}}
schemes:
  - all_reduce
  - local_sgd: {{period: 16}}
  - gossip: {{topology: one_peer_exponential}}
  - ad_psgd
  - diloco: {{period: 16}}
tune: {{optimizer.lr: {[task.rate * 2**step for step in range(_POINTS)]}}}
stop: {{target: {{metric: train_loss, value: {task.loss}}}, max_iterations: 160}}
repeats: 3
events: none
""")
        for task in tasks
        for shards, batch in product(("iid", task.uneven), task.batches)
    ]


def choices(scenario: Scenario) -> dict[int, list[Choice]]:
    """The choice of every scheme, by the number of confirmed points."""
    assert scenario.tune is not None
    kept: dict[tuple[str, float, int], Run] = {}

    def run(planned: PlannedRun) -> Run:
        key = planned.entry.label, _rate(planned.entry), planned.seed
        if key not in kept:
            kept[key] = run_here(None, "auto", planned, None, None)
        return kept[key]

    by_number = {}
    for confirmed in CONFIRMED:
        tune = scenario.tune.model_copy(update={"trials": _POINTS + 2 * confirmed})
        confirming, trials = scenario.model_copy(update={"tune": tune}), list[Run]()
        while planned := next_trials(confirming, trials):
            trials += map(run, planned)
        chosen, tuned = choose(confirming, trials)
        by_number[confirmed] = [
            Choice(
                mean_time_s(trial for trial in each["trials"] if trial["values"] == each["chosen"]),
                tuple(run(PlannedRun("trial", 0, chosen, entry, seed)) for seed in seeds_of(scenario)),
            )
            for entry, each in zip(chosen.schemes, tuned, strict=True)
        ]
    return by_number


def _rate(entry: SchemeEntry) -> float:
    assert entry.optimizer is not None
    assert entry.optimizer.lr is not None
    return entry.optimizer.lr


def row(confirmed: int, of_rule: Sequence[Choice], of_one_seed: Sequence[Choice]) -> str:
    """A line of the table."""
    diverged = sum(any(run.status == "diverged" for run in each.fresh) for each in of_rule)
    missed = sum(math.isinf(each.fresh_s()) for each in of_rule)
    seconds = [
        run.time_to_target_s / each.tuning_s for each in of_rule for run in each.fresh if run.time_to_target_s
    ]
    ninth = quantiles(seconds, n=10)[-1]
    gains = [
        each.fresh_s() / other.fresh_s()
        for each, other in zip(of_rule, of_one_seed, strict=True)
        if math.isfinite(each.fresh_s() + other.fresh_s())
    ]
    return (
        f"| {confirmed} | {_POINTS + 2 * confirmed} | {diverged} of {len(of_rule)} | {missed} | "
        f"{median(seconds):.2f} / {ninth:.2f} / {max(seconds):.2f} | {fmean(gains):.3f} |"
    )


def main() -> None:
    """Print the table."""
    choices_by_number: dict[int, list[Choice]] = {confirmed: [] for confirmed in CONFIRMED}
    with one_thread():
        for scenario in settings():
            for confirmed, each in choices(scenario).items():
                choices_by_number[confirmed] += each
            print(f"{len(choices_by_number[0])} choices of each", file=sys.stderr, flush=True)
    print(
        "| confirmed | trials | diverged | missed | fresh / tuning: median, ninth decile, worst | against 0 |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: |")
    for confirmed in CONFIRMED:
        print(row(confirmed, choices_by_number[confirmed], choices_by_number[0]))


if __name__ == "__main__":
    main()
