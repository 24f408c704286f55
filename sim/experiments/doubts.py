"""Values that can hardly be meant: one sentence for each, in ``check`` and before runs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..config.units import format_seconds
from ..scenario.schema import Scenario
from ..workloads import find_task


def doubts(scenario: Scenario) -> Iterator[str]:
    """Sentences about values of a valid scenario, without a full stop."""
    workload, compute, stop = scenario.workload, scenario.cluster.compute, scenario.stop
    if compute.measured is not None and (beyond := compute.measured.outside(workload.batch_size)):
        yield beyond
    gradient_s = workload.accumulate * (compute.time or 0.0)
    max_time_s = math.inf if stop.max_time is None else stop.max_time
    steps = min(stop.max_iterations or math.inf, max_time_s / gradient_s if gradient_s else math.inf)
    if steps < 1:
        yield (
            f"stop.max_time: {format_seconds(max_time_s)} is over before the first gradient, which takes "
            f"{format_seconds(gradient_s)}"
        )
    for number, entry in enumerate(scenario.schemes):
        period = getattr(entry.options, "period", None)
        if isinstance(period, int) and period > steps >= 1:
            yield f"schemes.{number}.period: {period:,} steps are more than the run's {steps:,.0f} at most"
    if workload.timing_only or workload.curves is not None:
        return
    task = find_task(workload.task)
    shards = 1 if workload.partition.kind == "replicated" else scenario.cluster.workers
    share = task.facts(workload.options, scenario.seed).num_examples / shards
    if workload.proxy_batch is None and workload.batch_size > share:
        yield f"workload.batch_size: {workload.batch_size:,} is more than a worker's {share:,.0f} examples"
    target = stop.target
    if target is not None and target.value == task.range_of(target.metric)[target.metric not in task.falling]:
        yield f"stop.target.value: {target.value:g} is as good as {target.metric} can be; few runs get there"
