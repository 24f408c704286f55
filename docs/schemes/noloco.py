"""NoLoCo: DiLoCo without an all-reduce of all: outer steps with one random other worker (arXiv 2506.10911).

With the outer model t_i and local model x_i of a worker, means over a random pair, every ``period`` steps:

    u_i <- momentum u_i + lr mean(x - t) + lr (mean(t) - t_i),   t_i <- t_i + u_i,   x_i <- t_i
"""

import random

import torch


async def noloco(worker, period: int = 50, lr: float = 0.7, momentum: float = 0.5):
    """DiLoCo in random pairs: every ``period`` steps an outer step with the mean of two workers."""
    x = outer = worker.start
    state = worker.optimizer.init(x)
    velocity = torch.zeros_like(x)
    async for k in worker.steps():
        x, state = worker.optimizer.update(x, await worker.gradient(x), state)
        if (k + 1) % period == 0:
            ranks = list(range(worker.size))
            random.Random(f"{worker.seed} pairs {k}").shuffle(ranks)
            pairs = tuple(tuple(ranks[i : i + 2]) for i in range(0, worker.size, 2))
            means = await worker.all_reduce(torch.cat([outer, x - outer], dim=-1), pairs)
            mean, change = means.chunk(2, dim=-1)
            velocity = momentum * velocity + lr * change + lr * (mean - outer)
            x = outer = outer + velocity
        await worker.publish(k, x)
