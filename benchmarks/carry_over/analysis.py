"""How far ratios of steps move between tasks, and what predicts them.

A *ratio* is that of two schemes' steps to a level, at each one's best rate: the median over the scoring
seeds, paired, as in a verdict; a run that misses the level counts as slowest. A *move* is the absolute
difference of such a log ratio between two places. Intervals are over tasks, by bootstrap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from benchmarks.carry_over.noise import Noise
from benchmarks.carry_over.runs import LEVELS, Cell, Table
from benchmarks.carry_over.study import REFERENCE, SCHEMES, SEEDS, TASKS, cells, scored_steps
from paceline.sim.seeds import Floats

PROXY: Final = "digits-mlp"
"""The task that a user has at hand; "as it is" with its middle batch."""
OTHERS: Final = tuple(scheme for scheme in SCHEMES if scheme != REFERENCE)
RARE: Final = 0.9
"""Share of moves below the number called "one case of ten"."""
DRAWS: Final = 2000
OF_MEDIAN: Final = 0.449
"""Variance of the median of three normal values over theirs."""


@dataclass(frozen=True)
class Place:
    """Where a ratio was found; ``noise``: 0, 1 or 2, by batch."""

    task: str
    partition: str
    noise: int
    level: int

    @property
    def cell(self) -> Cell:
        """Its cell."""
        return Cell(self.task, self.partition, TASKS[self.task].batches[self.noise])


Logs = Mapping[Place, Mapping[str, Floats]]
"""Place -> scheme -> log steps on each scoring seed, infinite where the level was missed."""


def log_steps(table: Table, tasks: Sequence[str]) -> dict[Place, dict[str, Floats]]:
    """Log steps of the cells that are complete, without schemes that no rate brings to a level."""
    logs: dict[Place, dict[str, Floats]] = {}
    for task in tasks:
        for cell in cells(task):
            if not is_complete(table, cell):
                continue
            for number, level in enumerate(LEVELS):
                place = Place(task, cell.partition, TASKS[task].batches.index(cell.batch), level)
                steps = {scheme: scored_steps(table, cell, scheme, number) for scheme in SCHEMES}
                logs[place] = {scheme: np.log(each) for scheme, each in steps.items() if each is not None}
    return logs


def is_complete(table: Table, cell: Cell) -> bool:
    """Whether every scheme of a cell was tried; the last one is scored last."""
    return any(
        known == cell and scheme == OTHERS[-1] for known, scheme, _, seed in table.rows if seed > SEEDS
    )


def gaps(logs: Mapping[str, Floats], scheme: str, other: str) -> Floats:
    """Log ratios of two schemes' steps, on the seeds where one of them arrives."""
    if scheme not in logs or other not in logs:
        return np.array([])
    arrived = np.isfinite(np.minimum(logs[scheme], logs[other]))
    return logs[scheme][arrived] - logs[other][arrived]


def ratio(logs: Mapping[str, Floats], scheme: str, other: str = REFERENCE) -> float | None:
    """Median log ratio of two schemes' steps; None where one of them mostly misses the level."""
    log_ratios = gaps(logs, scheme, other)
    value = float(np.median(log_ratios)) if len(log_ratios) else math.inf
    return value if math.isfinite(value) else None


@dataclass(frozen=True)
class Move:
    """Change of a log ratio between two places, and its deviation from the seeds alone."""

    tasks: tuple[str, str]
    size: float
    by_seeds: float


def moves(logs: Logs, pairs: Callable[[Place, Place], bool]) -> list[Move]:
    """Moves of all pairs of schemes between the pairs of places that are wanted."""
    changes = []
    for a, b in combinations(logs, 2):
        if a.level != b.level or not pairs(a, b):
            continue
        for one, two in combinations(SCHEMES, 2):
            here, there = ratio(logs[a], one, two), ratio(logs[b], one, two)
            if here is None or there is None:
                continue
            spreads = [
                np.var(known[np.isfinite(known)], ddof=1)
                for known in (gaps(logs[a], one, two), gaps(logs[b], one, two))
            ]
            changes.append(Move((a.task, b.task), abs(here - there), math.sqrt(OF_MEDIAN * sum(spreads))))
    return changes


def between_tasks(a: Place, b: Place) -> bool:
    """Two tasks of one partition, whatever their batches: what a verdict names."""
    return a.task != b.task and a.partition == b.partition


def between_tasks_alike(a: Place, b: Place) -> bool:
    """Two tasks of one partition and the same place among their batches."""
    return between_tasks(a, b) and a.noise == b.noise


def between_batches(a: Place, b: Place) -> bool:
    """One task with neighbouring batches."""
    return (a.task, a.partition) == (b.task, b.partition) and abs(a.noise - b.noise) == 1


def between_partitions(a: Place, b: Place) -> bool:
    """One task, iid and uneven."""
    return (a.task, a.noise) == (b.task, b.noise) and a.partition != b.partition


@dataclass(frozen=True)
class Spread:
    """Factors by which a ratio moves: in the median, and in one case of ten; with intervals over tasks.

    ``by_seeds``: both for equal ratios, by the noise of three seeds alone.
    """

    count: int
    median: float
    rare: float
    median_interval: tuple[float, float]
    rare_interval: tuple[float, float]
    by_seeds: tuple[float, float]


def spread(changes: Sequence[Move]) -> Spread:
    """Quantiles of moves; a drawn task counts as often as it is drawn, in pairs with others."""
    rng = np.random.default_rng(38)
    sizes = np.array([move.size for move in changes])
    tasks = sorted({task for move in changes for task in move.tasks})
    ends = np.array([[tasks.index(task) for task in move.tasks] for move in changes])
    order = np.argsort(sizes)
    drawn: list[list[float]] = []
    while len(drawn) < DRAWS:
        counts = np.bincount(rng.integers(len(tasks), size=len(tasks)), minlength=len(tasks))
        weights = np.where(ends[:, 0] == ends[:, 1], counts[ends[:, 0]], counts[ends].prod(axis=1))[order]
        if not weights.any():
            continue
        passed = np.cumsum(weights) / weights.sum()
        drawn.append([sizes[order][np.searchsorted(passed, share)] for share in (0.5, RARE)])
    chance = np.abs(rng.standard_normal(len(changes)) * [move.by_seeds for move in changes])
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975], axis=0)).tolist()
    (median, rare), by_seeds = (np.exp(np.quantile(each, [0.5, RARE])).tolist() for each in (sizes, chance))
    return Spread(
        len(changes), median, rare, (low[0], high[0]), (low[1], high[1]), (by_seeds[0], by_seeds[1])
    )


Rule = Mapping[tuple[str, int], Floats]
"""Scheme and level -> a, c, d of log r = a + c log u + d log(1 + v)."""


def fit(logs: Logs, noise: Mapping[tuple[Cell, int], Noise]) -> dict[tuple[str, int], Floats]:
    """Least squares of each scheme's log ratio to all-reduce, at each level."""
    rule = {}
    for scheme in OTHERS:
        for level in LEVELS:
            known = [
                (_features(noise[place.cell, level]), value)
                for place, each in logs.items()
                if place.level == level
                and (place.cell, level) in noise
                and noise[place.cell, level].resolved
                and (value := ratio(each, scheme)) is not None
            ]
            inputs, targets = (np.array(column) for column in zip(*known, strict=True))
            rule[scheme, level] = np.linalg.lstsq(inputs, targets)[0]
    return rule


def _features(measured: Noise) -> list[float]:
    return [1.0, math.log(measured.u), math.log1p(measured.v)]


def by_rule(rule: Rule, measured: Noise, scheme: str) -> float:
    """The rule's log ratio of a scheme to all-reduce."""
    return float(rule[scheme, measured.level] @ _features(measured))


def as_it_is(logs: Logs, place: Place, scheme: str) -> float | None:
    """The log ratio of the proxy, of the same partition and level, with its middle batch."""
    return ratio(logs.get(Place(PROXY, place.partition, 1, place.level), {}), scheme)


@dataclass(frozen=True)
class Errors:
    """Mean absolute log errors over the places of a task, and their number."""

    task: str
    count: int
    equal: float
    proxy: float
    rule: float

    @property
    def rule_wins(self) -> bool:
        """Whether the rule is better than both nulls."""
        return self.rule < min(self.equal, self.proxy)


def errors(
    logs: Logs, noise: Mapping[tuple[Cell, int], Noise], task: str, rule: Rule | None = None
) -> Errors | None:
    """Errors on a task, by a rule that was fitted to the others; None where nothing was measured.

    The proxy is not asked about itself.
    """
    if rule is None:
        rule = fit({place: each for place, each in logs.items() if place.task != task}, noise)
    rows = [
        (abs(value), abs(value - proxy), abs(value - by_rule(rule, measured, scheme)))
        for place, each in logs.items()
        if place.task == task and (place.task, place.noise) != (PROXY, 1)
        for scheme in OTHERS
        if (value := ratio(each, scheme)) is not None
        and (proxy := as_it_is(logs, place, scheme)) is not None
        and (measured := noise.get((place.cell, place.level))) is not None
        and measured.resolved
    ]
    return Errors(task, len(rows), *map(float, np.mean(rows, axis=0))) if rows else None


def paired_interval(
    errors_of_tasks: Sequence[Errors], null: Callable[[Errors], float]
) -> tuple[float, float]:
    """95 % interval over tasks of the mean error of the rule less that of a null."""
    rng = np.random.default_rng(38)
    gaps = np.array([each.rule - null(each) for each in errors_of_tasks])
    means = gaps[rng.integers(len(gaps), size=(DRAWS, len(gaps)))].mean(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
