"""PowerSGD: gradients travel as two thin matrices (Vogels et al., NeurIPS 2019, arXiv 1905.13727).

A matrix's gradient, with what was lost so far, is M: P = M Q, averaged and orthonormalised; Q = M^T P,
averaged; all step along P Q^T, and keep M - P Q^T. A kernel is a matrix of its outputs; vectors go whole.
"""

import torch


async def powersgd(worker, rank: int = 4):
    """Synchronous SGD along an approximation of the gradients' mean by matrices of a small rank."""
    x = worker.start
    state, lost, lead = worker.optimizer.init(x), torch.zeros_like(x), x.shape[:-1]
    matrices = [each for each in worker.parameters if len(each.shape) > 1]
    plain = torch.ones(x.shape[-1], dtype=torch.bool, device=x.device)
    random, q = torch.Generator().manual_seed(worker.seed), []
    for each in matrices:
        plain[each.start : each.stop] = False
        rows, columns = each.of(x).flatten(len(lead) + 1).shape[-2:]
        q.append(torch.randn(columns, min(rank, rows, columns), generator=random).to(x).expand(*lead, -1, -1))

    async def averaged(parts):
        flat = [part.flatten(len(lead)) for part in parts]
        mean = await worker.all_reduce(torch.cat(flat, dim=-1))
        pieces = mean.split([part.shape[-1] for part in flat], dim=-1)
        return [piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)]

    async for k in worker.steps():
        own = lost + await worker.gradient(x)
        m = [each.of(own).flatten(len(lead) + 1) for each in matrices]
        *p, others = await averaged([*(a @ b for a, b in zip(m, q, strict=True)), own[..., plain]])
        p = [torch.linalg.qr(each).Q for each in p]
        q = await averaged([a.mT @ b for a, b in zip(m, p, strict=True)]) if m else []
        gradient = torch.empty_like(own)
        gradient[..., plain] = others
        for each, a, b in zip(matrices, p, q, strict=True):
            gradient[..., each.start : each.stop] = (a @ b.mT).flatten(len(lead))
        lost = own - gradient
        x, state = worker.optimizer.update(x, gradient, state)
        await worker.publish(k, x, averaged=x)
