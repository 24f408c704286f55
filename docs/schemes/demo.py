"""DeMo: the fast part of each worker's momentum travels, the rest stays (Peng et al., arXiv 2411.19870).

The momentum is kept in the space of a cosine transform of chunks of 64 elements, m <- decay m + lr g. Its
largest elements are gathered from all and leave m; the step is lr times the sign of their mean. The paper
takes the largest of each chunk; here they are the largest of all.
"""

import math

import torch

from paceline import CompressedAllReduce, Compression

CHUNK = 64


async def demo(worker, share: float = 0.5, decay: float = 0.999):
    """Sign SGD along the parts of the workers' momenta that are largest in frequency space."""
    x = worker.start
    d = x.shape[-1]
    row = torch.arange(CHUNK, dtype=torch.float64)
    cosines = torch.cos(math.pi / CHUNK * (row + 0.5) * row[:, None]) * math.sqrt(2 / CHUNK)
    cosines[0] /= math.sqrt(2)
    cosines = cosines.to(x)
    average = CompressedAllReduce(worker, Compression.model_validate({"top_k": {"share": share}}))
    async for k in worker.steps():
        lr = worker.optimizer.lr_at(k)
        gradient = torch.nn.functional.pad(await worker.gradient(x), (0, -d % CHUNK))
        waves = gradient.unflatten(-1, (-1, CHUNK)) @ cosines.T
        if average.left is not None:
            average.left = decay * average.left
        mean = await average.all_reduce(lr * waves.flatten(-2), k)
        step = (mean.unflatten(-1, (-1, CHUNK)) @ cosines).flatten(-2)[..., :d]
        x = x - lr * step.sign()
        await worker.publish(k, x, averaged=x)
