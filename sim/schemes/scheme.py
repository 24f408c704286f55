"""The record of a scheme in the registry, and what schemes share."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from pydantic import Field

from ..config.settings import Settings
from ..program.worker import Program, Worker


def accept_any_number(options: Settings, workers: int) -> None:
    """The ``check`` of a scheme that runs with any number of workers."""


@dataclass(frozen=True)
class Scheme:
    """An averaging scheme.

    Attributes:
        name: as in scenarios.
        program: ``async def program(worker, options)``, or a function that returns a ``Program``.
        options: the settings model of ``options``.
        synchronous: only pattern operations, so that its iterates do not depend on the clock, unless its
            options say ``asynchronous``.
        check: raises ``InputError`` where the options do not fit that many workers.
        own_momentum: it brings its momentum itself, so that its optimiser must not have any.
        averages: it publishes the averages that it makes, unless its options say ``asynchronous``; None: that
            is not known.
        check_sites: raises ``InputError`` where the options do not fit that many sites; None: any will do.
    """

    name: str
    program: Callable[[Worker, Any], Coroutine[Any, Any, None] | Program]
    options: type[Settings]
    synchronous: bool
    check: Callable[[Any, int], None] = accept_any_number
    own_momentum: bool = False
    check_sites: Callable[[Any, int], None] | None = None
    averages: bool | None = None

    def in_step(self, options: Settings) -> bool:
        """Whether it is synchronous under these options."""
        return self.synchronous and not getattr(options, "asynchronous", False)

    def publishes_averages(self, options: Settings) -> bool | None:
        """Whether it publishes averages under these options; None: that is not known."""
        return self.averages if self.averages is None else self.averages and self.in_step(options)

    def start(self, worker: Worker, options: Settings) -> Program:
        """The coroutines of one worker, not yet started."""
        program = self.program(worker, options)
        return program if isinstance(program, Program) else Program(program)


Spread = Annotated[
    float,
    Field(
        ge=0,
        allow_inf_nan=False,
        description="standard deviation of every worker's own start around the common one",
    ),
]


def scattered(worker: Worker, spread: float) -> torch.Tensor:
    """This worker's first model: x(0) + ``spread`` times standard normal numbers of its own, [..., d]."""
    if spread == 0:
        return worker.start
    return worker.start + spread * worker.normal("start", 0, worker.start.shape[-1:])
