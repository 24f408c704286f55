"""How a scheme's values travel: as they are, or compressed. One part for all schemes.

    wire = Wire(worker, options.compression)
    mean = await wire.all_reduce(gradient, k)

With a codec, an average is made of two steps, each of which moves encoded strips: everybody sends strip j
to worker j, which decodes and averages what it gets; then all gather the averages, encoded again. So all have
the same bits, and a worker sends 2 (n - 1)/n times the encoded value, as in a ring all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..program.encoding import Codec, Compression, Encoded, Payload, decoded, encode
from ..program.groups import Groups
from ..program.strips import strips
from ..program.worker import Worker

Tensor = torch.Tensor


def with_rest(mixed: Tensor, value: Tensor, rough: Payload) -> Tensor:
    """``mixed``, the average of what went out, with what the worker's own ``value`` lost on its way.

    So the mean of all workers stays as it is where the weights are doubly stochastic (Carli et al.,
    Automatica 2010).
    """
    return mixed + (value - decoded(rough)) if isinstance(rough, Encoded) else mixed


@dataclass(frozen=True)
class Wire:
    """One worker's way to the others.

    Attributes:
        worker: whose.
        compression: a scheme's option of that name; None: values travel as they are.
    """

    worker: Worker
    compression: Compression | None = None

    @property
    def codec(self) -> Codec | None:
        """How values are encoded, if they are."""
        return self.compression.codec if self.compression is not None else None

    def payload(self, value: Tensor, purpose: str, index: int) -> Payload:
        """A value ready to be sent; random numbers are draw ``index`` of the stream ``purpose``."""
        return value if self.codec is None else self._encoded(self.codec, value, purpose, index)

    def _encoded(
        self, codec: Codec, value: Tensor, purpose: str, index: int, elements: int | None = None
    ) -> Encoded:
        own_shape = value.shape[1:] if self.worker.stacked else value.shape
        return encode(codec, value, lambda: self.worker.uniform(purpose, index, own_shape), elements)

    async def all_reduce(self, value: Tensor, index: int, groups: Groups | None = None) -> Tensor:
        """The mean of ``value`` over this worker's group; of a compressed one an unbiased estimate.

        Args:
            value: [..., d].
            index: of the random numbers, a different one each time.
            groups: see ``paceline.sim.program.operations.AllReduce``.
        """
        if self.codec is None:
            return await self.worker.all_reduce(value, groups)
        length, members = value.shape[-1], self.worker.members(groups).shape[-1]
        table = self._encoded(self.codec, strips(value, members), "mean/out", index, length)
        strip = await self.worker.reduce_scatter(table, groups)
        return await self.worker.gather_strips(
            self._encoded(self.codec, strip, "mean/back", index), length, groups
        )
