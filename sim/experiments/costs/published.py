"""Published losses of training that averages seldom, against averaging at every step: looked up, no law.

``published.csv`` has a row for each run: the final ``score``, a loss or a perplexity, and the same study's
with averaging at ``each_step``. Marks: [S] read in the paper, [O] in the authors' repository.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from ...drivers.job import Job
from ...schemes.outer.diloco import DilocoOptions
from ...schemes.scheme import one_period

_FILE: Final = Path(__file__).with_name("published.csv")
_NUMBERS: Final = ("parameters", "workers", "period", "tokens", "score", "each_step")
SIZE_FACTOR: Final = 2.0
"""Largest ratio of a model's parameters to those of a study that still says something of it."""


@dataclass(frozen=True)
class PublishedRun:
    """A row of the table; ``outer_rate`` as the source says it, ``period`` in steps."""

    study: str
    mark: str
    method: str
    parameters: float
    workers: float
    period: float
    tokens: float
    outer_rate: str
    unit: str
    score: float
    each_step: float

    @property
    def loss_ratio(self) -> float:
        """Final loss over that with averaging at every step."""
        perplexity = self.unit == "perplexity"
        return math.log(self.score, self.each_step) if perplexity else self.score / self.each_step


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """The table."""
    with _FILE.open(newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    return tuple(PublishedRun(**row | {key: float(row[key]) for key in _NUMBERS}) for row in rows)


def ratio_at(runs: Iterable[PublishedRun], period: float) -> tuple[float, tuple[float, ...]] | None:
    """Loss ratio at a period, linear in its logarithm, and the periods it lies between; None outside."""
    known = {run.period: run.loss_ratio for run in sorted(runs, key=lambda run: run.period)}
    if period in known:
        return known[period], (period,)
    for low, high in pairwise(known):
        if low < period < high:
            part = math.log(period / low) / math.log(high / low)
            return known[low] + part * (known[high] - known[low]), (low, high)
    return None


def published_losses(job: Job, parameters: int) -> tuple[list[dict[str, Any]], list[str]]:
    """What studies near a job's scheme and model found, the nearest size first; and sentences for it.

    Of each study the nearest size within ``SIZE_FACTOR`` and the nearest number of workers count; periods and
    workers outside its own are refused. Nothing where every step averages.
    """
    options: Any = job.options
    if job.scheme.cycle is not one_period or options.period == 1:
        return [], []
    streams = isinstance(options, DilocoOptions) and options.fragments > 1
    method = "streaming" if streams else job.scheme.name
    runs = [run for run in published_runs() if run.method == method]
    if not runs:
        return [], [f"no published loss: the table has DiLoCo, and none of {method}"]
    losses, others = [], []
    for study in dict.fromkeys(run.study for run in runs):
        mine = [run for run in runs if run.study == study]
        mine = _nearest(_nearest(mine, "parameters", parameters, SIZE_FACTOR), "workers", job.units, 1.0)
        if known := ratio_at(mine, options.period):
            losses.append(_finding(mine[0], *known, options.period, parameters))
        elif mine:
            others.append(f"; {study} has H = {', '.join(f'{run.period:g}' for run in mine)}")
    losses.sort(key=lambda each: abs(math.log(each["parameters"] / parameters)))
    wanted = f"H = {options.period} for {job.units} workers and {_short(parameters)} parameters"
    return losses, [each["text"] for each in losses] or [f"no published loss at {wanted}{''.join(others)}"]


def _nearest(runs: list[PublishedRun], name: str, wanted: float, slack: float) -> list[PublishedRun]:
    """Runs of the nearest value of ``name``; none where ``wanted`` is beyond their range and ``slack``."""
    values = [getattr(run, name) for run in runs]
    if not runs or not min(values) / slack <= wanted <= max(values) * slack:
        return []
    nearest = min(values, key=lambda value: abs(math.log(value / wanted)))
    return [run for run, value in zip(runs, values, strict=True) if value == nearest]


def _finding(
    run: PublishedRun, ratio: float, periods: tuple[float, ...], period: int, parameters: int
) -> dict[str, Any]:
    between = "" if len(periods) == 1 else f" (between {periods[0]:g} and {periods[1]:g})"
    factor = parameters / run.parameters
    yours = "" if math.isclose(factor, 1, rel_tol=0.01) else f" (here {factor:.2g} times as many)"
    text = (
        f"published: {100 * (ratio - 1):+.1f} % loss at H = {period}{between} against averaging each step: "
        f"{_short(run.parameters)} parameters{yours}, {run.workers:g} workers, {_short(run.tokens)} tokens, "
        f"outer rate {run.outer_rate}; {run.study} [{run.mark}]"
    )
    facts = ("study", "mark", "parameters", "workers", "tokens", "outer_rate")
    return {"text": text, "loss_ratio": ratio, "periods": periods} | {key: getattr(run, key) for key in facts}


def _short(number: float) -> str:
    return f"{number / 1e9:.3g} G" if number >= 1e9 else f"{number / 1e6:.3g} M"
