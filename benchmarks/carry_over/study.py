"""Steps to two levels of the loss: six tasks, two partitions, three batches, six schemes, tuned rates.

All runs are the product's, in memory, with 8 workers of equal speed on a network that takes no time, plain
SGD and a constant rate; the averaged model is scored. A *level* is 70 or 90 % of the fall of the loss in a
long all-reduce run. Steps are interpolated between evaluations. A rate is 2^(k/2): a climb over whole k, for
each level, by the mean steps on three seeds; the best rate is then scored on three others.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Final

import paceline
from benchmarks.carry_over.runs import FOLDER, LEVELS, Cell, Row, Table
from paceline.sim.records.run import Run

WORKERS: Final = 8
TUNED_ON, SCORED_ON, SEEDS = 1, 101, 3
"""First seed of the three a rate is chosen on, and of the three it is scored on."""
REFERENCE: Final = "all_reduce"
SCHEMES: Final[Mapping[str, Any]] = {
    REFERENCE: "all_reduce",
    "local 4": {"local_sgd": {"period": 4}},
    "local 16": {"local_sgd": {"period": 16}},
    "one-peer": {"gossip": {"topology": "one_peer_exponential", "weights": "uniform"}},
    "AD-PSGD": "ad_psgd",
    "DiLoCo 16": {"diloco": {"period": 16}},
}
PATIENCE: Final = 1.5
"""A rate has lost where its runs take this factor longer than the best rate so far."""
SLOWEST: Final = 5
"""A scheme misses where it takes this factor longer than all-reduce."""
SEARCHED: Final = (-2, -4, 2, 4, -6, -8)
"""Rates tried beside the first one where no run arrives."""


@dataclass(frozen=True)
class StudyTask:
    """A task with its uneven partition, three batch sizes, and the number of steps of its long run.

    ``every``: steps between evaluations.
    """

    workload: Mapping[str, Any]
    parameters: int
    uneven: Mapping[str, Any]
    batches: tuple[int, int, int]
    long: int
    every: int = 1

    def partition(self, name: str) -> Mapping[str, Any]:
        """Settings of the partition ``iid`` or ``uneven``."""
        return {"kind": "iid"} if name == "iid" else self.uneven


_DIRICHLET: Final = {"kind": "dirichlet", "alpha": 0.3}
_SOURCES: Final = {"kind": "by_source"}
TASKS: Final[Mapping[str, StudyTask]] = {
    "logistic": StudyTask({"task": "logistic"}, 650, _DIRICHLET, (1, 8, 32), 300),
    "digits-mlp": StudyTask({"task": "digits-mlp"}, 4_810, _DIRICHLET, (2, 10, 64), 300, 2),
    "digits-cnn": StudyTask({"task": "digits-cnn", "channels": 4}, 666, _DIRICHLET, (2, 12, 64), 150, 3),
    "text-help": StudyTask(
        {"task": "text-transformer", "context": 8, "width": 16}, 11_888, _SOURCES, (1, 4, 16), 500, 3
    ),
    "text-kjv": StudyTask(
        {"task": "text-transformer", "text": "kjv", "context": 16, "width": 64},
        84_160, _SOURCES, (1, 4, 16), 200, 2,
    ),
    "mnist-mlp": StudyTask(
        {"task": "mnist-5k-mlp", "hidden": 1024}, 814_090, _DIRICHLET, (4, 24, 128), 150, 3
    ),
}  # fmt: skip
"""Smallest first, by the time of a run; the last is the one that predictions are tested on."""
HELD_OUT: Final = "mnist-mlp"


def cells(task: str) -> Iterator[Cell]:
    """The cells of a task, the middle batch first: the others begin at its rates."""
    low, middle, high = TASKS[task].batches
    return (Cell(task, partition, b) for b in (middle, low, high) for partition in ("iid", "uneven"))


def scenario(cell: Cell, scheme: str, lr: float, seed: int, steps: int) -> dict[str, Any]:
    """The scenario of ``SEEDS`` runs that begin with ``seed``, without a target."""
    task = TASKS[cell.task]
    return {
        "name": "carry-over",
        "seed": seed,
        "workload": {
            **task.workload,
            "batch_size": cell.batch,
            "partition": dict(task.partition(cell.partition)),
            "optimizer": {"lr": lr},
        },
        "cluster": {
            "workers": WORKERS,
            "compute": {"time": "10 ms", "jitter": {"lognormal": {"cv": 0.1}}},
            "network": {"latency": "1 us", "bandwidth": "1000 Gbit/s"},
        },
        "schemes": [SCHEMES[scheme]],
        "evaluate": {"every": f"{task.every} steps", "on": "mean"},
        "stop": {"max_iterations": steps},
        "repeats": SEEDS,
    }


def simulate(described: Mapping[str, Any]) -> tuple[Run, ...]:
    """Runs of a scenario, on one core."""
    return paceline.simulate(described, progress=False, jobs=1).runs


def loss_curve(run: Run) -> Iterator[tuple[int, float]]:
    """Steps and loss at each evaluation; a loss that is no number counts as infinite."""
    for each in run.evaluations:
        loss = each.metrics["train_loss"]
        yield each.step, math.inf if loss is None else loss


def crossing(run: Run, level: float) -> float:
    """Steps to a loss of ``level``, linear between the evaluations around it; infinite where it is missed."""
    before = None
    for step, loss in loss_curve(run):
        if loss <= level:
            if before is None:
                return step
            earlier, above = before
            return (
                step if math.isinf(above) else earlier + (step - earlier) * (above - level) / (above - loss)
            )
        before = step, loss
    return math.inf


@dataclass(frozen=True)
class Fall:
    """The fall of the loss in a task's long run, at its best rate."""

    rate: int
    start: float
    end: float

    def level(self, percent: int) -> float:
        """Loss after ``percent`` of the fall."""
        return self.start - percent / 100 * (self.start - self.end)


def fall(task: str) -> Fall:
    """The long run of a task: iid, middle batch, first seed; the rate, by factors of 2, with the lowest end.

    Kept in ``levels.csv``.
    """
    file = FOLDER / "levels.csv"
    if not file.is_file():
        file.write_text("task,rate,start,end\n")
    with file.open(newline="") as lines:
        for name, rate, start, end in list(csv.reader(lines))[1:]:
            if name == task:
                return Fall(int(rate), float(start), float(end))
    ends: dict[int, Fall] = {}

    def end_at(rate: int) -> float:
        described = scenario(
            Cell(task, "iid", TASKS[task].batches[1]), REFERENCE, 2 ** (rate / 2), TUNED_ON, TASKS[task].long
        )
        (run,) = simulate({**described, "repeats": 1})
        losses = [loss for _, loss in loss_curve(run)]
        ends[rate] = Fall(rate, losses[0], fmean(losses[-max(1, len(losses) // 10) :]))
        return ends[rate].end if run.status != "diverged" else math.inf

    best = ends[climb(end_at, -2, 2)]
    with file.open("a") as lines:
        lines.write(f"{task},{best.rate},{best.start:.6g},{best.end:.6g}\n")
    return best


def climb(merit: Callable[[int], float], start: int, spacing: int) -> int:
    """The rate whose neighbours are no better; small is good."""
    seen = {start: merit(start)}
    for away in SEARCHED:
        if math.isfinite(min(seen.values())):
            break
        seen[start + away] = merit(start + away)
    while math.isfinite(min(seen.values())):
        best = min(seen, key=seen.__getitem__)
        unknown = [k for k in (best + spacing, best - spacing) if k not in seen]
        if not unknown:
            return best
        seen[unknown[0]] = merit(unknown[0])
    return start


def best_rate(table: Table, cell: Cell, scheme: str, place: int) -> int | None:
    """Of the scored rates, the one whose tuning runs took the fewest steps to a level; None: not trained."""
    means = {
        rate: fmean(
            (row.steps_70, row.steps_90)[place]
            for row in (table.rows[cell, scheme, rate, TUNED_ON + i] for i in range(SEEDS))
        )
        for known, label, rate, seed in table.rows
        if (known, label, seed) == (cell, scheme, SCORED_ON + SEEDS - 1)
    }
    best = min(means, key=means.__getitem__, default=None)
    return None if best is None or math.isinf(means[best]) else best


def scored_steps(table: Table, cell: Cell, scheme: str, place: int) -> list[float] | None:
    """Steps to a level on each scoring seed, at the best rate; None where no rate was scored."""
    rate = best_rate(table, cell, scheme, place)
    if rate is None:
        return None
    rows = (table.rows[cell, scheme, rate, SCORED_ON + i] for i in range(SEEDS))
    return [(row.steps_70, row.steps_90)[place] for row in rows]


class Trainer:
    """Runs of a study that are not yet in its table are simulated, and added."""

    def __init__(self, table: Table) -> None:
        self.table = table

    def steps(
        self, cell: Cell, scheme: str, rate: int, first_seed: int, cap: int
    ) -> list[tuple[float, float]]:
        """Steps to both levels on each seed; ``cap`` is that of the rows where they exist."""
        keys = [(cell, scheme, rate, first_seed + i) for i in range(SEEDS)]
        if not all(key in self.table.rows for key in keys):
            wanted = fall(cell.task)
            described = scenario(cell, scheme, 2 ** (rate / 2), first_seed, cap)
            described["stop"]["target"] = {"metric": "train_loss", "value": wanted.level(LEVELS[1])}
            self.table.add([
                Row(
                    cell.task, cell.partition, cell.batch, scheme, rate, run.seed, cap,
                    *(crossing(run, wanted.level(level)) for level in LEVELS),
                )
                for run in simulate(described)
            ])  # fmt: skip
        return [(row.steps_70, row.steps_90) for row in (self.table.rows[key] for key in keys)]

    def tune(self, cell: Cell, scheme: str, start: int, slowest: int) -> dict[int, tuple[int, float]]:
        """Level -> best rate and its mean steps; infinite where no rate arrives within ``slowest`` steps."""
        seen: dict[int, list[float]] = {}
        best: dict[int, tuple[int, float]] = {}
        for place in (1, 0):

            def merit(rate: int, place: int = place) -> float:
                if rate not in seen:
                    known = min((each[place] for each in seen.values()), default=math.inf)
                    cap = slowest if math.isinf(known) else min(slowest, math.ceil(PATIENCE * known) + 1)
                    steps = self.steps(cell, scheme, rate, TUNED_ON, cap)
                    seen[rate] = [fmean(each) for each in zip(*steps, strict=True)]
                return seen[rate][place]

            begin = min(seen, key=lambda k: seen[k][place], default=start)
            rate = climb(merit, begin, 1)
            best[LEVELS[place]] = rate, merit(rate)
        return best

    def score(self, cell: Cell, scheme: str, best: Mapping[int, tuple[int, float]]) -> None:
        """Run each level's best rate on the scoring seeds."""
        for level in reversed(LEVELS):
            rate, steps = best[level]
            if math.isfinite(steps):
                self.steps(cell, scheme, rate, SCORED_ON, math.ceil(2 * PATIENCE * steps) + 1)

    def train(self, task: str, schemes: tuple[str, ...] = tuple(SCHEMES)) -> None:
        """All cells of a task: all-reduce first, since it bounds the others."""
        moved: dict[str, int] = {}
        start = fall(task).rate
        for cell in cells(task):
            reference = self.tune(cell, REFERENCE, start + moved.get(REFERENCE, 0), 3 * TASKS[task].long)
            self.score(cell, REFERENCE, reference)
            rate, steps = reference[LEVELS[1]]
            moved[REFERENCE] = rate - start
            if math.isinf(steps):
                continue
            for scheme in schemes:
                if scheme != REFERENCE:
                    best = self.tune(cell, scheme, rate + moved.get(scheme, 0), math.ceil(SLOWEST * steps))
                    self.score(cell, scheme, best)
                    moved[scheme] = best[LEVELS[1]][0] - rate
            print(
                cell,
                {level: f"{2 ** (k / 2):.3g}: {s:.1f}" for level, (k, s) in reference.items()},
                flush=True,
            )
