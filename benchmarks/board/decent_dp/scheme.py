"""Decent-DP: averages of small groups, each over the length of the next step (arXiv 2410.11998)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from paceline.sim.program.groups import Groups
from paceline.sim.program.operations import AllReduce, Handle
from paceline.sim.program.worker import Worker


def exponential(k: int, workers: int, gpus: int) -> Groups:
    """Pairs at a distance of 2^(k mod log2 n)."""
    distance = 2 ** (k % (workers.bit_length() - 1))
    return tuple((rank, rank + distance) for rank in range(workers) if not rank & distance)


def alternating_exponential_ring(k: int, workers: int, gpus: int) -> Groups:
    """Hosts alone at even steps, at odd ones pairs of hosts at a distance of 2^(k/2 mod log2 hosts)."""
    hosts = workers // gpus
    distance = 2 ** (k // 2 % (hosts.bit_length() - 1)) if k % 2 else 0
    first = [host for host in range(hosts) if not host & distance]
    return tuple(
        tuple(host * gpus + gpu for host in sorted({one, one + distance}) for gpu in range(gpus))
        for one in first
    )


GRAPHS: Final[dict[str, Callable[[int, int, int], Groups]]] = {
    "exponential": exponential,
    "alternating_exponential_ring": alternating_exponential_ring,
}


async def decent(worker: Worker, graph: str = "exponential") -> None:
    """Average each step's model in groups during the next step; add that step's update to the average."""
    x, state = worker.start, worker.optimizer.init(worker.start)
    gpus = worker.hosts.count(worker.hosts[0])
    averaging: Handle | None = None
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        if averaging is not None:
            x = await worker.wait(averaging)
        x, state = worker.optimizer.update(x, gradient, state)
        averaging = await worker.begin(AllReduce(x, GRAPHS[graph](k, worker.size, gpus)))
        await worker.publish(k, x)
    if averaging is not None:
        await worker.wait(averaging)
