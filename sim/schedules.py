"""Which table of messages a job's collective follows: the same under every clock."""

from __future__ import annotations

from typing import Any

from sim import collectives
from sim import operations as ops
from sim.collected import root_of
from sim.collectives import Part
from sim.encoding import Encoded
from sim.job import Job
from sim.own_collective import all_reduce_named
from sim.strips import strip_length


def part_of(job: Job, operation: ops.Operation[Any], members: tuple[int, ...], rank: int) -> Part:
    """The part of ``rank`` in a collective among ``members``.

    Raises:
        SchemeError: the root of a broadcast is not one of the members.
    """
    as_gloo = job.all_reduce == "gloo_ring"
    match operation:
        case ops.AllReduce(value=value):
            found = collectives.among(all_reduce_named(job.all_reduce), members, job.num_bytes(value))
        case ops.ReduceScatter(value=Encoded() as value):
            found = collectives.among(collectives.direct_reduce_scatter, members, job.num_bytes(value))
        case ops.ReduceScatter(value=value):
            found = collectives.among(collectives.ring_reduce_scatter, members, job.num_bytes(value))
        case ops.GatherStrips(value=value, length=length):
            per_element = job.ratio(value) * job.bytes_per_parameter
            if as_gloo:
                strip_bytes = round(strip_length(length, len(members)) * per_element)
                found = collectives.among(collectives.gloo_all_gather, members, strip_bytes)
            else:
                num_bytes = round(length * per_element)
                found = collectives.among(collectives.ring_gather_chunks, members, num_bytes)
        case ops.AllGather(value=value):
            gather = collectives.gloo_all_gather if as_gloo else collectives.ring_all_gather
            found = collectives.among(gather, members, value.numel() * value.element_size())
        case ops.Broadcast(value=value):
            spread = collectives.gloo_broadcast if as_gloo else collectives.binomial_broadcast
            root = members.index(root_of(operation, rank, members))
            found = collectives.among(spread, members, job.num_bytes(value), root)
        case _:
            found = collectives.among(collectives.dissemination_barrier, members)
    return found[rank]
