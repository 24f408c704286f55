"""DiLoCo with eager updates: the mean of the changes comes a round late, a worker's own at once (2502.12996).

With D_i(r) the change of worker i in round r, everybody steps along

    D_i(r) / n + mean of D(r-1) - D_i(r-1) / n

while the mean of D(r) is under way, so that a whole round hides it. (The rule is read from a summary.)
"""

import torch

from paceline import ops


async def eager(worker, period: int = 30, lr: float = 0.7, momentum: float = 0.9):
    """DiLoCo that applies its own change at once, and those of the others a period later."""
    x = outer = worker.start
    state = worker.optimizer.init(x)
    velocity = others = last = torch.zeros_like(x)
    under_way = None
    async for k in worker.steps():
        x, state = worker.optimizer.update(x, await worker.gradient(x), state)
        if (k + 1) % period == 0:
            own = outer - x
            if under_way is not None:
                others = await worker.wait(under_way) - last / worker.size
            under_way, last = await worker.begin(ops.AllReduce(own)), own
            change = own / worker.size + others
            velocity = momentum * velocity + change
            x = outer = outer - lr * (change + momentum * velocity)
        await worker.publish(k, x)
    if under_way is not None:
        await worker.wait(under_way)
