"""Tensors from one worker to another: what an operation sends and receives.

Messages go over gloo, whatever the backend: NCCL has neither tags nor receives from anybody, and a message
whose receive is posted late would hold up everything behind it there. Values on a GPU are staged. What is
mixed goes where the collectives go.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import lru_cache

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.sim.program.encoding import Payload
from paceline.sim.program.operations import ANY

from . import connections
from .backend import Backend, WaitFunction
from .buffers import StagingBuffers, unpacked

_MIX_TAG = 1 << 24
_MESSAGE_TAG = 1 << 30
_PROBE_TAG = 1 << 20


@lru_cache(maxsize=1024)
def message_tag(tag: str) -> int:
    """A scheme's tag as one of gloo's: 30 bits of a hash, apart from all other tags."""
    return _MESSAGE_TAG | int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=4).digest()) >> 2


def mix_tag(number: int) -> int:
    """Tag of a worker's ``number``-th mix; those that can overlap differ."""
    return _MIX_TAG | number % _MIX_TAG


@dataclass(frozen=True, slots=True)
class _Incoming:
    buffer: Tensor
    like: Payload
    packed: bool


@dataclass(slots=True)
class TransferInFlight:
    """Transfers under way for one operation.

    Attributes:
        buffers: where buffers come from.
        works: gloo's handle and the peer (``ANY``: whoever sends) of each.
        carried: instead of them, what a carrier is waited for with.
        sources: who sent, for each receive in the order in which they were posted; filled by ``wait``.
    """

    buffers: StagingBuffers
    works: list[tuple[dist.Work, int, bool]] = field(default_factory=list)
    carried: WaitFunction | None = None
    incoming: list[_Incoming] = field(default_factory=list)
    outgoing: list[Tensor] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)

    def wait(self) -> None:
        """Block until all are complete; for a helper thread.

        Raises:
            PeerGone: a connection was closed.
        """
        if self.carried is not None:
            self.carried()
        for work, peer, receives in self.works:
            connections.finish(work, peer)
            if receives:
                self.sources.append(work._source_rank() if peer == ANY else peer)


class Transport:
    """One worker's transfers.

    Args:
        gloo: connects all workers.
        buffers: of this worker, for messages.
        carried: buffers for what is mixed and who carries it; None: it goes as messages do.
    """

    def __init__(
        self,
        gloo: dist.ProcessGroupGloo,
        buffers: StagingBuffers,
        carried: tuple[StagingBuffers, Backend] | None = None,
    ) -> None:
        self._gloo = gloo
        self._buffers = buffers
        self._carried = carried

    # --- point to point -------------------------------------------------------------------------

    def post(
        self,
        tag: int,
        sources: tuple[int, ...],
        like: Payload | None,
        destinations: tuple[int, ...],
        value: Payload | None,
    ) -> TransferInFlight:
        """Post receives shaped like ``like`` from all sources, then send ``value`` to all destinations.

        Raises:
            PeerGone: a connection is closed already.
        """
        posted = TransferInFlight(self._buffers)
        if like is not None:
            for source in sources:
                work = connections.receive(self._gloo, _incoming(posted, like), source, tag)
                posted.works.append((work, source, True))
        if value is not None:
            outgoing = _outgoing(posted, value)
            for destination in destinations:
                work = connections.send(self._gloo, outgoing, destination, tag)
                posted.works.append((work, destination, False))
        return posted

    def mix(
        self, number: int, sources: tuple[int, ...], destinations: tuple[int, ...], value: Payload
    ) -> TransferInFlight:
        """Post what this worker's ``number``-th mix needs: ``value`` goes to all destinations.

        Raises:
            PeerGone: a connection is closed already.
        """
        if self._carried is None:
            return self.post(mix_tag(number), sources, value, destinations, value)
        buffers, carrier = self._carried
        posted = TransferInFlight(buffers)
        receives = [(_incoming(posted, value), source) for source in sources]
        outgoing = _outgoing(posted, value) if destinations else None
        sends = [(outgoing, destination) for destination in destinations if outgoing is not None]
        posted.carried = carrier.exchange(receives, sends, number)
        return posted

    def finish(self, posted: TransferInFlight) -> list[Tensor]:
        """The received values, decoded, in the order in which their receives were posted; frees buffers."""
        values = []
        for each in posted.incoming:
            if each.packed:
                values.append(unpacked(each.buffer, each.like))
                posted.buffers.give_back(each.buffer)
            else:
                values.append(each.buffer)
        for buffer in posted.outgoing:
            posted.buffers.give_back(buffer)
        return values

    # --- after the run --------------------------------------------------------------------------

    def close(self, tag: str, destination: int) -> TransferInFlight:
        """Release a receive that nobody will answer, with one element."""
        posted = TransferInFlight(self._buffers)
        work = connections.send(self._gloo, torch.zeros(1, dtype=torch.uint8), destination, message_tag(tag))
        posted.works.append((work, destination, False))
        return posted

    def swallow(self, tag: str, num_bytes: int) -> TransferInFlight:
        """Take a message that nobody waits for any more."""
        posted = TransferInFlight(self._buffers)
        buffer = torch.empty(num_bytes, dtype=torch.uint8)
        work = connections.receive(self._gloo, buffer, ANY, message_tag(tag))
        posted.works.append((work, ANY, True))
        posted.outgoing.append(buffer)
        return posted

    def gone(self) -> list[int]:
        """The peers whose connection is closed. Leaves receives behind: for a run that has failed."""
        found = []
        for peer in range(self._gloo.size()):
            if peer != self._gloo.rank():
                try:
                    connections.receive(self._gloo, torch.empty(1, dtype=torch.uint8), peer, _PROBE_TAG)
                except connections.PeerGone:
                    found.append(peer)
        return found


def _incoming(posted: TransferInFlight, like: Payload) -> Tensor:
    """A buffer for one value such as ``like``."""
    buffers = posted.buffers
    if buffers.travels_itself(like):
        buffer, packed = torch.empty_like(like, memory_format=torch.contiguous_format), False
    else:
        buffer, packed = buffers.take(torch.uint8, buffers.wire_bytes(like)), True
    posted.incoming.append(_Incoming(buffer, like, packed))
    return buffer


def _outgoing(posted: TransferInFlight, value: Payload) -> Tensor:
    if posted.buffers.travels_itself(value):
        return value.contiguous()
    buffer = posted.buffers.packed(value, posted.buffers.wire_bytes(value))
    posted.outgoing.append(buffer)
    return buffer
