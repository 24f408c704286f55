"""Who computes for how long where workers differ in speed, and what batches by speed would save."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Final

from ...config.units import format_seconds
from ...errors import RunError
from ...network.build import build_network
from ...scenario.batches import batch_sizes, compute_model, own_means_s, unweighed
from ...scenario.entries import SchemeEntry
from ...scenario.schema import Scenario
from ...workloads.batch_sizes import BySpeed
from .step_cost import follow_whole

ALIKE: Final = 1.03
"""Factor between durations of computing below which workers count as equally fast."""
_MOST_KINDS: Final = 4
"""Kinds of workers that are named; of more the fastest and the slowest."""


def about_speeds(scenario: Scenario, steps_s: Mapping[str, float]) -> list[str]:
    """Sentences about a resolved scenario whose workers differ in speed, for the shortest of the steps.

    ``steps_s``: label -> seconds of a step. Nothing is said of schemes that cannot have batches by speed.
    """
    workload, cluster = scenario.workload, scenario.cluster
    each_s = own_means_s(compute_model(workload, cluster, scenario.seed), cluster.workers)
    entries = [entry for entry in scenario.schemes if steps_s.get(entry.label)]
    if max(each_s) <= ALIKE * min(each_s) or not entries:
        return []
    entry = min(entries, key=lambda entry: steps_s[entry.label])
    step_s, slowest_last = steps_s[entry.label], sorted(range(len(each_s)), key=each_s.__getitem__)
    kinds = [[*ranks] for _, ranks in groupby(slowest_last, lambda rank: format_seconds(each_s[rank]))]
    computing = "; ".join(
        f"{f'{len(ranks)} workers compute' if len(ranks) > 1 else f'worker {ranks[0]} computes'} "
        f"{format_seconds(each_s[ranks[0]])} ({100 * each_s[ranks[0]] / step_s:.0f} %)"
        for ranks in (kinds if len(kinds) <= _MOST_KINDS else [kinds[0], kinds[-1]])
    )
    text = f"Of a step of {entry.label}, {format_seconds(step_s)}, {computing}; the rest is waiting."
    return [text, *_saving(scenario, entry, step_s)]


def _saving(scenario: Scenario, entry: SchemeEntry, step_s: float) -> list[str]:
    workload, cluster = scenario.workload, scenario.cluster
    sizes = batch_sizes(workload, cluster, scenario.seed)
    by_speed = BySpeed(by="speed", mean=round(sum(sizes) / len(sizes)))
    shared = workload.model_copy(update={"batch_size": by_speed})
    shares = batch_sizes(shared, cluster, scenario.seed)
    if shares == sizes or unweighed(entry, build_network(cluster.network, cluster.workers)):
        return []
    try:
        shorter_s = follow_whole(scenario.model_copy(update={"workload": shared}), entry).step_s
    except RunError:
        return []
    if shorter_s >= step_s:
        return []
    examples = " and ".join(f"{size:,}" for size in shares)
    if len(shares) > _MOST_KINDS:
        examples = f"{min(shares):,} to {max(shares):,}"
    written = f"workload: {{batch_size: {{by: speed, mean: {by_speed.mean}}}}}"
    less = format_seconds(step_s - shorter_s)
    return [f"With '{written}', {examples} examples, it takes {format_seconds(shorter_s)}, {less} less."]
