"""What each worker computes in a step: the size of its batch, and how long that takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .. import topology
from ..compute.model import ComputeModel, steady_compute
from ..config.settings import Settings
from ..network.network import Network
from ..program.groups import Groups
from ..schemes import find_scheme
from ..schemes.common.inside import unit_groups
from ..schemes.scheme import Scheme
from ..workloads.batch_sizes import Weights, apportion, of_sites
from ..workloads.sampler import Sampler
from .entries import SchemeEntry, WorkloadEntry
from .parts import Cluster


def batch_sizes(workload: WorkloadEntry, cluster: Cluster, seed: int) -> tuple[int, ...]:
    """Examples of each worker's batch."""
    batch_size, workers = workload.batch_size, cluster.workers
    if isinstance(batch_size, int):
        return (batch_size,) * workers
    if isinstance(batch_size, tuple):
        return batch_size
    if isinstance(batch_size, dict):
        return of_sites(batch_size, cluster.network.sites or {}) or (1,) * workers
    even = workload.model_copy(update={"batch_size": batch_size.mean})
    each_s = own_means_s(compute_model(even, cluster, seed), workers)
    return apportion(workers * batch_size.mean, [1 / own_s for own_s in each_s])


def own_means_s(model: ComputeModel, workers: int) -> list[float]:
    """Each worker's mean seconds of a gradient, with permanent slowdowns alone; an unknown time is 1 s."""
    compute = model.compute
    if compute.trace is None and compute.model is None and not compute.time:
        model = replace(model, compute=compute.model_copy(update={"time": 1.0, "measured": None}))
    steady = steady_compute(model, workers)
    if compute.model is not None or (compute.trace is not None and compute.trace.workers):
        steady = replace(steady, compute=compute)
    return [float(steady.block_s(rank, 0).mean()) for rank in range(workers)]


def compute_model(
    workload: WorkloadEntry, cluster: Cluster, seed: int, sampler: Sampler | None = None
) -> ComputeModel:
    """Durations of gradients: a time, trace or function is that of the workers' mean batch.

    A larger batch takes longer in proportion; or as measured, where several sizes were.
    """
    sizes = batch_sizes(workload, cluster, seed)
    mean = sum(sizes) / len(sizes)
    profile, measured = workload.layer_profile, cluster.compute.measured
    flops = profile.flops / cluster.speed_factor if profile else None
    seconds = measured.seconds if measured is not None and measured.times else float
    longer = [seconds(size) / seconds(mean) for size in sizes] if len(set(sizes)) > 1 else []
    added_s = [0.0] * len(longer)
    if sampler is not None:
        longer = [sampler.gradients_each(worker) for worker in range(cluster.workers)]
        added_s = [sampler.added_s(worker) for worker in range(cluster.workers)]
    return ComputeModel(
        cluster.compute.at(mean, flops), cluster.stragglers, seed, longer, added_s,
        accumulate=workload.accumulate,
    )  # fmt: skip


def unweighed(entry: SchemeEntry, network: Network) -> str:
    """Why a scheme's means cannot count the examples of uneven batches; "" where they can."""
    scheme, options = find_scheme(entry.name), entry.options
    graphs, weights = getattr(options, "topology", None), getattr(options, "weights", topology.AUTO)
    if not scheme.in_step(options):
        why = "workers do not wait for all others, so that no mean has the examples of all"
    elif scheme.weighs(options) is None:
        why = "its means, of models or of some workers, count all workers alike"
    elif (
        graphs is not None
        and not topology.plan(graphs, scheme.units(options, network), weights).column_stochastic
    ):
        why = "its mixing weights are not doubly stochastic, so that some workers count for more"
    elif entry.on_fault == "shrink":
        why = "with shrink the workers of a mean change"
    else:
        return ""
    return f"batches differ in size, and {why}; write workload.batch_size as a number, or leave this out"


def weights_of(examples: Sequence[int], scheme: Scheme, options: Settings, network: Network) -> Weights:
    """What each worker's gradients and models count by in means, given the ``examples`` that it draws.

    Workers that share every step weigh their gradients by examples; those that step alone, or the units of a
    scheme with ``inside``, the changes in their models.
    """
    inside, workers = scheme.inside(options), len(examples)
    units: Groups = (tuple(range(workers)),)
    if scheme.weighs(options) == "models":
        places = network.nodes if inside == "hosts" else network.site_of
        units = unit_groups(tuple(places) if inside else units[0])
    gradients, models = [0.0] * workers, [0.0] * workers
    for unit in units:
        drawn = sum(examples[rank] for rank in unit)
        for rank in unit:
            gradients[rank] = examples[rank] * len(unit) / drawn
            models[rank] = drawn * len(units) / sum(examples)
    return Weights(tuple(gradients), tuple(models))
