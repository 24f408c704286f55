"""The learning board: which scheme learns fastest, by the proxy, by rules, and as others measured it.

    python -m benchmarks.learning predict TABLE...   writes predicted.csv by the recipe of docs/proxies.md
    python -m benchmarks.learning                    renews docs/learning-board.md

A folder is a table: its scenario says where it is from, `measured.csv`, added after the predictions were
committed, has the loss of each scheme after equally many tokens, or in columns that begin with "steps" its
steps to a loss. Times in these scenarios are steps. The regret of a named scheme is its loss less that of the
best, or how much longer than the best one it took.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from scipy.stats import binomtest

import paceline
from docs.make.page import renewed
from paceline.sim.config.files import write_atomically
from paceline.sim.records.intervals import finite, of_ratio
from paceline.sim.records.rates import find_orders
from paceline.sim.records.summary import Summary, rate_times

FOLDER: Final = Path(__file__).parent
PAGE: Final = FOLDER.parents[1] / "docs" / "learning-board.md"
MARK: Final = "<!-- Below: python -m benchmarks.learning -->"


@dataclass(frozen=True)
class Predicted:
    """The proxy's times of a scheme, in steps, infinite where it did not arrive.

    ``repeats``: at its best rate, by seed. ``by_rate``: of one trial at each rate. ``held``: it is all-reduce
    and counts at its best rate beside all others'.
    """

    label: str
    repeats: Mapping[int, float]
    by_rate: Mapping[float, float]
    held: bool

    @property
    def steps(self) -> float:
        """The median of the repeats."""
        return median(self.repeats.values())

    def is_surely_before(self, other: Predicted) -> bool:
        """Whether the repeats, and the trials at every rate, put it first of the two."""
        low = of_ratio(other.repeats, self.repeats)["low"]
        held = next((each for each in (self, other) if each.held), None)
        best = min(self.by_rate, key=(held or self).by_rate.__getitem__)
        by_rate = {each.label: each.by_rate for each in (self, other)}
        orders = find_orders(by_rate, self.label, best, None if held is None else held.label)
        return (low is None or low > 1) and orders["settled"]


def predict(table: str) -> None:
    """Simulate the scenarios of a table, one for each number of workers, and write its ``predicted.csv``."""
    paths = sorted((FOLDER / table).glob("scenario*.yaml"))
    write_predicted([paceline.simulate(path).totals for path in paths], FOLDER / table / "predicted.csv")


def write_predicted(summaries: Sequence[Summary], path: Path) -> None:
    """A row a scheme: whether it is held, and its times by seed and by rate."""
    rows = [row for summary in summaries for row in _predicted_rows(summary)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _predicted_rows(summary: Summary) -> Iterator[dict[str, Any]]:
    held = next((row["label"] for row in summary["summary"] if row["scheme"] == "all_reduce"), None)
    for each in summary["tuning"]:
        runs = [run for run in summary["runs"] if run["label"] == each["label"]]
        yield (
            {"label": each["label"], "held": int(each["label"] == held)}
            | {f"seed {run['seed']}": run["time_to_target_s"] for run in runs}
            | {f"rate {rate}": finite(time_s) for rate, time_s in rate_times(each).items()}
        )


def read_predicted(path: Path) -> list[Predicted]:
    """The rows of ``predicted.csv``."""
    with path.open(newline="") as file:
        return [
            Predicted(
                row["label"],
                {
                    int(key[5:]): float(value or "inf")
                    for key, value in row.items()
                    if key.startswith("seed ")
                },
                {
                    float(key[5:]): float(value or "inf")
                    for key, value in row.items()
                    if key.startswith("rate ")
                },
                row["held"] == "1",
            )
            for row in csv.DictReader(file)
        ]


@dataclass(frozen=True)
class Table:
    """What a folder of the board measured, one number a scheme, the lower the better.

    ``rule``: places by a rule of two lines: all-reduce first, else the shorter period, plain averaging last.
    ``in_steps``: steps to a loss, else losses in nats. ``source``: whose it is. ``is_fresh``: none of its
    values was known when the recipe took its present form.
    """

    name: str
    predicted: Sequence[Predicted]
    rule: Mapping[str, int]
    measured: Mapping[str, float]
    in_steps: bool = False
    source: str = ""
    is_fresh: bool = False

    @property
    def places(self) -> dict[str, float]:
        """Steps of the proxy, by label."""
        return {each.label: each.steps for each in self.predicted}

    @property
    def pairs(self) -> int:
        """Pairs of schemes."""
        return math.comb(len(self.predicted), 2)

    def shown(self, regret: float) -> str:
        """A regret in the unit of the table."""
        return f"{regret:.0%}" if self.in_steps else f"{regret:.4f} nats"

    def regret(self, places: Mapping[str, float]) -> float:
        """That of the scheme in the first place, the mean of those that share it."""
        first, best = min(places.values()), min(self.measured.values())
        named = fmean(self.measured[label] for label, place in places.items() if place == first)
        return named / best - 1 if self.in_steps else named - best

    def regrets(self) -> tuple[float, float, float]:
        """Those of the proxy, of the rule and of equal steps."""
        return self.regret(self.places), self.regret(self.rule), self.regret(dict.fromkeys(self.rule, 0))

    def settled(self) -> list[tuple[str, str]]:
        """Pairs whose order is settled, the first of each before."""
        pairs = [(a, b) for a, b in combinations(self.predicted, 2)]
        both = [*pairs, *((b, a) for a, b in pairs)]
        return [(a.label, b.label) for a, b in both if a.is_surely_before(b)]

    def wrong(self) -> int:
        """How many of the settled pairs are measured the other way round."""
        return sum(self.measured[a] > self.measured[b] for a, b in self.settled())


def read_tables() -> Iterator[Table]:
    """All tables with measured numbers, one for each column of them."""
    sources = {row["table"]: row for row in _rows(FOLDER / "sources.csv")}
    for path in sorted(FOLDER.glob("*/measured.csv")):
        rows = _rows(path)
        source = sources[path.parent.name]
        predicted = read_predicted(path.with_name("predicted.csv"))
        rule = {row["label"]: int(row["rule"]) for row in rows}
        columns = list(rows[0])[2:]
        for column in columns:
            name = path.parent.name if len(columns) == 1 else f"{path.parent.name}, {column}"
            measured = {row["label"]: float(row[column]) for row in rows}
            known = [each for each in predicted if each.label in measured]
            fresh = source["opened"] == "since"
            yield Table(name, known, rule, measured, column.startswith("steps"), source["source"], fresh)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def page_lines(tables: Sequence[Table]) -> Iterator[str]:
    """The board in Markdown."""
    yield from _row(
        "table", "opened", "schemes", "best, measured", "named by the proxy", "regret", "of the rule",
        "of equal steps", "settled pairs", "of them wrong",
    )  # fmt: skip
    yield "| --- | --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for table in tables:
        yield from _row(
            table.name, "since" if table.is_fresh else "before", len(table.predicted),
            min(table.measured, key=table.measured.__getitem__),
            min(table.places, key=table.places.__getitem__), *map(table.shown, table.regrets()),
            f"{len(table.settled())} of {table.pairs}", table.wrong(),
        )  # fmt: skip
    yield ""
    for when, group in (("since", [table for table in tables if table.is_fresh]), ("at any time", tables)):
        yield from _totals(when, group)
    for table in tables:
        rates = list(table.predicted[0].by_rate)
        yield f"\n## {table.name}\n"
        heads = (f"at {rate:g}" for rate in rates)
        yield from _row("scheme", "measured", "place by the rule", "steps of the proxy", *heads)
        yield f"| --- | ---: | ---: | ---: |{' ---: |' * len(rates)}"
        for each in sorted(table.predicted, key=lambda each: table.measured[each.label]):
            steps = map(_steps, (each.steps, *(each.by_rate[rate] for rate in rates)))
            mine = table.measured[each.label]
            yield from _row(
                each.label, f"{mine:,.0f}" if table.in_steps else mine, table.rule[each.label], *steps
            )


def _totals(when: str, tables: Sequence[Table]) -> Iterator[str]:
    """Regrets of the tables in one unit, each source counting once, and the settled pairs of all."""
    for unit in dict.fromkeys(table.in_steps for table in tables):
        of_unit = [table for table in tables if table.in_steps == unit]
        sources = list(dict.fromkeys(table.source for table in of_unit))
        proxy, rule, equal = (
            of_unit[0].shown(fmean(each))
            for each in zip(*(_mean_regrets(of_unit, source) for source in sources), strict=True)
        )
        yield (
            f"- Opened {when}: mean regret of n = {len(sources)} sources in {len(of_unit)} tables: {proxy}, "
            f"of the rule {rule}, of equal steps {equal}."
        )
    pairs = sum(table.pairs for table in tables)
    settled, wrong = sum(len(table.settled()) for table in tables), sum(table.wrong() for table in tables)
    line = f"- Opened {when}: of {pairs} pairs {settled} are settled ({settled / max(pairs, 1):.0%})"
    if settled:
        shares = binomtest(wrong, settled).proportion_ci(method="wilson")
        line += f", {wrong} of them wrong: {wrong / settled:.0%}, "
        line += f"95 % interval {shares.low:.0%} to {shares.high:.0%}"
    yield f"{line}."


def _mean_regrets(tables: Sequence[Table], source: str) -> list[float]:
    """Those of the proxy, of the rule and of equal steps, the means of a source's tables."""
    return [fmean(each) for each in zip(*(t.regrets() for t in tables if t.source == source), strict=True)]


def _row(*cells: object) -> Iterator[str]:
    yield f"| {' | '.join(map(str, cells))} |"


def _steps(value: float) -> str:
    return f"{value:,.0f}" if math.isfinite(value) else "never"


if __name__ == "__main__":
    if sys.argv[1:2] == ["predict"]:
        for name in sys.argv[2:]:
            predict(name)
    else:
        lines = "\n".join(page_lines(list(read_tables())))
        write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8"), MARK, f"\n\n{lines}\n"))
