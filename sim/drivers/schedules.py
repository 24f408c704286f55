"""Which table of messages a job's collective follows: the same under every clock."""

from __future__ import annotations

from typing import Any

from ..collectives import algorithms
from ..collectives.algorithms import Part
from ..collectives.registry import all_reduce_named
from ..program import operations as ops
from ..program.averaging import root_of
from ..program.encoding import Encoded
from ..program.strips import strip_length
from .job import Job


def part_of(job: Job, operation: ops.Operation[Any], members: tuple[int, ...], rank: int) -> Part:
    """The part of ``rank`` in a collective among ``members``.

    Raises:
        SchemeError: the root of a broadcast is not one of the members.
    """
    as_gloo = job.all_reduce == "gloo_ring"
    match operation:
        case ops.AllReduce(value=value):
            found = algorithms.among(all_reduce_named(job.all_reduce), members, job.num_bytes(value))
        case ops.ReduceScatter(value=Encoded() as value):
            found = algorithms.among(algorithms.direct_reduce_scatter, members, job.num_bytes(value))
        case ops.ReduceScatter(value=value):
            found = algorithms.among(algorithms.ring_reduce_scatter, members, job.num_bytes(value))
        case ops.GatherStrips(value=value, length=length):
            per_element = job.ratio(value) * job.bytes_per_parameter
            if as_gloo:
                strip_bytes = round(strip_length(length, len(members)) * per_element)
                found = algorithms.among(algorithms.gloo_all_gather, members, strip_bytes)
            else:
                num_bytes = round(length * per_element)
                found = algorithms.among(algorithms.ring_gather_chunks, members, num_bytes)
        case ops.AllGather(value=value):
            gather = algorithms.gloo_all_gather if as_gloo else algorithms.ring_all_gather
            found = algorithms.among(gather, members, value.numel() * value.element_size())
        case ops.Broadcast(value=value):
            spread = algorithms.gloo_broadcast if as_gloo else algorithms.binomial_broadcast
            root = members.index(root_of(operation, rank, members))
            found = algorithms.among(spread, members, job.num_bytes(value), root)
        case _:
            found = algorithms.among(algorithms.dissemination_barrier, members)
    return found[rank]
