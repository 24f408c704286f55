"""How many bytes a collective counts for: those of its schedule in the simulator."""

from __future__ import annotations

from typing import Any

from sim import collectives
from sim import operations as ops
from sim.job import Job

_SCALAR_BYTES = 8


def collective_bytes(job: Job, operation: ops.Operation[Any], rank: int) -> int:
    """Payload that ``rank`` sends in a collective."""
    n = job.workers
    match operation:
        case ops.AllReduce(value=value):
            schedule = collectives.ALL_REDUCE[job.all_reduce](n, job.num_bytes(value))
        case ops.AllGather(value=value):
            schedule = collectives.ring_all_gather(n, _SCALAR_BYTES * value.numel())
        case ops.Broadcast(value=value, root=root):
            schedule = collectives.binomial_broadcast(n, job.num_bytes(value), root)
        case _:
            schedule = collectives.dissemination_barrier(n)
    return sum(size for each in schedule.rounds[rank] for _, size in each.sends)
