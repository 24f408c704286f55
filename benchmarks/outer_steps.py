"""What moves a scheme's steps over all-reduce's: workers, outer step, period and rate (docs/proxies.md).

    nice python -m benchmarks.outer_steps         adds missing rows to outer_steps.csv, as long as it is let
    python -m benchmarks.outer_steps --page       prints the table of docs/proxies.md

The task of the recipe, AdamW at a constant rate after a warm-up, 256 examples a step of all workers, 8,000
steps, no network: times are steps. A row has the steps to 90, 95 and 98 % of the fall of all-reduce's test
loss, by the model that a scheme publishes, empty where it never got there.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, Final

import pandas as pd

import paceline
from paceline.sim.scenario.proxy import PROXY, PROXY_EXAMPLES, RATES, STEPS

ROWS: Final = Path(__file__).with_suffix(".csv")
LEVELS: Final = {"90 %": 1.95, "95 %": 1.80, "98 %": 1.71}
WORKERS, SEEDS, PERIODS = (8, 2, 4, 1), (1, 2), (20, 100, 500)
OUTER: Final = {"1/0": (1.0, 0.0), "0.7/0.5": (0.7, 0.5), "0.7/0.9": (0.7, 0.9)}
KEYS: Final = ("workers", "rate", "seed", "outer", "period")


def scenario(workers: int, rate: float, seed: int) -> dict[str, Any]:
    """All outer steps and periods for one number of workers; for one worker beside plain all-reduce."""
    entries: list[Any] = ["all_reduce"] if workers == 1 else []
    for (label, (lr, momentum)), period in product(OUTER.items(), PERIODS):
        outer = {"lr": lr, "momentum": momentum, "nesterov": momentum > 0}
        named = f"{label} {period}"
        alone = {"all_reduce": {"outer": {"period": period, **outer}, "label": named}}
        entries.append(
            alone if workers == 1 else {"diloco": {"period": period, "outer": outer, "label": named}}
        )
    return {
        "name": "outer-steps",
        "seed": seed,
        "workload": {
            "task": PROXY,
            "batch_size": PROXY_EXAMPLES // workers,
            "optimizer": {"adamw": {"lr": rate}, "schedule": {"warmup": "100 steps"}},
        },
        "cluster": {
            "workers": workers,
            "compute": {"time": "1 s"},
            "network": {"latency": "0 s", "bandwidth": "1e6 Gbit/s"},
        },
        "evaluate": {"every": "20 steps"},
        "schemes": entries,
        "stop": {"max_iterations": STEPS},
        "events": "none",
    }


def run_missing(most: int | None = None) -> None:
    """Add the rows of the first ``most`` missing groups of runs, a group after the other."""
    done = {(row["workers"], row["rate"], row["seed"]) for row in read_rows()}
    groups = [each for each in product(WORKERS, RATES, SEEDS) if each not in done]
    groups.sort(key=lambda each: (each[2], WORKERS.index(each[0])))
    for workers, rate, seed in groups[:most]:
        study = paceline.simulate(scenario(workers, rate, seed))
        rows = [row_of(str(label), curve) for label, curve in study.metrics.groupby("label", sort=False)]
        new = not ROWS.exists()
        with ROWS.open("a", newline="") as file:
            writer = csv.DictWriter(file, [*KEYS, *LEVELS, "end"])
            if new:
                writer.writeheader()
            writer.writerows({"workers": workers, "rate": rate, "seed": seed, **row} for row in rows)


def row_of(label: str, curve: pd.DataFrame) -> dict[str, Any]:
    """Outer step and period, steps to each level, straight between scorings, and the last loss."""
    outer, _, period = label.partition(" ")
    steps, losses = curve["step"].tolist(), curve["test_loss"].tolist()
    crossings = {name: _crossing(steps, losses, level) for name, level in LEVELS.items()}
    end = f"{losses[-1]:.4f}"
    return {"outer": outer, "period": period or 0, **crossings, "end": end}


def _crossing(steps: Sequence[float], losses: Sequence[float], level: float) -> str:
    for number in range(1, len(losses)):
        if losses[number] <= level < losses[number - 1]:
            share = (losses[number - 1] - level) / (losses[number - 1] - losses[number])
            return f"{steps[number - 1] + share * (steps[number] - steps[number - 1]):.0f}"
    return ""


def read_rows() -> list[dict[str, Any]]:
    """The rows so far; steps are infinite where a level was not reached."""
    if not ROWS.exists():
        return []
    with ROWS.open(newline="") as file:
        return [
            {
                "workers": int(row["workers"]),
                "rate": float(row["rate"]),
                "seed": int(row["seed"]),
                "outer": row["outer"],
                "period": int(row["period"]),
                **{name: float(row[name] or "inf") for name in LEVELS},
                "end": float(row["end"]),
            }
            for row in csv.DictReader(file)
        ]


def ratios(rows: Sequence[Mapping[str, Any]], level: str) -> dict[tuple[int, str, int], dict[float, float]]:
    """(Workers, outer step, period) -> rate -> steps over all-reduce's at its best rate; median of seeds."""
    best: dict[int, float] = {}
    for row in rows:
        if row["outer"] == "all_reduce":
            best[row["seed"]] = min(best.get(row["seed"], math.inf), row[level])
    cells: dict[tuple[int, str, int], dict[float, list[float]]] = {}
    for row in rows:
        if row["outer"] != "all_reduce" and row["seed"] in best:
            cell = cells.setdefault((row["workers"], row["outer"], row["period"]), {})
            cell.setdefault(row["rate"], []).append(row[level] / best[row["seed"]])
    return {
        cell: {rate: median(each) for rate, each in sorted(of.items())} for cell, of in sorted(cells.items())
    }


def page_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Ratios at three rates, a row a number of workers and an outer step."""
    yield f"| workers, outer rate/momentum | {' | '.join(f'H = {period}' for period in PERIODS)} |"
    yield f"| --- |{' --- |' * len(PERIODS)}"
    cells = ratios(rows, "95 %")
    for workers, outer in product(sorted(WORKERS), OUTER):
        own = [cells.get((workers, outer, period), {}) for period in PERIODS]
        if all(own):
            yield f"| {workers}, {outer} | {' | '.join(_cell(each) for each in own)} |"


def _cell(by_rate: Mapping[float, float]) -> str:
    return " / ".join("never" if math.isinf(each) else f"{each:.2f}" for each in by_rate.values())


if __name__ == "__main__":
    if sys.argv[1:] == ["--page"]:
        print("\n".join(page_lines(read_rows())))
    else:
        run_missing()
