"""SparseLoCo: DiLoCo whose changes travel as their largest elements, with error feedback (arXiv 2508.15706).

With e what was not sent so far, every ``period`` steps:  e <- decay e + (t - x_i), the largest elements of e
are gathered from all and leave e, and t steps along their mean. The paper takes them from chunks of 4,096
elements and rounds them to 2 bits; here they are the largest of all, with 32 bits.
"""

from paceline import CompressedAllReduce, Compression


async def sparseloco(worker, period: int = 30, share: float = 0.015625, decay: float = 0.95, lr: float = 1.0):
    """DiLoCo whose changes travel as their largest elements alone."""
    x = outer = worker.start
    state = worker.optimizer.init(x)
    average = CompressedAllReduce(worker, Compression.model_validate({"top_k": {"share": share}}))
    async for k in worker.steps():
        x, state = worker.optimizer.update(x, await worker.gradient(x), state)
        averages = (k + 1) % period == 0
        if averages:
            if average.left is not None:
                average.left = decay * average.left
            x = outer = outer - lr * await average.all_reduce(outer - x, k)
        await worker.publish(k, x, averaged=x if averages else None)
