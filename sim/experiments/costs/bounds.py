"""Bounds of a scheme: the costs behind its time.

A step is followed on the clock alone, and then again with one cost a tenth smaller: the gradients of an
undisturbed worker, the extra time of slow workers and slow moments, latencies, seconds per byte, overheads of
software, ``round`` among them. The time of a run is homogeneous of degree one in all of them together (where
all double, it doubles), so that by Euler's theorem the sensitivities to each add up to the whole: they are
shares of the wall clock. A cost hidden behind something slower has no share, however long it takes.

At a corner, where a cost stops to count within that tenth, the moves do not quite add up; they are scaled so
that they do.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from typing_extensions import override

from ...compute.model import ComputeModel
from ...devices import one_thread
from ...drivers.job import Job
from ...errors import RunError
from ...network.network import Network
from ...network.transport import TransferModel
from ...records.summary import Bounds, Cost, SchemeFacts
from ...scenario.batches import own_means_s
from ...scenario.device_memory import device_memory
from ...scenario.entries import SchemeEntry
from ...scenario.schema import Scenario
from ...schemes import find_scheme
from ...seeds import Floats
from ..prepare import over_profile, prepare
from .step_cost import follow, whole_job

FOLLOWED_STEPS: Final = 64
"""Steps to follow, rounded up to whole cycles, of which the first quarter does not count."""
BOUNDS_WORK: Final = 16_000
"""Messages and steps of workers after which fewer are followed, but never less than two cycles."""
MAX_CYCLE_WORK: Final = 120_000
"""Messages and steps of one cycle beyond which nothing is followed: it would take minutes."""
PART_WORK: Final = 4
"""Messages that a part of a gradient, sent while the rest is computed, counts for at least."""
MAX_CYCLE_STEPS: Final = 1000
"""Steps of a cycle beyond which nothing is followed."""
BANDWIDTHS: Final = (0.1, 0.3, 1.0, 3.0, 10.0)
"""Factors on all bandwidths for which a step is followed."""
SMALLER: Final = 0.9
"""Factor on the cost in question."""
ALWAYS_SLOW: Final = 1.1
"""Ratio of a worker's median gradient to the middle worker's above which it is always slow."""


def describe_schemes(scenario: Scenario, with_bounds: bool = True) -> dict[str, SchemeFacts]:
    """Label -> facts of a scheme: what it does and holds and, unless ``with_bounds`` is False, its bounds."""
    with one_thread():
        facts = {
            entry.label: SchemeFacts(
                does=find_scheme(entry.name).does,
                draws=find_scheme(entry.name).draws(entry.options),
                memory=device_memory(scenario.workload, scenario.cluster, entry, scenario.seed),
                bounds=measure_bounds(scenario, entry) if with_bounds else None,
            )
            for entry in scenario.schemes
        }
        if not with_bounds and scenario.stop.target is None:  # a step's time decides; is it by chance?
            for entry in scenario.schemes:
                facts[entry.label]["random"] = is_random(scenario, entry)
        return facts


def chance(scenario: Scenario, entry: SchemeEntry) -> list[str]:
    """What a scheme's times and faults draw from the seed, as phrases; none: all repeats are alike.

    A run whose times depend on values, which the clock alone does not show, is random besides.
    """
    job = over_profile(prepare(scenario, entry, scenario.seed), scenario.cluster.profile)
    transfer, compute = job.transfer, job.compute
    phrases = {
        "computing times": compute.random or compute.compute.spread is not None,
        "latencies or bandwidths": transfer.network.varies,
        "messages of the profile": transfer.wake_up_delays_s or transfer.resume_jitter_s or transfer.uneven,
        "faults": job.churn is not None and any(each.mean_time_between for each in job.churn.faults),
        "the scheme's own draws": job.scheme.draws(job.options),
    }
    return [phrase for phrase, there in phrases.items() if there]


def is_random(scenario: Scenario, entry: SchemeEntry) -> bool:
    """Whether the time of a scheme's step is random, as in ``Bounds``; true where it cannot be followed."""
    if chance(scenario, entry):
        return True
    try:
        follow(whole_job(scenario, entry), lambda complete, _: complete > 0)
    except RunError:
        return True
    return False


def measure_bounds(scenario: Scenario, entry: SchemeEntry) -> Bounds | None:
    """Follow a scheme on the clock alone; None where it needs values, or has too many messages."""
    job = whole_job(scenario, entry)
    cycle = job.cycle
    in_parts = job.scheme.bucket_bytes(job.options) is not None  # sent during the backward pass
    steps_work = cycle * job.workers * (PART_WORK * len(job.layers.segments) if in_parts else 1)
    if cycle > MAX_CYCLE_STEPS or steps_work > MAX_CYCLE_WORK:
        return None
    try:
        first = follow(job, lambda complete, _: complete > 0)
        if first.work > MAX_CYCLE_WORK:
            return None
        cycles = min(math.ceil(FOLLOWED_STEPS / cycle), BOUNDS_WORK // max(first.work, 1))
        # Only a race to a target has use for these, and its gradients take far longer.
        bandwidths, random = BANDWIDTHS if scenario.stop.target else (), bool(chance(scenario, entry))
        return _bounds(job, max(2, cycles), bandwidths, random)
    except RunError:
        return None


def _bounds(job: Job, cycles: int, bandwidths: Sequence[float], random: bool) -> Bounds:
    """Shares of a step, the mean over ``cycles`` without those of the start."""
    whole = follow(job, lambda complete, _: complete >= cycles)

    def step_s(changed: Job) -> float:
        return follow(changed, whole.span).step_s

    base_s, whole_s = _undisturbed_s(job), whole.step_s
    everybody, slow = range(job.workers), _always_slow(job)

    def gain_s(changed: Job) -> float:
        return 0.0 if changed is job else max(0.0, whole_s - step_s(changed))

    gains: dict[Cost, float] = {
        "compute": gain_s(_with_compute(job, base_s, compute=SMALLER)),
        "waiting": gain_s(_with_compute(job, base_s, slow=everybody)),
        "latency": gain_s(_with_transfer(job, latency=SMALLER)),
        "bandwidth": gain_s(_with_transfer(job, seconds_per_byte=SMALLER)),
        "software": gain_s(_with_transfer(job.with_rounds(SMALLER), software=SMALLER)),
    }
    total = math.fsum(gains.values()) or 1.0
    of_slow = gain_s(_with_compute(job, base_s, slow=slow)) if slow else 0.0
    return Bounds(
        compute=gains["compute"] / total,
        waiting=gains["waiting"] / total,
        latency=gains["latency"] / total,
        bandwidth=gains["bandwidth"] / total,
        software=gains["software"] / total,
        waits_for=list(slow),
        slow_workers=min(of_slow, gains["waiting"]) / total,
        step_s=whole_s,
        steps=whole.steps,
        random=random,
        by_bandwidth=[[x, step_s(_with_transfer(job, seconds_per_byte=1 / x))] for x in bandwidths],
    )


def _undisturbed_s(job: Job) -> float:
    model, compute = job.compute, job.compute.compute
    if compute.time is not None:
        each_s = model.accumulate * compute.time
        if len(set(model.gradients_each)) > 1:  # uneven batches
            return min(own_means_s(model, job.workers))
        return each_s * min(model.gradients_each, default=1.0) + min(model.added_s, default=0.0)
    if compute.trace is not None and compute.trace.durations:
        return model.accumulate * statistics.fmean(compute.trace.durations)
    undisturbed = ComputeModel(compute, (), job.seed, accumulate=model.accumulate)
    return min(float(undisturbed.block_s(rank, 0).mean()) for rank in range(job.workers))


def _always_slow(job: Job) -> tuple[int, ...]:
    """Ranks whose gradients are slower than the others' in general, not by chance now and then."""
    medians = [float(np.median(job.compute.block_s(rank, 0))) for rank in range(job.workers)]
    typical_s = statistics.median(medians)
    return tuple(rank for rank, median_s in enumerate(medians) if median_s > ALWAYS_SLOW * typical_s)


@dataclass(frozen=True)
class _ScaledCompute(ComputeModel):
    """Durations d = base + (d - base) with factors on the base, and for some workers on the rest."""

    base_s: float = 0.0
    compute_factor: float = 1.0
    slow_factor: float = 1.0
    slow: Collection[int] = ()

    @override
    def blocks_s(self, workers: range, block: int) -> Floats:
        rest_s = super().blocks_s(workers, block) - self.base_s
        factors = [self.slow_factor if worker in self.slow else 1.0 for worker in workers]
        return (self.compute_factor * self.base_s + np.array(factors)[:, None] * rest_s).clip(min=0.0)


def _with_compute(job: Job, base_s: float, compute: float = 1.0, slow: Collection[int] = ()) -> Job:
    model = job.compute
    alike = not model.varies and all(model.duration_s(rank, 0) == base_s for rank in slow)
    if compute == 1.0 and alike:
        return job
    scaled = _ScaledCompute(
        model.compute, model.stragglers, model.seed, model.gradients_each, model.added_s,
        accumulate=model.accumulate, base_s=base_s, compute_factor=compute, slow_factor=SMALLER, slow=slow,
    )  # fmt: skip
    return replace(job, compute=scaled)


def _with_transfer(
    job: Job, latency: float = 1.0, seconds_per_byte: float = 1.0, software: float = 1.0
) -> Job:
    old: TransferModel = job.transfer
    same_network = latency == seconds_per_byte == 1.0
    new = replace(
        old,
        network=old.network if same_network else _scaled(old.network, latency, seconds_per_byte),
        added_latency_s=latency * old.added_latency_s,
        copy_s_per_byte=seconds_per_byte * old.copy_s_per_byte,
        device_copy_s_per_byte=seconds_per_byte * old.device_copy_s_per_byte,
        overhead_s=software * old.overhead_s,
        pattern_overhead_s=software * old.pattern_overhead_s,
        launch_s=software * old.launch_s,
        connect_s=software * old.connect_s,
        resume_s=software * old.resume_s,
        late_s=software * old.late_s,
        wake_up_delays_s=tuple(software * each for each in old.wake_up_delays_s),
        resume_jitter_s=tuple(software * each for each in old.resume_jitter_s),
    )
    return job if new == old else job.over(new)


def _scaled(network: Network, latency: float, seconds_per_byte: float) -> Network:
    return replace(
        network,
        links=tuple(
            replace(link, bandwidth_bytes_per_s=link.bandwidth_bytes_per_s / seconds_per_byte)
            for link in network.links
        ),
        latency_s=tuple(tuple(latency * each for each in row) for row in network.latency_s),
        inner_latency_s=latency * network.inner_latency_s,
        per_flow_bytes_per_s=tuple(
            tuple(each / seconds_per_byte for each in row) for row in network.per_flow_bytes_per_s
        ),
        routes={
            pair: replace(
                route,
                latency_s=latency * route.latency_s,
                per_flow_bytes_per_s=route.per_flow_bytes_per_s / seconds_per_byte,
            )
            for pair, route in network.routes.items()
        },
    )
