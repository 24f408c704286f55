"""A centre: one value on the host of a worker, which is changed by whoever visits it, one after another.

A visit sends one value there and brings one back; visits meet the centre one by one, but travel at the same
time. The worker on whose host it is pays nothing. A visitor that is lost is not missed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Annotated, Any

import torch
from pydantic import Field

from ..errors import InputError, PeerLost
from ..program import operations as ops
from ..program.worker import Worker

Tensor = torch.Tensor

Meeting = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(centre, visitor), both [d] -> (centre afterwards, reply to the visitor)."""

Host = Annotated[int, Field(ge=0, description="rank of the worker on whose host the centre is")]


def check_host(host: int, workers: int) -> None:
    """Raise ``InputError`` where there is no such worker."""
    if host >= workers:
        raise InputError(f"there is no worker {host} to host the centre; ranks go from 0 to {workers - 1}")


class Centre:
    """The centre as one worker sees it.

    Args:
        worker: who sees it.
        host: the worker on whose host it is.
        meet: what a visit does.
    """

    def __init__(self, worker: Worker, host: int, meet: Meeting) -> None:
        self._worker = worker
        self._host = host
        self._meet = meet
        self._value = worker.start

    @property
    def is_here(self) -> bool:
        """Whether it is on this worker's host."""
        return self._worker.rank == self._host

    @property
    def known(self) -> Tensor | None:
        """Its value [d] where it is, None elsewhere."""
        return self._value if self.is_here else None

    def services(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What its host has to run beside its own steps."""
        others = (rank for rank in range(self._worker.size) if rank != self._host)
        return tuple(self._serve(rank) for rank in others) if self.is_here else ()

    async def visit(self, value: Tensor) -> Tensor:
        """Bring a value [d]; returns the reply. Waits for the centre's host alone."""
        if self.is_here:
            self._value, reply = self._meet(self._value, value)
            return reply
        answer = await self._worker.begin(ops.Receive(self._host, like=value, tag="reply"))
        await self._worker.send(self._host, value, tag="visit")
        message: ops.Message = await self._worker.wait(answer)
        return message.value

    async def _serve(self, rank: int) -> None:
        # Who is gone does not come again; the others have services of their own.
        with suppress(PeerLost):
            while True:
                visitor = await self._worker.receive(rank, like=self._value, tag="visit")
                self._value, reply = self._meet(self._value, visitor.value)
                await self._worker.send(rank, reply, tag="reply")
