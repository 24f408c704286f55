"""Collective operations: the library's own, and a reduce-scatter spelled out.

(torch offers one for gloo, but it moves no fewer bytes than an all-reduce: torch 2.13, counted on loopback.)
Who carries them is another matter: ``paceline.realrun.transport.backend``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, BroadcastOptions

from paceline.sim.program import operations as ops
from paceline.sim.program.averaging import mean_model, root_of
from paceline.sim.program.encoding import Encoded, Payload, decoded
from paceline.sim.program.groups import concatenate_shards, shard, shard_length

from .backend import Backend, Swap, WaitFunction
from .buffers import StagingBuffers, own_bytes, unpacked


class Begun(NamedTuple):
    """A collective under way.

    Attributes:
        wait: blocks until it is complete; for a helper thread. Raises ``PeerGone``.
        result: afterwards, once, in the driver's thread: this worker's reply.
    """

    wait: WaitFunction
    result: Callable[[], Any]


class Collectives:
    """One worker's collectives.

    Args:
        rank: this worker.
        buffers: of this worker; a value that is somewhere else is copied there, and its result back.
        carrier: who carries them.
    """

    def __init__(self, rank: int, buffers: StagingBuffers, carrier: Backend) -> None:
        self._rank = rank
        self._buffers = buffers
        self._carrier = carrier

    def begin(self, operation: ops.Operation[Any], members: tuple[int, ...], number: int) -> Begun:
        """Begin the ``number``-th collective of its kind among ``members``.

        Raises:
            PeerGone: a connection is closed already.
        """
        match operation:
            case ops.AllReduce(value=value):
                return self._all_reduce(value, members)
            case ops.ReduceScatter(value=Encoded() as value):
                return self._exchange_shards(value, members, number)
            case ops.ReduceScatter(value=Tensor() as value):
                return self._reduce_scatter(value, members, number)
            case ops.AllGatherShards(value=value, length=length):
                return self._all_gather_shards(value, length, members)
            case ops.AllGather(value=value):
                return self._all_gather(value, members)
            case ops.Broadcast(value=value):
                return self._broadcast(value, root_of(operation, self._rank, members), members)
            case _:
                return Begun(_nothing if len(members) == 1 else self._carrier.barrier(members), _nothing)

    def _library(self, members: tuple[int, ...], begin: Callable[[Any], dist.Work]) -> WaitFunction:
        return _nothing if len(members) == 1 else self._carrier.collective(members, begin)

    def _all_reduce(self, value: Tensor, members: tuple[int, ...]) -> Begun:
        """The library's sum of what each member's share of the mean is."""
        if self._buffers.travels_itself(value):
            own = torch.empty(value.shape, dtype=value.dtype, device=value.device)  # contiguous
            torch.div(value, len(members), out=own)
            wait = self._library(members, lambda group: group.allreduce([own], AllreduceOptions()))
            return Begun(wait, lambda: own)
        buffer = self._buffers.copy(value)

        def result() -> Tensor:
            mean = (buffer[: value.numel()] / len(members)).view(value.shape)
            self._buffers.give_back(buffer)
            return mean.to(value.device)

        return Begun(
            self._library(members, lambda group: group.allreduce([buffer], AllreduceOptions())), result
        )

    def _broadcast(self, value: Payload, root: int, members: tuple[int, ...]) -> Begun:
        buffer = self._buffers.packed(value, self._buffers.wire_bytes(value))
        options = BroadcastOptions()
        options.rootRank = members.index(root)

        def result() -> Tensor:
            found = decoded(value) if root == self._rank else unpacked(buffer, value)
            self._buffers.give_back(buffer)
            return found

        return Begun(self._library(members, lambda group: group.broadcast([buffer], options)), result)

    def _all_gather(self, value: Tensor, members: tuple[int, ...]) -> Begun:
        """Without padding: these are a few numbers."""
        own = value.to(self._buffers.device).contiguous()
        parts = [own] if len(members) == 1 else [torch.empty_like(own) for _ in members]
        wait = self._library(members, lambda group: group.allgather([parts], [own], AllgatherOptions()))
        return Begun(wait, lambda: torch.stack(parts).to(value.device))

    def _all_gather_shards(self, value: Payload, length: int, members: tuple[int, ...]) -> Begun:
        own = self._buffers.packed(value, self._buffers.wire_bytes(value))
        parts = [own] if len(members) == 1 else [torch.empty_like(own) for _ in members]

        def result() -> Tensor:
            whole = concatenate_shards([unpacked(part, value) for part in parts], length)
            self._buffers.give_back(own)
            return whole

        return Begun(
            self._library(members, lambda group: group.allgather([parts], [own], AllgatherOptions())), result
        )

    def _exchange_shards(self, value: Encoded, members: tuple[int, ...], number: int) -> Begun:
        """Every shard straight to the member that averages it, which decodes them first."""
        n, position = len(members), members.index(self._rank)
        rows = [value.row(i) for i in range(n)]
        room = max(own_bytes(rows[0]), -(-self._buffers.wire_bytes(value) // n))
        others = [(position + i) % n for i in range(1, n)]
        arriving = {i: self._buffers.take(torch.uint8, room) for i in others}
        leaving = [self._buffers.packed(rows[i], room) for i in others]
        wait = self._carrier.exchange(
            [(arriving[i], members[i]) for i in others],
            [(leaving[k], members[i]) for k, i in enumerate(others)],
            number,
        )

        def result() -> Tensor:
            found = [decoded(rows[i]) if i == position else unpacked(arriving[i], rows[i]) for i in range(n)]
            for buffer in (*arriving.values(), *leaving):
                self._buffers.give_back(buffer)
            return mean_model(found)

        return Begun(wait, result)

    def _reduce_scatter(self, value: Tensor, members: tuple[int, ...], number: int) -> Begun:
        """Partial sums around a ring of all shards but one: as ``ring_reduce_scatter`` of the simulator."""
        n, position = len(members), members.index(self._rank)
        length = shard_length(value.shape[-1], n)
        count = max(length, -(-self._buffers.wire_bytes(value) // (n * value.element_size())))
        arriving, leaving = (self._buffers.take(value.dtype, count) for _ in range(2))
        source, destination = members[(position + 1) % n], members[(position - 1) % n]
        own = value.to(self._buffers.device)

        def go_round(swap: Swap) -> None:
            arriving[:length].copy_(shard(own, (position + 1) % n, n))
            for i in range(n - 1):
                leaving[:length].copy_(arriving[:length])
                swap([(arriving, source)], [(leaving, destination)])
                arriving[:length] += shard(own, (position + 2 + i) % n, n)

        def result() -> Tensor:
            mean = arriving[:length] / n
            self._buffers.give_back(arriving)
            self._buffers.give_back(leaving)
            return mean.to(value.device)

        return Begun(self._carrier.rounds(go_round, number), result)


def _nothing() -> None:
    """There is nobody to wait for."""
