"""Which table of messages a job's collective follows: the same under every clock."""

from __future__ import annotations

from typing import Any

from sim import collectives
from sim import operations as ops
from sim.job import Job


def schedule_of(job: Job, operation: ops.Operation[Any]) -> collectives.Schedule:
    """The schedule of an all-reduce, an all-gather, a broadcast or a barrier."""
    n = job.workers
    as_gloo = job.all_reduce == "gloo_ring"
    match operation:
        case ops.AllReduce(value=value):
            return collectives.ALL_REDUCE[job.all_reduce](n, job.num_bytes(value))
        case ops.AllGather(value=value):
            gather = collectives.gloo_all_gather if as_gloo else collectives.ring_all_gather
            return gather(n, value.numel() * value.element_size())
        case ops.Broadcast(value=value, root=root):
            spread = collectives.gloo_broadcast if as_gloo else collectives.binomial_broadcast
            return spread(n, job.num_bytes(value), root)
        case _:
            return collectives.dissemination_barrier(n)
