"""What each worker computes in a step: the size of its batch, how long that takes, and what it counts for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from .. import topology
from ..compute.model import ComputeModel, steady_compute
from ..config.problems import Mistake
from ..errors import InputError, did_you_mean
from ..network.build import build_network
from ..network.forms import DEFAULT
from ..network.network import Network
from ..schemes import find_scheme
from ..schemes.common.local_steps import is_by_time
from ..workloads.batch_sizes import BatchSize, apportion
from ..workloads.sampler import Sampler
from .entries import SchemeEntry, WorkloadEntry
from .parts import Cluster


def wrong_sizes(batch_size: BatchSize, workers: int, sites: Mapping[str, int]) -> Iterator[Mistake]:
    """Mistakes in the number of sizes, and in the names of sites."""
    at, named = ("workload", "batch_size"), batch_size if isinstance(batch_size, dict) else {DEFAULT: 1}
    if isinstance(batch_size, tuple) and len(batch_size) != workers:
        yield Mistake(at, f"{len(batch_size)} sizes for {workers} workers; give one for each")
    for name in sorted(named.keys() - sites.keys() - {DEFAULT}):
        yield Mistake((*at, name), f"no such site; {did_you_mean(name, [*sites, DEFAULT])}")
    if silent := [name for name in sites if not named.keys() & {name, DEFAULT}]:
        yield Mistake(at, f"says nothing of {', '.join(silent)}; add a 'default'")


def batch_sizes(workload: WorkloadEntry, cluster: Cluster, seed: int) -> tuple[int, ...]:
    """Examples of each worker's batch."""
    batch_size, workers = workload.batch_size, cluster.workers
    if isinstance(batch_size, int):
        return (batch_size,) * workers
    if isinstance(batch_size, tuple):
        return batch_size
    if isinstance(batch_size, dict):
        network = build_network(cluster.network, workers)
        names = [network.sites[site] for site in network.site_of]
        return tuple(batch_size.get(name, batch_size.get(DEFAULT, 1)) for name in names)
    even = workload.model_copy(update={"batch_size": batch_size.mean})
    each_s = own_means_s(compute_model(even, cluster, seed), workers)
    return apportion(workers * batch_size.mean, [1 / own_s for own_s in each_s])


def own_means_s(model: ComputeModel, workers: int) -> list[float]:
    """Each worker's mean seconds of a gradient, with permanent slowdowns alone; an unknown time is 1 s."""
    compute = model.compute
    own = compute.model or (compute.trace and compute.trace.workers)
    if not (own or compute.trace or compute.time):
        model = replace(model, compute=compute.model_copy(update={"time": 1.0, "measured": None}))
    steady = steady_compute(model, workers)
    if own:
        steady = replace(steady, compute=compute)
    return [float(steady.block_s(rank, 0).mean()) for rank in range(workers)]


def speeds_of(workload: WorkloadEntry, cluster: Cluster, seed: int, entry: SchemeEntry) -> tuple[float, ...]:
    """Gradients a second of each worker for a scheme with periods by time; () for any other."""
    if not is_by_time(entry.options):
        return ()
    each_s = own_means_s(compute_model(workload, cluster, seed), cluster.workers)
    return tuple(1 / own_s for own_s in each_s)


def compute_model(
    workload: WorkloadEntry, cluster: Cluster, seed: int, sampler: Sampler | None = None
) -> ComputeModel:
    """Durations of gradients: a time, trace or function is that of the workers' mean batch.

    A larger batch takes longer in proportion; or as measured, where several sizes were.
    """
    sizes, profile = batch_sizes(workload, cluster, seed), workload.layer_profile
    flops = profile.flops / cluster.speed_factor if profile else None
    mean, measured = sum(sizes) / len(sizes), cluster.compute.measured
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


def check_weighed(entry: SchemeEntry, network: Network) -> None:
    """Raise ``InputError`` where a scheme's means cannot count the examples of uneven batches."""
    scheme, options = find_scheme(entry.name), entry.options
    graphs, weights = getattr(options, "topology", None), getattr(options, "weights", topology.AUTO)
    units = scheme.units(options, network)
    reasons = {
        "workers do not wait for all others, so that no mean has the examples of all": not scheme.in_step(
            options
        ),
        "with periods by time models count alike, however many steps are behind them": is_by_time(options),
        "its means, of models or of some workers, count all workers alike": scheme.weighs(options) is None,
        "with shrink the workers of a mean change": entry.on_fault == "shrink",
        "its mixing weights are not doubly stochastic, so that some workers count for more": graphs
        is not None
        and not topology.plan(graphs, units, weights).column_stochastic,
    }
    for why in [why for why, holds in reasons.items() if holds][:1]:
        raise InputError(f"batches differ in size, and {why}; write workload.batch_size as a number")


def weights_of(
    examples: Sequence[int], entry: SchemeEntry, network: Network
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What each worker's gradients, and models, count by in plain means, given the ``examples`` of each.

    Workers that share every step weigh their gradients by examples; those that step alone, or the units of a
    scheme with ``inside``, the changes in their models.
    """
    scheme, places = find_scheme(entry.name), [0] * len(examples)
    if scheme.weighs(entry.options) == "models":
        inside = {None: range(len(examples)), "hosts": network.nodes, "sites": network.site_of}
        places = [*inside[scheme.inside(entry.options)]]
    members, drawn = Counter(places), Counter[int]()
    for place, number in zip(places, examples, strict=True):
        drawn[place] += number
    gradients = (n * members[place] / drawn[place] for n, place in zip(examples, places, strict=True))
    return tuple(gradients), tuple(drawn[place] * len(members) / sum(examples) for place in places)
