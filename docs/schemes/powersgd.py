"""PowerSGD: gradients travel as two thin matrices (Vogels et al., NeurIPS 2019, arXiv 1905.13727).

The gradient, with what was lost so far, is one square matrix M here, where the paper has one for each layer:
P = M Q, averaged and orthonormalised; Q = M^T P, averaged; all step along P Q^T, and keep M - P Q^T.
"""

import math

import torch


async def powersgd(worker, rank: int = 4):
    """Synchronous SGD along an approximation of the gradients' mean by matrices of a small rank."""
    x = worker.start
    state = worker.optimizer.init(x)
    d = x.shape[-1]
    side = math.ceil(math.sqrt(d))
    thin = min(rank, side)
    q = torch.randn(side, thin, generator=torch.Generator().manual_seed(worker.seed), dtype=x.dtype)
    q = q.expand(*x.shape[:-1], side, thin)
    lost = torch.zeros_like(x)
    async for k in worker.steps():
        own = lost + await worker.gradient(x)
        matrix = torch.nn.functional.pad(own, (0, side * side - d)).unflatten(-1, (side, side))
        p = await worker.all_reduce((matrix @ q).flatten(-2))
        p = torch.linalg.qr(p.unflatten(-1, (side, thin))).Q
        q = (await worker.all_reduce((matrix.mT @ p).flatten(-2))).unflatten(-1, (side, thin))
        gradient = (p @ q.mT).flatten(-2)[..., :d]
        lost = own - gradient
        x, state = worker.optimizer.update(x, gradient, state)
        await worker.publish(k, x, averaged=x)
