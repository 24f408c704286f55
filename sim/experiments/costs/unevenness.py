"""Who computes for how long where workers differ in speed, and what batches or periods to suit would save."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from itertools import groupby
from typing import Final

from ...config.units import format_seconds
from ...errors import InputError, RunError
from ...network.build import build_network
from ...network.network import Network
from ...scenario.batches import batch_sizes, check_weighed, compute_model, own_means_s
from ...scenario.entries import SchemeEntry
from ...scenario.schema import Scenario
from ...schemes.common.local_steps import own_steps
from ...workloads.batch_sizes import BySpeed
from ..prepare import prepare
from .step_cost import follow_whole

ALIKE: Final = 1.03
"""Factor between durations of computing, or of steps, below which they count as equal."""
ROUGHLY: Final = 0.3
"""The share of a followed step that is enough to say what another would save."""


def _can_weigh(entry: SchemeEntry, network: Network) -> bool:
    with suppress(InputError):
        check_weighed(entry, network)
        return True
    return False


def about_speeds(scenario: Scenario, steps_s: Mapping[str, float]) -> list[str]:
    """Sentences about a resolved scenario whose workers differ in speed, for the shortest of the steps.

    ``steps_s``: label -> seconds of a step. Nothing is said of schemes that cannot have batches by speed, or
    have periods by time already.
    """
    workload, cluster = scenario.workload, scenario.cluster
    each_s = own_means_s(compute_model(workload, cluster, scenario.seed), cluster.workers)
    if max(each_s) <= ALIKE * min(each_s):
        return []
    network = build_network(cluster.network, cluster.workers)
    entries = [entry for entry in scenario.schemes if steps_s.get(entry.label) and _can_weigh(entry, network)]
    if not entries:
        return []
    entry = min(entries, key=lambda entry: steps_s[entry.label])
    step_s = steps_s[entry.label]
    by_time = sorted(range(len(each_s)), key=each_s.__getitem__)
    kinds = [[*alike] for _, alike in groupby(by_time, lambda rank: round(each_s[rank], 9))]
    computing = ", ".join(
        f"{f'worker {ranks[0]}' if len(ranks) == 1 else f'{len(ranks)} workers'} "
        f"{format_seconds(each_s[ranks[0]])} ({100 * each_s[ranks[0]] / step_s:.0f} %)"
        for ranks in kinds[:3] + kinds[3:][-1:]
    )
    step = f"Of a step of {entry.label}, {format_seconds(step_s)}"
    texts = [f"{step}, computing takes {computing}; the rest is waiting."]
    sizes = batch_sizes(workload, cluster, scenario.seed)
    by_speed = BySpeed(by="speed", mean=round(sum(sizes) / len(sizes)))
    workload = workload.model_copy(update={"batch_size": by_speed})
    sizes = batch_sizes(workload, cluster, scenario.seed)
    forms = {
        f"'workload: {{batch_size: {{by: speed, mean: {by_speed.mean}}}}}', {min(sizes):,} to "
        f"{max(sizes):,} examples": (scenario.model_copy(update={"workload": workload}), entry)
    }
    with suppress(ValueError):  # of a scheme without them
        period = {"by": "time", "steps": getattr(entry.options, "period", None)}
        document = {entry.name: {**entry.options.model_dump(mode="json"), "period": period}}
        timed = entry.model_copy(update={"options": SchemeEntry.model_validate(document).options})
        own = own_steps(prepare(scenario, timed, scenario.seed).worker(0), timed.options)
        share = 100 * sum(own) / (max(own) * len(own))
        steps = f"{min(own):,} to {max(own):,} local steps and {share:.0f} % of the examples"
        forms[f"'period: {{by: time, steps: {max(own)}}}', {steps}"] = scenario, timed
    for written, changed in forms.items():
        with suppress(RunError):
            even_s = follow_whole(*changed, ROUGHLY).step_s
            less = f"it takes {format_seconds(even_s)}, {format_seconds(max(0.0, step_s - even_s))} less."
            texts += [f"With {written}, {less}"][: ALIKE * even_s < step_s]
    return texts
