"""All transfers of one worker in one run, over gloo and the backend."""

from __future__ import annotations

from functools import partial

import torch
import torch.distributed as dist
from torch import Tensor

from paceline.sim.program.encoding import Payload
from paceline.sim.program.operations import ANY

from . import connections
from .backend import Backend, TransferInFlight, WaitFunction
from .buffers import StagingBuffers
from .connections import PROBE_TAG, PeerGone, message_tag
from .device import CPU
from .rank_collectives import Collectives


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
