"""Published losses of training that averages seldom, against averaging at every step: looked up, no law.

``published.csv`` has a row for each run: the final ``score``, a loss or a perplexity, and the same study's
with averaging at ``each_step``. Marks: [S] read in the paper, [O] in the authors' repository, [M] from
memory.
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

_FILE: Final = Path(__file__).with_name("published.csv")
_NUMBERS: Final = ("parameters", "workers", "period", "tokens", "score", "each_step")


@dataclass(frozen=True)
class PublishedRun:
    """A row of the table; ``outer_rate`` as the source says it, ``period`` in steps, ``begins``: where."""

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
    begins: str

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
