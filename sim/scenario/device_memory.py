"""Memory that a worker's device needs under its scheme, and whether it fits.

Values are in single precision, 4 bytes a number, as in simulations and real runs, or with ``precision: bf16``
parameters and gradients in 2 beside a master copy; a payload without ``workload.layer_profile`` counts as the
model. On an island of several GPUs everything is sharded
evenly.
"""

from __future__ import annotations

import math
from typing import Final

from ..config.units import format_bytes
from ..errors import InputError
from ..network.build import build_network
from ..records.summary import MemoryRecord
from ..schemes import find_scheme
from ..schemes.common.held import Sizes
from ..workloads import find_task
from ..workloads.layers.layer_settings import FLOAT_BYTES
from .batches import batch_sizes
from .entries import SchemeEntry, WorkloadEntry
from .parts import Cluster

GATHERED_COPIES: Final = 2
"""Copies of the largest layer on an island: parameters and gradients, gathered while it is computed."""


def device_memory(
    workload: WorkloadEntry, cluster: Cluster, entry: SchemeEntry, seed: int
) -> MemoryRecord | None:
    """Peak memory of each device of a worker, in parts; None if the scheme does not declare it.

    None, too, if the size of the model is not known.
    """
    scheme, numbers = find_scheme(entry.name), _num_parameters(workload, seed)
    if scheme.held is None or not numbers:
        return None
    network = build_network(cluster.network, cluster.workers)
    units = scheme.units(entry.options, network)
    profile = workload.layer_profile
    layers: tuple[float, ...]
    if profile is not None:
        layers = tuple(each.parameters * workload.number_bytes for each in profile.layers)
    else:
        buckets = scheme.num_buckets(entry.options, workload.payload) if workload.payload else 0
        layers = tuple((workload.payload or 0.0) / buckets for _ in range(buckets))
    sizes = Sizes(cluster.workers, (entry.optimizer or workload.optimizer).num_moments, units, layers)
    gpus = cluster.island.gpus if cluster.island is not None else 1
    held, short = scheme.held(entry.options, sizes), workload.number_bytes
    copies = {
        "parameters": short * held.parameters,
        "gradients": short * held.gradients,
        "optimiser": FLOAT_BYTES * held.optimizer,
        "anchors": FLOAT_BYTES * held.anchors,
        "outer momentum": FLOAT_BYTES * held.outer_momentum,
        "in flight": short * held.in_flight,
        "master copy": FLOAT_BYTES * held.master if short < FLOAT_BYTES else 0.0,
    }
    parts = {name: numbers / gpus * each for name, each in copies.items() if each}
    left_out = ["what the library keeps for itself"]
    if gpus > 1 and profile is not None:
        largest = max(layer.parameters for layer in profile.layers)
        parts["the layer that is gathered"] = float(GATHERED_COPIES * short * largest)
    elif gpus > 1:
        left_out.append("layers gathered inside an island (which need workload.layer_profile)")
    outputs = sum(layer.outputs for layer in profile.layers) if profile is not None else 0
    if outputs:
        examples = max(batch_sizes(workload, cluster, seed))
        parts["outputs of layers"] = examples * outputs * short / gpus
        left_out.append("activations inside layers, as if computed again in the backward pass")
    else:
        left_out.append("activations")
    return MemoryRecord(
        total_bytes=math.fsum(parts.values()), parts=parts, left_out=left_out,
        limit_bytes=cluster.device_memory,
    )  # fmt: skip


def check_device_memory(workload: WorkloadEntry, cluster: Cluster, entry: SchemeEntry, seed: int) -> None:
    """Raise ``InputError`` if a device cannot hold its parts, with the sum spelled out."""
    if cluster.device_memory is None:
        return
    memory = device_memory(workload, cluster, entry, seed)
    if memory is not None and memory["total_bytes"] > cluster.device_memory:
        parts = " + ".join(f"{name} {format_bytes(each)}" for name, each in memory["parts"].items())
        of_host = cluster.network.host is not None and cluster.network.host.memory is not None
        key = "cluster.network.host.memory" if of_host else "cluster.memory"
        island = "cluster.island"
        if cluster.network.gpus > 1:
            island += ", in the place of cluster.network.host: workers are then whole islands"
        raise InputError(
            f"a worker's device would hold {format_bytes(memory['total_bytes'])} = {parts}, and has "
            f"{format_bytes(cluster.device_memory)}; give it more ({key}), or shard a worker over more GPUs "
            f"({island}), or the model over the workers (the scheme sharded)"
        )


def _num_parameters(workload: WorkloadEntry, seed: int) -> float:
    """Numbers of a model; 0 if not known."""
    if workload.layer_profile is not None:
        return float(workload.layer_profile.num_parameters)
    if workload.payload is not None:
        return workload.payload / workload.number_bytes
    return float(find_task(workload.task).facts(workload.options, seed).num_parameters)
