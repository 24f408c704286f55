"""Averages of encoded or plain values over all workers.

    average = CompressedAllReduce(worker, options.compression)
    mean = await average.all_reduce(gradient, k)

Compression. ``bf16`` and ``fp16`` values can be summed in transit: an average is the transport's own
all-reduce on half the bytes, as with DistributedDataParallel's hooks, Horovod's ``Compression.fp16`` and
hivemind's ``Float16Compression``. A value is rounded, divided by n, and rounded again, and so is each sum.

With ``qsgd`` an average has two phases, which move encoded shards: every worker sends shard j to worker j,
which decodes and averages its arrivals; then all gather the averages, encoded again. So all have the same
bits, and a worker sends 2 (n - 1)/n times the encoded value, as in a ring all-reduce. With ``top_k`` all
encoded values are gathered instead, since the mean has other elements than each of them: (n - 1) times the
encoded value. The unsent part of v stays on the worker and joins the next value (error feedback):
sent = Q(v + e),  e <- v + e - sent.

Where ``Worker.sums_inside`` says so, the workers of each host or site first sum their plain values: a
reduce-scatter inside leaves each with a shard of their mean. It encodes that alone, and keeps the unsent part
of it; workers in the same place of all units average their shards as above, and all gather them inside. So
between units go the codes of one value per unit, not of one per worker (BytePS: Jiang et al., OSDI 2020,
where a machine's GPUs sum before they push; INTELLECT-1, arXiv 2412.01152, int8 between nodes of several
GPUs).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor

from ...config.units import BoundedSeconds
from ...program import operations as ops
from ...program.averaging import mean_model
from ...program.encoding import HALF, Codec, Compression, Encoded, Payload, TopK, as_shard, decoded, encode
from ...program.groups import Groups, shards
from ...program.pattern import Pattern
from ...program.worker import Worker
from .held import Sizes, encoded_share
from .inside import Units


@dataclass
class CompressedAllReduce:
    """Averages over the workers, encoded where there is a compression.

    Attributes:
        worker: the worker that takes part with it.
        compression: a scheme's option of that name; None: values are sent plain.
        whole, shards: for shards: number of elements of the whole value, and number of shards.
        left: with ``top_k``, this worker's unsent part of the values so far, [..., d]; None at first.
        between: where units encode once for all their members, the average of this worker's shards among
            them; None at first.
    """

    worker: Worker
    compression: Compression | None = None
    whole: int = 0
    shards: int = 1
    left: Tensor | None = None
    between: CompressedAllReduce | None = None

    @cached_property
    def _units(self) -> Units:
        """Units that sum their values before encoding; shards of a unit's value are sums already."""
        return Units(self.worker, self.worker.sums_inside if self.shards == 1 else None)

    def _between_units(self, value: Tensor) -> CompressedAllReduce:
        if self.between is None:
            shards = self._units.members
            self.between = CompressedAllReduce(self.worker, self.compression, value.shape[-1], shards)
        return self.between

    def _adds_inside(self, groups: Groups | None) -> bool:
        """Whether members of a unit sum their values first: in averages of all workers."""
        return groups is None and self._units.across is not None

    @property
    def codec(self) -> Codec | None:
        """The codec of the values; None: they are sent plain."""
        return self.compression.codec if self.compression is not None else None

    @property
    def adds(self) -> bool:
        """Whether values can be summed in transit."""
        return self.codec is None or isinstance(self.codec, str)

    def payload(self, value: Tensor, purpose: str, index: int) -> Payload:
        """``value`` as a message; random numbers are draw ``index`` of the stream ``purpose``."""
        if self.codec is not None:
            return self._encoded(value, purpose, index)
        return value if self.shards == 1 else as_shard(value, self.whole, self.shards)

    def change(self, value: Tensor, purpose: str, index: int) -> Payload:
        """``payload`` of a change [..., d], and with ``top_k`` of the unsent part of earlier ones."""
        if isinstance(self.codec, TopK):
            return self._fed_back(value, purpose, index)
        return self.payload(value, purpose, index)

    def _fed_back(self, value: Tensor, purpose: str, index: int) -> Encoded:
        """Encode ``value`` plus the unsent part of earlier ones; the new unsent part stays in ``left``."""
        whole = value if self.left is None else value + self.left
        encoded = self._encoded(whole, purpose, index)
        self.left = whole - decoded(encoded)
        return encoded

    def _encoded(
        self,
        value: Tensor,
        purpose: str,
        index: int,
        whole: int | None = None,
        shards: int = 1,
    ) -> Encoded:
        assert self.codec is not None
        if self.shards > 1:
            whole, shards = self.whole, shards * self.shards
        own_shape = value.shape[1:] if self.worker.vectorised else value.shape
        return encode(
            self.codec, value, lambda: self.worker.uniform(purpose, index, own_shape), whole, shards
        )

    def elements(self, length: int) -> float:
        """Number of model elements that a value [..., length] stands for, without the padding of a shard."""
        return length if self.shards == 1 else self.whole / self.shards

    def share(self, length: int, groups: Groups | None = None) -> float:
        """This worker's share of a value's elements."""
        return self.elements(length) / self.worker.members(groups).shape[-1]

    async def spends(self, encoded: float = 0, decoded: float = 0, pattern: Pattern | None = None) -> None:
        """Pass the time of encoding and decoding these numbers of elements of values.

        Of top-k values only the largest elements are decoded. In a ``pattern`` each neighbour sends a value.
        """
        codec = self.codec
        if codec is None or isinstance(codec, str):  # rounding to 16 bits takes no time
            return
        values: float | Tensor = 1
        if pattern is not None:
            counts = [len(pattern.sources[rank]) for rank in self.worker.ranks]
            values = torch.tensor(counts) if self.worker.vectorised else counts[0]
        came = decoded * (codec.share if isinstance(codec, TopK) else 1)
        await ops.Encode(codec, encoded + came * values)

    async def all_reduce(self, value: Tensor, index: int, groups: Groups | None = None) -> Tensor:
        """The mean of ``value`` [..., d] over this worker's group; of a rounded one an unbiased estimate.

        ``index`` numbers the random draw, a different one each time; ``groups``: see ``ops.AllReduce``.
        """
        if self.adds:
            return await self.worker.all_reduce(self.payload(value, "mean/out", index), groups)
        length = value.shape[-1]
        if self._adds_inside(groups):
            between = self._between_units(value)
            mean = await between.all_reduce(await self._units.scatter(value), index, self._units.across)
            return await self._units.gather(mean, length)
        elements = self.elements(length)
        await self.spends(encoded=elements)
        if isinstance(self.codec, TopK):
            gathered = await self.gathering_all(value, index, groups)
            await self.spends(decoded=elements * (gathered.shape[-1] // length))
            return self.mean_of_gathered(gathered, length)
        shard = await self.scattering(value, index, groups)
        await self.spends(encoded=self.share(length, groups), decoded=elements)
        mean = await self.gathering(shard, length, index, groups)
        await self.spends(decoded=elements)
        return mean

    async def begin(self, value: Tensor, index: int, groups: Groups | None = None) -> AverageUnderWay:
        """Begin ``all_reduce`` without waiting, except for the parts inside units, here and at the end."""
        operation: ops.Operation[Any]
        if self.adds:
            operation = ops.AllReduce(self.payload(value, "mean/out", index), groups)
        elif self._adds_inside(groups):
            shard = await self._units.scatter(value)
            begun = await self._between_units(value).begin(shard, index, self._units.across)
            return replace(begun, gathers=partial(self._units.gather, length=value.shape[-1]))
        else:
            await self.spends(encoded=self.elements(value.shape[-1]))
            form = self.gathering_all if isinstance(self.codec, TopK) else self.scattering
            operation = form(value, index, groups)
        return AverageUnderWay(self, await self.worker.begin(operation), index, value.shape[-1], groups)

    def scattering(self, value: Tensor, index: int, groups: Groups | None = None) -> ops.ReduceScatter:
        """First half of an encoded average: every worker gets the mean of a shard of ``value`` [..., d]."""
        length, members = value.shape[-1], self.worker.members(groups).shape[-1]
        table = self._encoded(shards(value, members), "mean/out", index, length, members)
        return ops.ReduceScatter(table, groups)

    def gathering(
        self, shard: Tensor, length: int, index: int, groups: Groups | None = None
    ) -> ops.AllGatherShards:
        """Second half: every worker gets all shards of the mean, each of which is [..., ceil(d / g)]."""
        members = self.worker.members(groups).shape[-1]
        encoded = self._encoded(shard, "mean/back", index, length, members)
        return ops.AllGatherShards(encoded, length, groups)

    def gathering_all(self, value: Tensor, index: int, groups: Groups | None = None) -> ops.AllGatherShards:
        """Gather all workers' encoded ``value`` [..., d] to [..., g d]; the unsent part stays in ``left``."""
        encoded = self._fed_back(value, "mean/out", index)
        return ops.AllGatherShards(encoded, value.shape[-1] * self.worker.members(groups).shape[-1], groups)

    @staticmethod
    def mean_of_gathered(gathered: Tensor, length: int) -> Tensor:
        """The mean [..., length] of the result of ``gathering_all``, summed in rank order."""
        return mean_model(torch.split(gathered, length, dim=-1))


@dataclass
class AverageUnderWay:
    """An average of values [..., d] in progress, while the worker does something else.

    One of encoded shards has two halves, one after the other: the second begins at ``go_on``.

    Attributes:
        handle: the half in progress.
        length: d.
        gathers: joins a mean of shards to a value; None: it is one.
    """

    average: CompressedAllReduce
    handle: ops.Handle
    index: int
    length: int
    groups: Groups | None = None
    gathers: Callable[[Tensor], Coroutine[Any, Any, Tensor]] | None = None

    async def go_on(self) -> None:
        """Wait for the first half and begin the second, if there is one."""
        if not isinstance(self.handle.operation, ops.ReduceScatter):
            return
        shard = await self.average.worker.wait(self.handle)
        share = self.average.share(self.length, self.groups)
        await self.average.spends(encoded=share, decoded=self.average.elements(self.length))
        gathering = self.average.gathering(shard, self.length, self.index, self.groups)
        self.handle = await self.average.worker.begin(gathering)

    async def wait(self) -> Tensor:
        """The mean [..., d]."""
        await self.go_on()
        mean: Tensor = await self.average.worker.wait(self.handle)
        values = mean.shape[-1] // self.length
        await self.average.spends(decoded=self.average.elements(self.length) * values)
        if isinstance(self.average.codec, TopK):
            mean = self.average.mean_of_gathered(mean, self.length)
        return mean if self.gathers is None else await self.gathers(mean)


def encodes_averages(options: Any) -> bool:
    """``encodes`` of a scheme with an option ``compression``."""
    compression: Compression | None = options.compression
    return compression is not None and compression.codec not in HALF


RoundTime = Annotated[
    BoundedSeconds,
    Field(description="time of each average on a worker besides its exchange: an outer step, software"),
]


def average_in_flight(compression: Compression | None, sizes: Sizes) -> float:
    """Models in flight in an average: the mean, codes, and with ``top_k`` all decoded values and ``left``."""
    encoded = encoded_share(compression)
    if compression is None or compression.codec in HALF:
        return 1 + encoded
    if isinstance(compression.codec, TopK):
        return 1 + encoded + sizes.workers
    # The second half sends a shard; units that sum first have shards of half a value at most.
    return 1 + max(encoded, (1 + encoded) / sizes.workers, 0.5)
