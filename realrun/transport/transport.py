"""All transfers of one worker in one run, over gloo and the backend."""

from __future__ import annotations

import torch
import torch.distributed as dist

from .backend import Backend
from .buffers import StagingBuffers
from .collectives import Collectives
from .messages import Messages


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
        values = backend.staging_buffers(element_bytes, device)
        messages = values if backend.carries_messages else StagingBuffers(element_bytes, staging=True)
        self.messages = Messages(gloo, messages)
        self.collectives = Collectives(rank, values, backend)
        self.survives = backend.survives
