"""A count of the steps of all workers together, kept by a service on the host of worker 0.

A worker asks before each of its steps, and may ask while it still computes the one before. Source: the
periods of asynchronous leader SGD (Teng et al., NeurIPS 2019), which are counted on the sum of all steps.
"""

from __future__ import annotations

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

import torch

from ..program import operations as ops
from ..program.worker import Worker

Tensor = torch.Tensor

_COUNTS: Final = 0
"""The worker whose host counts."""

_ASKS, _LEAVES = 0, 1
_LIKE: Final = torch.zeros(1, dtype=torch.int32)


class Grants:
    """Grants ``budget`` steps to whoever asks; then sends everybody who still steps to a round; and again."""

    def __init__(self, workers: int, budget: int) -> None:
        self._budget = budget
        self._left = budget
        self._stepping = set(range(workers))
        self._expected: set[int] = set()

    def grant(self, rank: int) -> bool:
        """Whether a worker may do one more step; otherwise it has to come to the round."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._expected = set(self._stepping)
            return True
        self._came(rank)
        return False

    def leave(self, rank: int) -> None:
        """A worker has done all its steps: it comes to every round by itself."""
        self._stepping.discard(rank)
        if not self._left:
            self._came(rank)

    def _came(self, rank: int) -> None:
        self._expected.discard(rank)
        if not self._expected:
            self._left = self._budget


@dataclass(frozen=True)
class Asked:
    """A question under way to the counter, and its answer."""

    question: ops.Handle
    answer: ops.Handle


class StepCounter:
    """The counter as one worker sees it; ``budget`` steps of all workers together between two rounds."""

    def __init__(self, worker: Worker, budget: int) -> None:
        self._worker = worker
        self._steps = Grants(worker.size, budget) if worker.rank == _COUNTS else None

    def services(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What the counting host runs beside its own steps."""
        if self._steps is None:
            return ()
        return tuple(self._serve(self._steps, rank) for rank in range(self._worker.size) if rank != _COUNTS)

    async def ask(self) -> Asked | bool:
        """Ask for one more step, and go on."""
        if self._steps is not None:
            return self._steps.grant(self._worker.rank)
        answer = await self._worker.begin(ops.Receive(_COUNTS, like=_LIKE, tag="granted"))
        question = await self._worker.begin(ops.Send(_COUNTS, _number(_ASKS), tag="step"))
        return Asked(question, answer)

    async def granted(self, asked: Asked | bool) -> bool:
        """Whether it may be done; otherwise a round is due first."""
        if isinstance(asked, bool):
            return asked
        await self._worker.wait(asked.question)
        message: ops.Message = await self._worker.wait(asked.answer)
        return bool(message.value)

    async def leave(self, asked: Asked | bool) -> None:
        """Say that there will be no more steps; the grant that was asked for is not used."""
        await self.granted(asked)
        if self._steps is not None:
            self._steps.leave(self._worker.rank)
        else:
            await self._worker.send(_COUNTS, _number(_LEAVES), tag="step")

    async def _serve(self, steps: Grants, rank: int) -> None:
        while (await self._worker.receive(rank, like=_LIKE, tag="step")).value.item() == _ASKS:
            await self._worker.send(rank, _number(int(steps.grant(rank))), tag="granted")
        steps.leave(rank)


def _number(value: int) -> Tensor:
    """Whole numbers are sent as they are, whatever a model stands for."""
    return torch.full((1,), value, dtype=torch.int32)
