"""Predictions of chance-dependent schemes as ranges, over draws of the machine's delays.

Where the order of arrival decides which models there are, milliseconds of the machine's own move the time to
the target by many per cent, in real runs and in simulated ones alike. So a measured value of such a scheme is
compared with the range of 30 simulated runs, and its mean over the repeats with their means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Final

from paceline.sim.drivers.job import Job
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network.profile import Profile
from paceline.sim.records.comparison import Comparison, ErrorRow, MeanRow, Metric, Pair, error_pct
from paceline.sim.records.intervals import DRAWN_RUNS, of_runs
from paceline.sim.records.run import Run

DRAWS: Final = range(1_000, 1_000 + DRAWN_RUNS)
"""Seeds of the simulated runs."""


def other_wake_ups(job: Job, seed: int) -> Job:
    """``job`` on the same machine with wake-up delays drawn under another seed."""
    return replace(job, transfer=replace(job.transfer, seed=seed))


def simulate_again(job: Job, profile: Profile, seed: int) -> Run:
    """Simulate the job with other wake-up delays, and with factors drawn from the profile's uncertainty."""
    return simulate_job(other_wake_ups(job, seed), profile=profile.drawn(seed))


def with_chance(
    comparison: Comparison, measured: Iterable[Run], again: Mapping[tuple[str, int], Sequence[Run]]
) -> Comparison:
    """Add ranges over the further simulated runs ``again`` (by label and seed), and means over repeats."""
    cells: list[ErrorRow] = []
    drawn: dict[tuple[str, Metric], list[tuple[ErrorRow, list[float]]]] = defaultdict(list)
    real = {(run.label, run.seed): run for run in measured}
    for cell in comparison["cells"]:
        key = cell["label"], cell["seed"]
        values = [
            other["predicted"]
            for run in again.get(key, ())
            for other in Pair(run, real[key]).cells()
            if other["metric"] == cell["metric"]
        ]
        cells.append({**cell, "simulated_s": of_runs(values)} if values else cell)
        if values:
            drawn[cell["label"], cell["metric"]].append((cell, values))
    means = []
    for (label, metric), repeats in drawn.items():
        if len(repeats) > 1:
            sets = [fmean(each) for each in zip(*(values for _, values in repeats), strict=False)]
            predicted, value = (fmean(cell[key] for cell, _ in repeats) for key in ("predicted", "measured"))
            means.append(
                MeanRow(
                    label=label, metric=metric, predicted=predicted, measured=value,
                    error_pct=error_pct(predicted, value), simulated_s=of_runs(sets),
                )
            )  # fmt: skip
    return {**comparison, "cells": cells, "means": means}
