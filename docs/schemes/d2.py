"""D2: gossip that unequal data do not bias (Tang et al., ICML 2018), on a ring.

x(k+1) = W (2 x(k) - x(k-1) - lr (g(k) - g(k-1))); the first step is that of gossip. The smallest eigenvalue
of W is above -1/3: each worker keeps half of its own model.
"""

from paceline import Pattern


async def d2(worker):
    """Decentralised SGD whose steps use what the last one did, so that unequal data do not bias it."""
    n = worker.size
    sources = tuple(tuple(sorted({(i - 1) % n, (i + 1) % n} - {i})) for i in range(n))
    ring = Pattern(
        own=tuple(0.5 if row else 1.0 for row in sources),
        sources=sources,
        weights=tuple((0.5 / len(row),) * len(row) if row else () for row in sources),
    )
    x = worker.start
    before = None
    async for k in worker.steps():
        step = worker.optimizer.lr_at(k) * await worker.gradient(x)
        moved = x - step if before is None else 2 * x - before[0] - (step - before[1])
        before = x, step
        x = await worker.mix(ring, moved)
        await worker.publish(k, x)
