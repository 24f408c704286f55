"""Buckets of a gradient: filled in backward order, sent at once or by a communication thread.

A bucket takes the layers of a backward pass, the last one first, until it has its size; the first may be
smaller, so that sending begins soon (DistributedDataParallel: 1 MB, then 25 MB).

*Order.* Without one each bucket is all-reduced as soon as it is filled, beside the others. A communication
thread sends one at a time: ``ready_first`` in the order of filling, or ``needed_first``: among the buckets
filled on all workers, the one whose layers the next forward pass needs first. For that workers gather before
each bucket how many everybody has filled, a number each. The thread takes no computing time.

*Next forward pass.* It waits for the buckets one after another, in forward order, and passes a bucket's
layers as soon as their mean gradient has arrived. The update is that of waiting for all of them.

Source: Li et al., VLDB 2020 (buckets of DistributedDataParallel); Das et al., arXiv 1602.06709, and Peng et
al., SOSP 2019 (order by need); Sergeev and Del Balso, arXiv 1802.05799 (agreeing on what is ready).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ...program import operations as ops
from ...program.groups import Groups
from ...program.worker import Worker

SendOrder = Literal["ready_first", "needed_first"]
"""The order in which a communication thread sends buckets."""

BucketSizes = tuple[int, int]
"""Least elements of the first bucket, and of the others."""


def is_full(length: int, sent: int, missing: int, sizes: BucketSizes) -> bool:
    """Whether a bucket of ``length`` elements is sent, after ``sent`` others, ``missing`` still to go."""
    return length >= sizes[bool(sent)] or length == missing


def count_buckets(lengths: Iterable[int], sizes: BucketSizes) -> int:
    """Buckets of a gradient with layers of ``lengths``, in backward order."""
    missing, length, sent = sum(lengths := list(lengths)), 0, 0
    for each in lengths:
        length += each
        if is_full(length, sent, missing, sizes):
            missing, length, sent = missing - length, 0, sent + 1
    return sent


_FILLED = "bucket filled"
"""Signal to the thread that one more bucket is filled."""


@dataclass
class Bucket:
    """A part of a gradient.

    Attributes:
        number: 0, 1, ... in backward order.
        start, stop: its elements of the gradient.
        value: this worker's gradient [..., stop - start]; the mean, once a thread has averaged it.
        handle: of its all-reduce, where no thread does it.
    """

    number: int
    start: int
    stop: int
    value: Tensor
    handle: ops.Handle | None = None

    @property
    def averaged(self) -> str:
        """Signal that the bucket's mean has arrived."""
        return f"bucket {self.number} averaged"


class Buckets:
    """The buckets of one worker's gradients, step by step.

    The first bucket is full from ``first_bytes`` on, the others from ``bucket_bytes`` (0: with a layer each).
    Without an ``order`` there is no communication thread. With ``groups`` the mean is over the worker's own.
    """

    def __init__(
        self,
        worker: Worker,
        first_bytes: float,
        bucket_bytes: float,
        order: SendOrder | None,
        groups: Groups | None = None,
    ) -> None:
        self._worker = worker
        self._order = order
        self._groups = groups
        # Whole elements: equal buckets of a payload differ by one.
        self._full = int(first_bytes / worker.element_bytes), int(bucket_bytes / worker.element_bytes)
        self._under_way: list[Bucket] = []
        self._queue: list[Bucket] = []
        self._complete = False

    async def send(self, x: Tensor) -> None:
        """Compute a gradient at x [..., d] and begin to average it, bucket by bucket."""
        worker = self._worker
        backward = await worker.begin(ops.Gradient(x))
        filling: list[ops.Segment] = []
        length, missing = 0, x.shape[-1]
        async for segment in worker.segments(backward):
            filling.append(segment)
            length += segment.stop - segment.start
            if is_full(length, len(self._under_way), missing, self._full):
                missing -= length
                value = _concatenate([each.value for each in filling])
                bucket = Bucket(len(self._under_way), filling[-1].start, filling[0].stop, value)
                self._under_way.append(bucket)
                self._complete = not missing
                if self._order is None:
                    bucket.handle = await worker.begin(ops.AllReduce(value, self._groups))
                else:
                    self._queue.append(bucket)
                    await worker.signal(_FILLED)
                filling, length = [], 0

    async def mean(self, *, next_forward: bool) -> Tensor:
        """Wait for the mean gradient [..., d]; ``next_forward``: run that pass as layers arrive."""
        worker, means = self._worker, {}
        for bucket in reversed(self._under_way) if next_forward else self._under_way:
            if bucket.handle is None:
                await worker.await_signal(bucket.averaged)
                means[bucket.number] = bucket.value
            else:
                means[bucket.number] = await worker.wait(bucket.handle)
            if next_forward:
                await worker.forward(bucket.start, bucket.stop)
        self._under_way = []
        return _concatenate([means[number] for number in range(len(means))])

    async def carry(self) -> None:
        """Average the buckets one at a time, in the order of the thread: a service."""
        sent: set[int] = set()
        filled = 0  # on all workers
        while True:
            if self._order == "needed_first":
                filled = await self._filled_everywhere(filled, len(sent))
                bucket = next(each for each in self._queue[filled - 1 :: -1] if each.number not in sent)
            else:
                await self._wait_for_more_than(len(sent))
                bucket = self._queue[len(sent)]
            bucket.value = await self._worker.all_reduce(bucket.value)
            sent.add(bucket.number)
            if self._complete and len(sent) == len(self._queue):
                sent, filled = set(), 0
                self._queue, self._complete = [], False
            await self._worker.signal(bucket.averaged)

    async def _filled_everywhere(self, filled: int, sent: int) -> int:
        """Number of buckets filled on all workers, equal on all; at least ``filled`` and above ``sent``."""
        if self._complete and filled == len(self._queue):  # as on all workers
            return filled
        if filled == sent:
            await self._wait_for_more_than(filled)
        counts = await self._worker.all_gather(self._worker.start.new_full((1,), float(len(self._queue))))
        return int(counts.min())

    async def _wait_for_more_than(self, number: int) -> None:
        while len(self._queue) <= number:
            await self._worker.await_signal(_FILLED)


def _concatenate(parts: list[Tensor]) -> Tensor:
    """Join the parts of a gradient, which are in backward order: the last elements first."""
    return parts[0] if len(parts) == 1 else torch.cat(parts[::-1], dim=-1)
