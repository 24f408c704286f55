"""What carries mixes and collectives: the backends ``gloo`` and ``nccl`` beside this file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from .buffers import StagingBuffers

WaitFunction = Callable[[], None]
"""Blocks until an operation is complete; for a helper thread. Raises ``connections.PeerGone``."""


class TransferInFlight(NamedTuple):
    """An operation that has begun.

    Attributes:
        wait: blocks until it is complete.
        result: afterwards, once, in the driver's thread: this worker's reply; frees staging buffers.
    """

    wait: WaitFunction
    result: Callable[[], Any]


Routes = Sequence[tuple[torch.Tensor, int]]
"""Tensors, each with the rank that it comes from or goes to."""

BatchedSendReceive = Callable[[Routes, Routes], None]
"""Receive into some tensors and send others, and wait until that is done."""


class Backend(Protocol):
    """Carries out operations that all workers begin in the same order.

    Any of them raises ``connections.PeerGone`` if it begins at once and a connection is closed already.
    """

    survives: bool
    """Whether it can go on without a member that has died."""
    carries_messages: bool
    """Whether it has tags and receives from anybody, as messages need them."""

    def staging_buffers(self, element_bytes: float, device: torch.device) -> StagingBuffers:
        """Make buffers within its reach, for the values of one run, which are on ``device``."""

    def collective(self, members: tuple[int, ...], begin: Callable[[Any], dist.Work]) -> WaitFunction:
        """Begin a collective of torch: ``begin`` does so, given the process group of ``members``."""

    def barrier(self, members: tuple[int, ...]) -> WaitFunction:
        """Begin a wait that is complete when all of ``members`` have come."""

    def exchange(self, receives: Routes, make_sends: Callable[[], Routes], tag: int) -> WaitFunction:
        """Send and receive the messages of one operation.

        Args:
            receives: posted first.
            make_sends: called after that in this thread: a sender of gloo learns of the receive meanwhile.
            tag: tells the messages of operations apart that can overlap.
        """

    def rounds(self, run: Callable[[BatchedSendReceive], None], tag: int) -> WaitFunction:
        """Begin several exchanges, one after another; ``run`` is called in the helper thread."""
