"""What moves a scheme's steps over all-reduce's: workers, outer step, period and rate (docs/outer-steps.md).

    nice python -m benchmarks.outer_steps               adds missing rows to outer_steps.csv
    nice python -m benchmarks.outer_steps --variants    the same for outer_steps_variants.csv
    python -m benchmarks.outer_steps_page               renews docs/outer-steps.md and its figure

The task of the recipe, AdamW at a constant rate after a warm-up, 256 examples a step of all workers, 8,000
steps, no network: times are steps. A row has the steps to 90, 95 and 98 % of the fall of all-reduce's test
loss, by the model that a scheme publishes, empty where it never got there.

A variant changes one thing at 8 workers: inner optimiser, schedule, batch, shards, or the model. All-reduce
tries three rates, and the schemes run at the one that is first at 95 % of its own fall.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product
from pathlib import Path
from statistics import median
from typing import Any, Final

import pandas as pd

import paceline
from paceline.sim.scenario.entries import PROXY, PROXY_EXAMPLES, RATES, STEPS

ROWS: Final = Path(__file__).with_suffix(".csv")
LEVELS: Final = {"90 %": 1.95, "95 %": 1.80, "98 %": 1.71}
WORKERS, SEEDS, PERIODS = (8, 1, 2, 4), (1, 2), (20, 100, 500)
OUTER: Final = {"1/0": (1.0, 0.0), "0.7/0.5": (0.7, 0.5), "0.7/0.9": (0.7, 0.9)}
KEYS: Final = ("workers", "rate", "seed", "outer", "period")
VARIANT_ROWS: Final = ROWS.with_name("outer_steps_variants.csv")
_FALLS: Final = (0.90, 0.95, 0.98)
VARIANTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "as it is": {},
    "batch of 4": {"batch_size": 4},
    "whole sources": {"partition": {"kind": "by_source"}},
    "cosine": {
        "schedule": {"warmup": "100 steps", "cosine": {"until": f"{STEPS - 100} steps", "final": 0.1}},
        "rates": (0.006, 0.012, 0.024),
    },
    "SGD": {"optimizer": "sgd", "rates": (0.2, 0.4, 0.8)},
    "transformer": {
        "task": "text-transformer", "batch_size": 8, "steps": 4000, "rates": (0.002, 0.004, 0.008),
    },
    "pictures": {
        "task": "digits-mlp", "batch_size": 4, "steps": 4000, "rates": (0.0005, 0.001, 0.002),
        "metric": "train_loss",
    },
}  # fmt: skip
"""Name -> what it changes."""


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


def variant(name: str, rate: float, entries: Sequence[Any]) -> dict[str, Any]:
    """The scenario of a variant with some schemes, at one rate."""
    changed = VARIANTS[name]
    base = scenario(8, rate, 1)
    workload = base["workload"]
    workload |= {key: changed[key] for key in ("task", "batch_size", "partition") if key in changed}
    workload["optimizer"]["schedule"] = changed.get("schedule", workload["optimizer"]["schedule"])
    if changed.get("optimizer") == "sgd":
        workload["optimizer"] = {"lr": rate, "schedule": workload["optimizer"]["schedule"]}
    return {**base, "schemes": entries, "stop": {"max_iterations": changed.get("steps", STEPS)}}


def variant_schemes() -> list[Any]:
    """Averages and DiLoCo's outer step at two periods, and gossip of two kinds."""
    averaged: list[Any] = [
        {"diloco": {"period": period, "outer": {"lr": lr, "momentum": momentum, "nesterov": momentum > 0},
                    "label": f"{label} {period}"}}
        for (label, (lr, momentum)), period in product(OUTER.items(), (20, 500))
        if label != "0.7/0.5"
    ]  # fmt: skip
    return [*averaged, {"gossip": {"topology": "one_peer_exponential"}}, "ad_psgd"]


def run_missing_variants() -> None:
    """Add the rows of the variants without one, a variant after the other."""
    done = set(pd.read_csv(VARIANT_ROWS)["variant"]) if VARIANT_ROWS.exists() else set()
    for name in [each for each in VARIANTS if each not in done]:
        rates, metric = VARIANTS[name].get("rates", RATES), VARIANTS[name].get("metric", "test_loss")
        trials = {rate: paceline.simulate(variant(name, rate, ["all_reduce"])).metrics for rate in rates}
        lowest = min(float(curve[metric].min()) for curve in trials.values())
        start = float(next(iter(trials.values()))[metric].iloc[0])
        levels = {level: start - fall * (start - lowest) for level, fall in zip(LEVELS, _FALLS, strict=True)}
        rows = [("all_reduce", rate, curve) for rate, curve in trials.items()]
        best = min(trials, key=lambda rate: float(_crossings(trials[rate], levels, metric)["95 %"] or "inf"))
        others = paceline.simulate(variant(name, best, variant_schemes())).metrics
        rows += [(str(label), best, curve) for label, curve in others.groupby("label", sort=False)]
        append_rows(
            VARIANT_ROWS,
            ["variant", "label", "rate", *LEVELS, "end"],
            (
                [name, label, rate, *_crossings(curve, levels, metric).values(), _end(curve, metric)]
                for label, rate, curve in rows
            ),
        )


def run_missing(most: int | None = None) -> None:
    """Add the rows of the first ``most`` missing groups of runs, a group after the other."""
    done = {(row["workers"], row["rate"], row["seed"]) for row in read_rows()}
    groups = [each for each in product(WORKERS, RATES, SEEDS) if each not in done]
    groups.sort(key=lambda each: (each[2], WORKERS.index(each[0])))
    for workers, rate, seed in groups[:most]:
        study = paceline.simulate(scenario(workers, rate, seed))
        rows = [row_of(str(label), curve) for label, curve in study.metrics.groupby("label", sort=False)]
        append_rows(ROWS, [*KEYS, *LEVELS, "end"], ([workers, rate, seed, *row.values()] for row in rows))


def append_rows(path: Path, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Add rows to a table, which begins with its ``header``."""
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file)
        if new:
            writer.writerow(header)
        writer.writerows(rows)


def row_of(label: str, curve: pd.DataFrame) -> dict[str, Any]:
    """Outer step and period, steps to each level, straight between scorings, and the last loss."""
    outer, _, period = label.partition(" ")
    crossings = _crossings(curve, LEVELS)
    return {"outer": outer, "period": period or 0, **crossings, "end": _end(curve, "test_loss")}


def _end(curve: pd.DataFrame, metric: str) -> str:
    return f"{curve[metric].iloc[-1]:.4f}"


def _crossings(curve: pd.DataFrame, levels: Mapping[str, float], metric: str = "test_loss") -> dict[str, str]:
    steps, losses = curve["step"].tolist(), curve[metric].tolist()
    return {name: _crossing(steps, losses, level) for name, level in levels.items()}


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
    cells: dict[tuple[int, str, int], dict[float, list[float]]] = {}
    for row, ratio in _over_all_reduce(rows, level):
        cell = cells.setdefault((row["workers"], row["outer"], row["period"]), {})
        cell.setdefault(row["rate"], []).append(ratio)
    return {
        cell: {rate: median(each) for rate, each in sorted(of.items())} for cell, of in sorted(cells.items())
    }


def moves(rows: Sequence[Mapping[str, Any]], along: str) -> list[float]:
    """Factors between ratios that differ in ``along`` alone, in ascending order; at all three levels."""
    groups: dict[tuple[Any, ...], list[float]] = {}
    for level in LEVELS:
        for row, ratio in _over_all_reduce(rows, level):
            rest = (level, *(row[key] for key in KEYS if key != along))
            groups.setdefault(rest, []).append(ratio)
    return _factors(pair for group in groups.values() for pair in combinations(group, 2))


def _over_all_reduce(
    rows: Sequence[Mapping[str, Any]], level: str
) -> Iterator[tuple[Mapping[str, Any], float]]:
    """Each row of a scheme, and its steps over all-reduce's at its best rate on the same seed.

    Seeds on which all-reduce does not have all three rates yet are left out.
    """
    known: dict[int, list[float]] = {}
    for row in rows:
        if row["outer"] == "all_reduce":
            known.setdefault(row["seed"], []).append(row[level])
    best = {seed: min(steps) for seed, steps in known.items() if len(steps) == len(RATES)}
    for row in rows:
        if row["outer"] != "all_reduce" and row["seed"] in best:
            yield row, row[level] / best[row["seed"]]


def variant_moves(name: str, levels: Iterable[str] = LEVELS) -> list[float]:
    """Factors between ratios of a variant and of the task as it is, in ascending order."""
    own, base = variant_ratios(name), variant_ratios("as it is")
    return _factors((ratio, base[cell]) for cell, ratio in own.items() if cell[1] in levels)


def variant_ratios(name: str) -> dict[tuple[str, str], float]:
    """(Label, level) -> steps over all-reduce's at the rate of the schemes."""
    rows = pd.read_csv(VARIANT_ROWS).fillna(math.inf)
    own = rows[rows["variant"] == name].set_index("label")
    others = own.drop("all_reduce")
    best = own[own["rate"] == others["rate"].iloc[0]].loc["all_reduce"]
    return {
        (str(label), level): row[level] / best[level] for label, row in others.iterrows() for level in LEVELS
    }


def _factors(pairs: Iterable[tuple[float, float]]) -> list[float]:
    known = (pair for pair in pairs if math.isfinite(min(pair)))
    return sorted(math.exp(abs(math.log(max(pair) / min(pair)))) for pair in known)


if __name__ == "__main__":
    if sys.argv[1:] == ["--variants"]:
        run_missing_variants()
    else:
        run_missing()
