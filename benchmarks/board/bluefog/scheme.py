"""BlueFog's averages of models: they start after the forward pass and must end with the backward pass."""

from __future__ import annotations

from functools import lru_cache

from paceline.sim.program.operations import Mix
from paceline.sim.program.pattern import Pattern
from paceline.sim.program.worker import Worker


@lru_cache(maxsize=64)
def inner_outer(k: int, workers: int, gpus: int) -> Pattern:
    """One peer each: of every host one GPU sends to another host, the others inside; both to 2^j further."""
    hosts, leaving = workers // gpus, k % gpus
    receiver = {}
    for rank in range(workers):
        host, gpu = divmod(rank, gpus)
        if hosts > 1 and gpu == leaving:
            receiver[rank] = (host + _distance(k, hosts)) % hosts * gpus + gpu
        else:
            staying = [(gpu + j) % gpus for j in range(1, gpus) if hosts == 1 or (gpu + j) % gpus != leaving]
            receiver[rank] = host * gpus + staying[_distance(k, len(staying) + 1) - 1]
    return _from_receivers(receiver, workers)


@lru_cache(maxsize=64)
def between_hosts(k: int, workers: int, gpus: int) -> Pattern:
    """The first GPU of each host sends to the host 2^j further; the others to nobody."""
    step = _distance(k, workers // gpus) * gpus
    return _from_receivers({rank: (rank + step) % workers for rank in range(0, workers, gpus)}, workers)


def _distance(k: int, members: int) -> int:
    """2^(k mod log2 members), rounded up."""
    return int(2 ** (k % (members - 1).bit_length())) if members > 2 else 1


def _from_receivers(receiver: dict[int, int], workers: int) -> Pattern:
    sources: list[tuple[int, ...]] = [()] * workers
    for sender, rank in receiver.items():
        sources[rank] = (sender,)
    return Pattern(
        own=tuple(0.5 if senders else 1.0 for senders in sources),
        sources=tuple(sources),
        weights=tuple((0.5,) * len(senders) for senders in sources),
    )


async def bluefog(worker: Worker, hierarchical: bool = False) -> None:
    """x_i(k+1) = sum_j W_ij(k) x_j(k) - d_i(k), averaged beside the backward pass; hierarchical: hosts."""
    x, state = worker.start, worker.optimizer.init(worker.start)
    gpus = min(worker.hosts.count(worker.hosts[0]), worker.size)
    hosts = tuple(tuple(range(first, first + gpus)) for first in range(0, worker.size, gpus))
    async for k in worker.steps():
        await worker.forward(0, x.shape[-1])
        await worker.barrier()  # rank 0 starts a tensor's average once it has heard from all ranks
        sent = await worker.all_reduce(x, hosts) if hierarchical else x
        graph = between_hosts if hierarchical else inner_outer
        averaging = await worker.begin(Mix(graph(k, worker.size, gpus), sent))
        gradient = await worker.gradient(x)
        averaged = await worker.wait(averaging)
        if hierarchical:
            averaged = await worker.broadcast(averaged, worker.rank // gpus * gpus, hosts)
        x, state = worker.optimizer.update(averaged, gradient, state)
        await worker.publish(k, x)
