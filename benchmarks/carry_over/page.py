"""docs/proxies.md, from the table's rows."""

from __future__ import annotations

import csv
import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

import numpy as np

from benchmarks.carry_over import analysis, noise
from benchmarks.carry_over.analysis import OTHERS, Errors, Logs, Place
from benchmarks.carry_over.runs import FOLDER, LEVELS, Cell, Table
from benchmarks.carry_over.study import HELD_OUT, REFERENCE, TASKS, cells, fall
from docs.make.page import renewed
from paceline.sim.config.files import write_atomically
from paceline.sim.seeds import Floats

PAGE: Final = Path(__file__).parent.parent.parent / "docs" / "proxies.md"
MARK: Final = "<!-- Below: python -m benchmarks.carry_over -->\n"
PREDICTIONS: Final = FOLDER / "predictions.csv"
TRIED: Final = tuple(task for task in TASKS if task != HELD_OUT)
"""The tasks whose moves a verdict names."""

Measured = Mapping[tuple[Cell, int], noise.Noise]


def write_predictions(table: Table) -> None:
    """Predict the ratios of the held-out task's cells of which only all-reduce was trained; once for all."""
    if not PREDICTIONS.is_file():
        PREDICTIONS.write_text("partition,batch,level,scheme,equal,digits-mlp,rule\n")
    logs, measured = analysis.log_steps(table, TRIED), noise.read()
    rule = analysis.fit(logs, measured)
    known = {(partition, int(batch)) for partition, batch, *_ in _predicted()}
    trained = {
        (cell.partition, cell.batch)
        for cell, scheme, *_ in table.rows
        if cell.task == HELD_OUT and scheme != REFERENCE
    }
    with PREDICTIONS.open("a", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        for cell, level in itertools.product(cells(HELD_OUT), LEVELS):
            if (cell.partition, cell.batch) in known | trained or (cell, level) not in measured:
                continue
            place = Place(HELD_OUT, cell.partition, TASKS[HELD_OUT].batches.index(cell.batch), level)
            for scheme in OTHERS:
                proxy = analysis.as_it_is(logs, place, scheme)
                by_rule = analysis.by_rule(rule, measured[cell, level], scheme)
                guesses = (f"{math.exp(each):.3f}" for each in (0.0, proxy or 0.0, by_rule))
                lines.writerow([cell.partition, cell.batch, level, scheme, *guesses])


def _predicted() -> list[list[str]]:
    with PREDICTIONS.open(newline="") as lines:
        return list(csv.reader(lines))[1:]


def write_page(table: Table) -> None:
    """Renew the page below its mark."""
    write_atomically(PAGE, renewed(PAGE.read_text(), MARK, generated(table)))


def generated(table: Table) -> str:
    """The part of the page below the mark."""
    logs, measured = analysis.log_steps(table, tuple(TASKS)), noise.read()
    return "\n".join([
        "", *_tasks(table, logs), *_moves(logs), *_predictors(logs, measured), *_held_out(logs),
        *_ratios(logs, measured), "",
    ])  # fmt: skip


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> list[str]:
    marks = ["---"] * words + ["---:"] * (len(head) - words)
    return ["", *(f"| {' | '.join(row)} |" for row in (head, marks, *rows)), ""]


def _tasks(table: Table, logs: Logs) -> list[str]:
    rows = []
    for name, task in TASKS.items():
        whole = len({place.cell for place in logs if place.task == name})
        runs = sum(cell.task == name for cell, *_ in table.rows)
        if not runs:
            rows.append([name, f"{task.parameters:,}", *["-"] * 4, "0 of 6", "0"])
            continue
        long = fall(name)
        rows.append([
            name, f"{task.parameters:,}",
            "whole sources" if task.uneven["kind"] == "by_source" else "Dirichlet 0.3",
            ", ".join(map(str, task.batches)), f"{long.start:.2f} to {long.end:.3f}",
            ", ".join(f"{long.level(level):.3f}" for level in LEVELS), f"{whole} of 6", f"{runs:,}",
        ])  # fmt: skip
    head = ["task", "parameters", "uneven", "batches b", "fall of the loss", "70 %, 90 %", "cells", "runs"]
    return ["## Tasks", *_table(head, rows)]


def _within(tasks: Sequence[str], logs: Logs) -> dict[Place, Mapping[str, Floats]]:
    return {place: each for place, each in logs.items() if place.task in tasks}


def named_moves(logs: Logs) -> analysis.Spread:
    """The moves that a verdict names: between the tasks without the held-out one."""
    return analysis.spread(analysis.moves(_within(TRIED, logs), analysis.between_tasks))


def compared_tasks(logs: Logs) -> str:
    """These tasks, by number and size."""
    sizes = sorted(TASKS[task].parameters for task in TRIED if any(place.task == task for place in logs))
    number = ("no", "one", "two", "three", "four", "five")[len(sizes)]
    return f"{number} tasks of {sizes[0]:,} to {sizes[-1]:,} parameters"


def _moves(logs: Logs) -> list[str]:
    known = {
        "task and batch (what a verdict names)": analysis.between_tasks,
        "task, with the same place among its batches": analysis.between_tasks_alike,
        "batch, by its neighbour among the three": analysis.between_batches,
        "partition": analysis.between_partitions,
    }
    rows = []
    for what, pairs in known.items():
        factors = analysis.spread(analysis.moves(_within(TRIED, logs), pairs))
        rows.append([
            what, f"{factors.count:,}",
            *(
                f"{value:.2f} ({low:.2f} to {high:.2f})"
                for value, (low, high) in (
                    (factors.median, factors.median_interval), (factors.rare, factors.rare_interval)
                )
            ),
            *(f"{each:.2f}" for each in factors.by_seeds),
        ])  # fmt: skip
    head = ["what changes", "moves", "median", "exceeded by one in ten", "seeds alone: median", "one in ten"]
    return [f"## How far a ratio moves between {compared_tasks(logs)}", *_table(head, rows)]


def _predictors(logs: Logs, measured: Measured) -> list[str]:
    known = [each for task in TASKS if (each := analysis.errors(logs, measured, task)) is not None]
    wins = sum(each.rule_wins for each in known)
    rows = [_error_row(each) for each in known]
    rows.append(
        [
            "**mean of tasks**",
            "",
            *(f"{fmean(column):.3f}" for column in _errors(known)),
            f"{wins} of {len(known)}",
        ]
    )
    gaps = ((name, analysis.paired_interval(known, null)) for name, null in (
        ("equal steps", lambda each: each.equal), ("digits-mlp as it is", lambda each: each.proxy),
    ))  # fmt: skip
    text = "; ".join(f"against {name} {low:+.3f} to {high:+.3f}" for name, (low, high) in gaps)
    head = [
        "task left out",
        "ratios",
        "equal steps",
        "digits-mlp as it is",
        "rule of u and v",
        "rule below both",
    ]
    return [
        "## What predicts a ratio",
        *_table(head, rows),
        f"Error of the rule less that of a null, 95 % over tasks: {text}.",
        "",
    ]


def _errors(known: Sequence[Errors]) -> list[list[float]]:
    return [[each.equal for each in known], [each.proxy for each in known], [each.rule for each in known]]


def _error_row(each: Errors) -> list[str]:
    values = (f"{value:.3f}" for value in (each.equal, each.proxy, each.rule))
    return [each.task, str(each.count), *values, "yes" if each.rule_wins else "no"]


def _held_out(logs: Logs) -> list[str]:
    title = f"## Predicted before: {HELD_OUT}, {TASKS[HELD_OUT].parameters:,} parameters"
    if not PREDICTIONS.is_file() or not any(place.task == HELD_OUT for place in logs):
        return [title, "", "Not yet trained.", ""]
    errors: dict[int, list[list[float]]] = {level: [] for level in LEVELS}
    for partition, batch, level, scheme, *guesses in _predicted():
        place = Place(HELD_OUT, partition, TASKS[HELD_OUT].batches.index(int(batch)), int(level))
        value = analysis.ratio(logs.get(place, {}), scheme)
        if value is not None:
            errors[place.level].append([abs(value - math.log(float(each))) for each in guesses])
    errors[0] = [each for level in LEVELS for each in errors[level]]
    rows = [
        [f"{level} %" if level else "both", str(len(each)), *(f"{x:.3f}" for x in np.mean(each, axis=0))]
        for level, each in errors.items()
    ]
    named = named_moves(logs)
    changes = [x for x in analysis.moves(logs, analysis.between_tasks) if HELD_OUT in x.tasks]
    sizes = np.exp([move.size for move in changes])
    above = [f"{np.mean(sizes > factor):.0%}".replace("%", " %") for factor in (named.median, named.rare)]
    own = np.quantile(sizes, [0.5, analysis.RARE])
    text = (
        f"Of {len(changes):,} moves between it and the others, {above[0]} are above {named.median:.2f} "
        f"(half of the others' are), and {above[1]} above {named.rare:.2f} (one in ten). Their own median is "
        f"{own[0]:.2f}, and one in ten is above {own[1]:.2f}."
    )
    head = ["level", "ratios", "equal steps", "digits-mlp as it is", "rule of u and v"]
    return [title, "", "Mean absolute log error:", *_table(head, rows), text, ""]


def _ratios(logs: Logs, measured: Measured) -> list[str]:
    rows = []
    for task in TASKS:
        for cell in cells(task):
            number = TASKS[task].batches.index(cell.batch)
            pair = [logs.get(Place(task, cell.partition, number, level)) for level in LEVELS]
            if pair[0] is None or pair[1] is None:
                continue
            known = [measured.get((cell, level)) for level in LEVELS]
            steps = (f"{np.exp(np.median(each[REFERENCE])):.0f}" for each in pair if each is not None)
            cells_of_row = [f"{task} {cell.partition} {cell.batch}", "/".join(steps)]
            cells_of_row.append("/".join("-" if each is None else f"{1 / each.u:.2g}" for each in known))
            cells_of_row.append("/".join("-" if each is None else f"{each.v:.2f}" for each in known))
            for scheme in OTHERS:
                both = (analysis.ratio(each or {}, scheme) for each in pair)
                cells_of_row.append("/".join("-" if x is None else f"{math.exp(x):.2f}" for x in both))
            rows.append(cells_of_row)
    head = ["task, partition, b", "all-reduce", "nb/B", "H2/G2", *OTHERS]
    text = "Steps of all-reduce, and those of others over them, to 70 % / 90 % of the fall; nb/B and H2/G2 "
    text += "along all-reduce's runs."
    return ["## Ratios", "", text, *_table(head, rows)]
