"""The interface of the backends ``gloo`` and ``nccl``, which carry mixes and collectives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

WaitFunction = Callable[[], object]
"""Blocks until an operation is complete; for a helper thread. Raises ``connections.PeerGone``."""


class TransferInFlight(NamedTuple):
    """A transfer that has begun.

    Attributes:
        wait: blocks until it is complete.
        result: called once after that, in the driver's thread: this worker's reply; frees staging buffers.
    """

    wait: WaitFunction
    result: Callable[[], Any]


Routes = Sequence[tuple[torch.Tensor, int]]
"""Tensors, each with its source or destination rank."""

BatchedSendReceive = Callable[[Routes, Routes], object]
"""Receive some tensors, send others, and wait for all of them."""


class Backend(Protocol):
    """Carries out operations that all workers begin in the same order.

    Each raises ``connections.PeerGone`` if it begins at once and a connection is closed already.
    """

    concurrent: bool
    """Whether operations run concurrently, told apart by tags: then it carries messages too, and the
    remaining ranks can continue after the death of a member.
    """

    def collective(self, members: tuple[int, ...], begin: Callable[[Any], dist.Work]) -> WaitFunction:
        """Begin a torch collective: ``begin`` is called with the process group of ``members``."""

    def barrier(self, members: tuple[int, ...]) -> WaitFunction:
        """Begin a barrier among ``members``."""

    def exchange(self, receives: Routes, make_sends: Callable[[], Routes], tag: int) -> WaitFunction:
        """Post the receives, then make and send messages: a gloo sender learns of the receive meanwhile.
        ``tag`` separates operations.
        """

    def rounds(self, run: Callable[[BatchedSendReceive], None], tag: int) -> WaitFunction:
        """Begin several exchanges, one after another; ``run`` is called in the helper thread."""
