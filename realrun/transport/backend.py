"""What pattern operations need of whoever carries their bytes: ``gloo`` or ``nccl`` beside this file."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

WaitFunction = Callable[[], None]
"""Blocks until an operation is complete; for a helper thread. Raises ``connections.PeerGone``."""


class Collective(ABC):
    """A ``Wait`` that can also be asked, and waited in for a while."""

    @abstractmethod
    def __call__(self) -> None:
        """Block until the operation is complete; raises ``realrun.transport.connections.PeerGone``."""

    @abstractmethod
    def within(self, limit_s: float) -> bool:
        """Block for ``limit_s`` at most; whether the operation is complete or has failed."""


Routes = Sequence[tuple[torch.Tensor, int]]
"""Buffers, each with the rank that it comes from or goes to."""

Swap = Callable[[Routes, Routes], None]
"""Receive into some buffers and send others, and wait until that is done."""


class Backend(Protocol):
    """Carries out operations in which workers take part in the same order."""

    survives: bool
    """Whether it can go on without a member that has died."""

    def collective(
        self, members: tuple[int, ...], begin: Callable[[Any], dist.Work]
    ) -> WaitFunction | Collective:
        """``begin``, given torch's process group of ``members``, begins one of its collectives."""

    def barrier(self, members: tuple[int, ...]) -> WaitFunction:
        """Complete when all of ``members`` have come."""

    def exchange(self, receives: Routes, sends: Routes, number: int) -> WaitFunction:
        """Messages; ``number`` tells those of different operations apart."""

    def rounds(self, run: Callable[[Swap], None], number: int) -> WaitFunction:
        """Several exchanges, one after another; ``run`` is called in the helper thread."""
