"""All transfers of one worker in one run, over gloo and the backend, and its reusable staging buffers.

Mixes and collectives are the library's own, but for reduce-scatter, hierarchical all-reduce, and shards of
two. The first two are spelled out: torch's reduce-scatter on gloo moves no fewer bytes than an all-reduce
(torch 2.13, counted on loopback).

A value may stand for a larger model: its own bytes come first, padding follows. The parts of an encoded value
follow one another. Values out of the backend's reach are *staged*: copied to and from host memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import AllgatherOptions, AllreduceOptions, BroadcastOptions

from paceline.sim.collectives.algorithms import Sites, hierarchical_pieces
from paceline.sim.program import operations as ops
from paceline.sim.program.averaging import mean_model, root_of, share_in_half
from paceline.sim.program.encoding import Encoded, Payload, decoded, message_bytes, shard_bytes
from paceline.sim.program.groups import concatenate_shards, shard, shard_length
from paceline.sim.program.operations import ANY

from . import connections
from .backend import Backend, BatchedSendReceive, TransferInFlight, WaitFunction
from .connections import PROBE_TAG, PeerGone, message_tag, operation_tag
from .device import CPU


class StagingBuffers:
    """One worker's staging buffers on ``device``; with ``staging`` every value goes through them.

    ``element_bytes`` are the bytes that an element of the model stands for.
    """

    def __init__(self, element_bytes: float, device: torch.device = CPU, *, staging: bool = False) -> None:
        self.device = device
        self._element_bytes = element_bytes
        self._staging = staging
        self._free: dict[tuple[torch.dtype, int], list[Tensor]] = {}
        self.exceeded = False
        """Whether some value was larger than its nominal message; it cannot be sent smaller."""

    def message_bytes(self, value: Payload) -> int:
        """Bytes of one message with ``value``."""
        return self._at_least(tensor_bytes(value), message_bytes(value, self._element_bytes))

    def shard_bytes(self, shard: Payload, length: int, members: int) -> int:
        """Bytes of one message with one member's ``shard`` of a value [length]."""
        nominal = shard_bytes(shard, length, members, self._element_bytes)
        return self._at_least(tensor_bytes(shard), nominal)

    def _at_least(self, own: int, nominal: int) -> int:
        if own > nominal:
            self.exceeded = True
        return max(own, nominal)

    def goes_directly(self, value: Payload) -> TypeGuard[Tensor]:
        """Whether a value needs no buffer: it is as large as its message and within the backend's reach."""
        if self._staging or not isinstance(value, Tensor) or value.device != self.device:
            return False
        return self.message_bytes(value) == value.nbytes

    def take(self, dtype: torch.dtype, count: int) -> Tensor:
        """Take a buffer [count] with arbitrary contents."""
        free = self._free.get((dtype, count))
        if free:
            return free.pop()
        if self._staging:  # in host memory, pinned if a GPU may copy from it
            return torch.zeros(count, dtype=dtype, pin_memory=torch.cuda.is_available())
        return torch.zeros(count, dtype=dtype, device=self.device)

    def give_back(self, *buffers: Tensor) -> None:
        """Return buffers for reuse."""
        for buffer in buffers:
            self._free.setdefault((buffer.dtype, buffer.numel()), []).append(buffer)

    def pack(self, value: Payload, room: int) -> Tensor:
        """Copy the bytes of ``value`` into a buffer [room]."""
        buffer = self.take(torch.uint8, room)
        end = 0
        for part in _parts(value):
            begin, end = end, end + part.numel() * part.element_size()
            buffer[begin:end].copy_(part.contiguous().reshape(-1).view(torch.uint8))
        return buffer

    # --- whole messages -------------------------------------------------------------------------

    def prepare(self, value: Payload) -> Tensor:
        """The tensor to send for ``value``: the value itself where possible, else a buffer with its bytes."""
        if self.goes_directly(value):
            return value.contiguous()
        return self.pack(value, self.message_bytes(value))

    def make_room(self, like: Payload) -> Tensor:
        """A tensor to receive a value such as ``like``."""
        if self.goes_directly(like):
            return torch.empty_like(like, memory_format=torch.contiguous_format)
        return self.take(torch.uint8, self.message_bytes(like))

    def free(self, message: Tensor, value: Payload) -> None:
        """Free the buffer that ``prepare`` took for ``value``, if any."""
        if not self.goes_directly(value):
            self.give_back(message)

    def take_out(self, message: Tensor, like: Payload) -> Tensor:
        """Decode a received value such as ``like``, and free its buffer from ``make_room``."""
        if self.goes_directly(like):
            return message
        value = unpack(message, like)
        self.give_back(message)
        return value


def tensor_bytes(value: Payload) -> int:
    """Bytes of a value's own tensors, without padding."""
    return sum(part.nbytes for part in _parts(value))


def unpack(buffer: Tensor, like: Payload) -> Tensor:
    """Copy a value such as ``like`` out of a buffer to the device of ``like``, and decode it."""
    parts, end = [], 0
    for part in _parts(like):
        begin, end = end, end + part.numel() * part.element_size()
        own = buffer[begin:end].to(part.device, copy=True)
        parts.append(own.view(part.dtype).view(part.shape))
    return decoded(like.filled(parts) if isinstance(like, Encoded) else parts[0])


def _parts(value: Payload) -> tuple[Tensor, ...]:
    return value.parts if isinstance(value, Encoded) else (value,)


class Collectives:
    """One worker's mixes and collectives; values elsewhere are copied to ``buffers``, and results back."""

    def __init__(self, rank: int, buffers: StagingBuffers, backend: Backend) -> None:
        self._rank = rank
        self.buffers = buffers
        self._backend = backend

    def mix(
        self, value: Payload, sources: tuple[int, ...], destinations: tuple[int, ...], number: int
    ) -> TransferInFlight:
        """Begin this worker's ``number``-th mix; its result: the sources' decoded values, in their order.

        Raises ``PeerGone`` if a connection is closed.
        """
        arriving = [(self.buffers.make_room(value), source) for source in sources]
        leaving = cache(lambda: self.buffers.prepare(value))
        wait = self._backend.exchange(
            arriving,
            lambda: [(leaving(), destination) for destination in destinations],
            operation_tag("mix", number),
        )

        def result() -> list[Tensor]:
            if destinations:
                self.buffers.free(leaving(), value)
            return [self.buffers.take_out(message, value) for message, _ in arriving]

        return TransferInFlight(wait, result)

    def begin(self, operation: ops.Operation[Any], members: tuple[int, ...], number: int) -> TransferInFlight:
        """Begin the ``number``-th collective of its kind among ``members``; ``PeerGone``: no connection."""
        match operation:
            case ops.AllReduce(value=value):
                return self._all_reduce(_addable(value), members)
            case ops.ReduceScatter(value=Encoded() as value):
                return self._exchange_shards(value, members, number)
            case ops.ReduceScatter(value=Tensor() as value):
                return self._reduce_scatter(value, members, number)
            case ops.AllGatherShards(value=value, length=length):
                return self._all_gather_shards(value, length, members, number)
            case ops.AllGather(value=value):
                return self._all_gather(value, members)
            case ops.Broadcast(value=value):
                return self._broadcast(value, root_of(operation, self._rank, members), members)
            case _:
                wait = _do_nothing if len(members) == 1 else self._backend.barrier(members)
                return TransferInFlight(wait, _do_nothing)

    def _library(self, members: tuple[int, ...], begin: Callable[[Any], dist.Work]) -> WaitFunction:
        return _do_nothing if len(members) == 1 else self._backend.collective(members, begin)

    def _all_reduce(self, value: Payload, members: tuple[int, ...]) -> TransferInFlight:
        if self.buffers.goes_directly(value):
            own = torch.empty(value.shape, dtype=value.dtype, device=value.device)  # contiguous
            torch.div(value, len(members), out=own)
            wait = self._library(members, lambda group: group.allreduce([own], AllreduceOptions()))
            return TransferInFlight(wait, lambda: own)
        sums, mean = self._make_sums(value, len(members))
        wait = self._library(members, lambda group: group.allreduce([sums], AllreduceOptions()))
        return TransferInFlight(wait, mean)

    def _make_sums(self, value: Payload, n: int) -> tuple[Tensor, Callable[[], Tensor]]:
        """A buffer with ``value`` to be summed over ``n`` members, and a call for the mean after that."""
        own = share_in_half(value, n) if isinstance(value, Encoded) else value
        room = -(-self.buffers.message_bytes(value) // own.element_size()) * own.element_size()
        buffer = self.buffers.pack(own, room)
        sums = buffer.view(own.dtype)

        def mean() -> Tensor:
            total = sums[: own.numel()].view(own.shape)
            out = total.to(value.dtype, copy=True) if isinstance(value, Encoded) else total / n
            self.buffers.give_back(buffer)
            return out.to(own.device)

        return sums, mean

    def hierarchical(
        self, value: Payload, order: tuple[int, ...], sites: Sites, number: int
    ) -> TransferInFlight:
        """Begin the worker's ``number``-th all-reduce by ``hierarchical_pieces`` of the simulator.

        ``order``: the members, site by site; ``sites``: number of members in each site, or in each of its
        hosts. Raises ``PeerGone`` if a connection is closed.
        """
        sums, mean = self._make_sums(_addable(value), len(order))

        def go_round(send_receive: BatchedSendReceive) -> None:
            for each in hierarchical_pieces(sites, sums.numel())[order.index(self._rank)]:
                arriving = [torch.empty_like(sums[part.start : part.stop]) for part in each.receives]
                send_receive(
                    [(room, order[part.peer]) for room, part in zip(arriving, each.receives, strict=True)],
                    [(sums[part.start : part.stop], order[part.peer]) for part in each.sends],
                )
                for came, part in zip(arriving, each.receives, strict=True):
                    there = sums[part.start : part.stop]
                    there.copy_(there + came if each.adds else came)

        return TransferInFlight(self._backend.rounds(go_round, operation_tag("piece", number)), mean)

    def _broadcast(self, value: Payload, root: int, members: tuple[int, ...]) -> TransferInFlight:
        buffer = self.buffers.pack(value, self.buffers.message_bytes(value))
        options = BroadcastOptions()
        options.rootRank = members.index(root)

        def result() -> Tensor:
            reply = decoded(value) if root == self._rank else unpack(buffer, value)
            self.buffers.give_back(buffer)
            return reply

        wait = self._library(members, lambda group: group.broadcast([buffer], options))
        return TransferInFlight(wait, result)

    def _all_gather(self, value: Tensor, members: tuple[int, ...]) -> TransferInFlight:
        """Begin an all-gather without padding: its values are a few numbers."""
        wait, parts = self._gather(value.to(self.buffers.device).contiguous(), members)
        return TransferInFlight(wait, lambda: torch.stack(parts).to(value.device))

    def _all_gather_shards(
        self, value: Payload, length: int, members: tuple[int, ...], number: int
    ) -> TransferInFlight:
        own = self.buffers.pack(value, self.buffers.shard_bytes(value, length, len(members)))
        swaps = len(members) == 2 and self._backend.concurrent
        wait, parts = self._swap(own, members, number) if swaps else self._gather(own, members)

        def result() -> Tensor:
            whole = concatenate_shards([unpack(part, value) for part in parts], length)
            self.buffers.give_back(own)
            return whole

        return TransferInFlight(wait, result)

    def _gather(self, own: Tensor, members: tuple[int, ...]) -> tuple[WaitFunction, list[Tensor]]:
        parts = [own] if len(members) == 1 else [torch.empty_like(own) for _ in members]
        wait = self._library(members, lambda group: group.allgather([parts], [own], AllgatherOptions()))
        return wait, parts

    def _swap(self, own: Tensor, members: tuple[int, ...], number: int) -> tuple[WaitFunction, list[Tensor]]:
        """Gather from two members, receives first.

        gloo's own all-gather posts a receive behind the data that it sends over the same connection, so that
        the later of two members waits for its own data as well.
        """
        position, other = members.index(self._rank), torch.empty_like(own)
        peer = members[1 - position]
        wait = self._backend.exchange([(other, peer)], lambda: [(own, peer)], operation_tag("gather", number))
        return wait, [own, other] if position == 0 else [other, own]

    def _exchange_shards(self, value: Encoded, members: tuple[int, ...], number: int) -> TransferInFlight:
        """Begin a direct exchange of shards: each member decodes and averages its own."""
        n, position = len(members), members.index(self._rank)
        rows = [value.row(i) for i in range(n)]
        room = self.buffers.message_bytes(rows[0])
        others = [(position + i) % n for i in range(1, n)]
        arriving = {i: self.buffers.take(torch.uint8, room) for i in others}
        leaving = {i: self.buffers.pack(rows[i], room) for i in others}
        wait = self._backend.exchange(
            [(arriving[i], members[i]) for i in others],
            lambda: [(leaving[i], members[i]) for i in others],
            operation_tag("shard", number),
        )

        def result() -> Tensor:
            shards = [decoded(rows[i]) if i == position else unpack(arriving[i], rows[i]) for i in range(n)]
            self.buffers.give_back(*arriving.values(), *leaving.values())
            return mean_model(shards)

        return TransferInFlight(wait, result)

    def _reduce_scatter(self, value: Tensor, members: tuple[int, ...], number: int) -> TransferInFlight:
        """Begin to pass partial sums around a ring, as the simulator's ``ring_reduce_scatter``."""
        n, position = len(members), members.index(self._rank)
        length = shard_length(value.shape[-1], n)
        count = max(length, -(-self.buffers.message_bytes(value) // (n * value.element_size())))
        arriving, leaving = (self.buffers.take(value.dtype, count) for _ in range(2))
        source, destination = members[(position + 1) % n], members[(position - 1) % n]
        own = value.to(self.buffers.device)

        def go_round(send_receive: BatchedSendReceive) -> None:
            arriving[:length].copy_(shard(own, (position + 1) % n, n))
            for i in range(n - 1):
                leaving[:length].copy_(arriving[:length])
                send_receive([(arriving, source)], [(leaving, destination)])
                arriving[:length] += shard(own, (position + 2 + i) % n, n)

        def result() -> Tensor:
            mean = arriving[:length] / n
            self.buffers.give_back(arriving, leaving)
            return mean.to(value.device)

        return TransferInFlight(self._backend.rounds(go_round, operation_tag("shard", number)), result)


def _addable(value: Payload) -> Payload:
    """Value to be summed: of a shard its elements, with the zeros at the end, which travel as well."""
    return value if isinstance(value, Encoded) and value.half is not None else decoded(value)


def _do_nothing() -> None:
    """Reply None at once."""


class Messages:
    """One worker's messages, the operations ``Send`` and ``Receive``; its ``buffers`` are in host memory.

    They go over gloo whatever the backend: NCCL has neither tags nor any-source receives, and a message whose
    receive is posted late would hold up everything behind it there. Values on a GPU are staged.
    """

    def __init__(self, gloo: dist.ProcessGroupGloo, buffers: StagingBuffers) -> None:
        self._gloo = gloo
        self.buffers = buffers

    def send(self, value: Payload, destination: int, tag: str) -> TransferInFlight:
        """Begin to send ``value``; the result is None. Raises ``PeerGone`` on a closed connection."""
        message = self.buffers.prepare(value)
        work = connections.send(self._gloo, message, destination, message_tag(tag))
        return TransferInFlight(
            partial(connections.finish, work, destination), partial(self.buffers.free, message, value)
        )

    def receive(self, like: Payload, source: int, tag: str) -> TransferInFlight:
        """Post a receive from ``source`` or ``ANY``: (sender, decoded value). ``PeerGone``: no connection."""
        message = self.buffers.make_room(like)
        work = connections.receive(self._gloo, message, source, message_tag(tag))

        def result() -> tuple[int, Tensor]:
            sender = work._source_rank() if source == ANY else source
            return sender, self.buffers.take_out(message, like)

        return TransferInFlight(partial(connections.finish, work, source), result)

    # --- after the run --------------------------------------------------------------------------

    def release(self, tag: str, destination: int) -> WaitFunction:
        """Complete a receive without a sender, by a message of one element."""
        element = torch.zeros(1, dtype=torch.uint8)
        work = connections.send(self._gloo, element, destination, message_tag(tag))
        return partial(connections.finish, work, destination)

    def swallow(self, tag: str, num_bytes: int) -> WaitFunction:
        """Receive and drop a message without a receiver."""
        message = torch.empty(num_bytes, dtype=torch.uint8)
        work = connections.receive(self._gloo, message, ANY, message_tag(tag))
        return partial(connections.finish, work, ANY)

    def lost_peers(self) -> list[int]:
        """Peers with closed connections. Leaves receives behind: only for a run that has failed."""
        peers = []
        for peer in range(self._gloo.size()):
            if peer != self._gloo.rank():
                try:
                    connections.receive(self._gloo, torch.empty(1, dtype=torch.uint8), peer, PROBE_TAG)
                except PeerGone:
                    peers.append(peer)
        return peers


class Transport:
    """One worker's transfers in one run: messages over gloo, mixes and collectives over ``backend``.

    ``element_bytes`` are the bytes that an element of the model stands for.
    """

    def __init__(
        self,
        rank: int,
        gloo: dist.ProcessGroupGloo,
        backend: Backend,
        element_bytes: float,
        device: torch.device,
    ) -> None:
        # gloo, which carries the messages in any case, reaches only host memory.
        messages = StagingBuffers(element_bytes, staging=device != CPU or not backend.concurrent)
        values = messages if backend.concurrent else StagingBuffers(element_bytes, device)
        self.messages = Messages(gloo, messages)
        self.collectives = Collectives(rank, values, backend)
        self.survives = backend.concurrent
