"""Schemes around a centre: one value on a worker's host, changed by visits of the workers.

A visit sends one value to the centre and brings one back; visits are served one by one, but are in transit at
the same time. The worker on the centre's host pays nothing. A lost visitor is not missed.

Elastic averaging (``easgd``, ``eamsgd``): springs hold workers to the centre c, and the centre to their mean.
Every ``period`` steps they exchange, with alpha = pull / n; every gradient is at the model before that:

    x_i <- x_i - alpha (x_i - c)  [- lr g(x_i), both at the old x_i]
    c   <- c + alpha (x_i - c)    for one visitor (asynchronous)
    c   <- c + pull (mean of x - c)    for all at once (synchronous)

EAMSGD has Nesterov's momentum in the local step: v <- m v - lr g(x + m v), x <- x + v. Synchronous, every
worker keeps a copy of the centre, and the mean is an all-reduce: as many bytes as a reduce and a broadcast.
Bytes per step and worker: over the period 2 (n-1)/n models (ring); asynchronous one model out and one in,
except on the centre's own host. Waits for: all workers, once a period; asynchronous: the centre's host.
Source: Zhang, Choromanska, LeCun, NeurIPS 2015 (arXiv 1412.6651), equations 5 and 6 and Algorithms 1 and 2.

``downpour``: workers push the sum of their updates to the centre and continue from the result. Every
``period`` steps of a worker, with u_i its updates since its last visit:

    c <- c + u_i,   x_i <- c,   u_i <- 0

so n workers together move the centre n times as far as one: the learning rate has to be smaller.
Source: Dean et al., NeurIPS 2012, with equal periods for pushing and fetching
and without Adagrad, as in Zhang, Choromanska, LeCun, NeurIPS 2015 (arXiv 1412.6651), Algorithm 3.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Annotated, Any, Final

import torch
from pydantic import Field
from torch import Tensor

from paceline.sim.config.limits import MAX_FACTOR
from paceline.sim.config.settings import Settings
from paceline.sim.errors import InputError, PeerLost
from paceline.sim.program import operations as ops
from paceline.sim.program.encoding import Compression, Payload
from paceline.sim.program.worker import Program, Worker
from paceline.sim.records.run import On
from paceline.sim.schemes.common.compressed import CompressedAllReduce
from paceline.sim.schemes.common.held import REPLACED, Held, Sizes
from paceline.sim.schemes.scheme import Scheme, one_period

Spread = Annotated[
    float,
    Field(
        ge=0,
        le=MAX_FACTOR,
        description="standard deviation of workers' initial models around the common one",
    ),
]


def scattered(worker: Worker, spread: float) -> torch.Tensor:
    """This worker's first model, [..., d]: x(0) + ``spread`` times its own standard normal numbers."""
    if spread == 0:
        return worker.start
    return worker.start + spread * worker.normal("start", 0, worker.start.shape[-1:])


def publishes_leader(options: Any) -> On:
    """``publishes`` of a scheme with a leader or servers."""
    return "leader"


def on_a_server(visitors: int) -> float:
    """In flight on a server's host: for each visitor a receive, its value, and the reply."""
    return 3.0 * visitors + 2.0


HostRank = Annotated[int, Field(ge=0, description="rank of the worker that hosts the centre")]


class EasgdOptions(Settings):
    """Options of ``easgd``."""

    period: int = Field(ge=1, description="steps between exchanges with the centre")
    pull: float = Field(
        default=0.9, gt=0, le=1, description="moving rate beta of the centre; a worker's is beta / workers"
    )
    asynchronous: bool = Field(default=False, description="workers visit the centre one by one")
    host: HostRank = 0
    spread: Spread = 0.0


def publishes_centre(options: EasgdOptions) -> On:
    """The centre: the average of a visit of all workers, or a server's model."""
    return "leader" if options.asynchronous else "averaged"


class EamsgdOptions(EasgdOptions):
    """Options of ``eamsgd``."""

    momentum: float = Field(default=0.9, ge=0, lt=1, description="Nesterov momentum of the local steps")


class DownpourOptions(Settings):
    """Options of ``downpour``."""

    period: int = Field(ge=1, description="steps between visits to the centre")
    host: HostRank = 0


def check(options: EasgdOptions | DownpourOptions, workers: int) -> None:
    """Raise ``InputError`` where there is no worker to host the centre."""
    host = options.host
    if host >= workers:
        raise InputError(f"there is no worker {host} to host the centre; ranks go from 0 to {workers - 1}")


def held_elastic(options: EasgdOptions, sizes: Sizes) -> Held:
    """Model, gradient, velocity, the point ahead and the centre; its host serves all others at once."""
    visits = on_a_server(sizes.workers - 1) if options.asynchronous else 2.0
    return Held(optimizer=sizes.moments + 1, anchors=2, in_flight=visits + REPLACED)


def easgd(worker: Worker, options: EasgdOptions) -> Program:
    """Elastic averaging: workers are held to a centre as if by springs, and the centre to their mean."""
    return _elastic(worker, options, momentum=0.0)


def eamsgd(worker: Worker, options: EamsgdOptions) -> Program:
    """Elastic averaging with Nesterov momentum in the local steps."""
    return _elastic(worker, options, options.momentum)


def _elastic(worker: Worker, options: EasgdOptions, momentum: float) -> Program:
    if not options.asynchronous:
        return Program(_elastic_steps(worker, options, ReplicatedCentre(worker, options.pull), momentum))
    alpha = options.pull / worker.size

    def meet(centre: Tensor, visitor: Tensor) -> tuple[Tensor, Tensor]:
        difference = alpha * (visitor - centre)
        return centre + difference, difference

    centre = Centre(worker, options.host, meet)
    return Program(_elastic_steps(worker, options, centre, momentum), centre.services())


async def _elastic_steps(
    worker: Worker, options: EasgdOptions, centre: Centre | ReplicatedCentre, momentum: float
) -> None:
    alike = isinstance(centre, ReplicatedCentre)  # then the visit's number decides it
    x = scattered(worker, options.spread)
    velocity = torch.zeros_like(x)
    state = worker.optimizer.init(x)
    if isinstance(centre, ReplicatedCentre) and worker.kept:
        x, velocity, state, centre.known = worker.kept
    async for k in worker.steps():
        ahead = x + momentum * velocity
        visits = k % options.period == 0
        if visits:
            x = x - await centre.visit(x)
        gradient = await worker.gradient(ahead)
        moved, state = worker.optimizer.update(ahead, gradient, state)
        velocity = momentum * velocity + (moved - ahead)
        x = x + velocity
        known, kept = centre.known, (x, velocity, state, centre.known)
        await worker.publish(k, x, leader=known, averaged=known if visits and alike else None, kept=kept)
        del known, kept


def downpour(worker: Worker, options: DownpourOptions) -> Program:
    """DOWNPOUR: workers push the sum of their updates to a centre, and continue from the result.

    Bytes per step and worker: one model out and one in over the period, except on the centre's own host.
    Waits for: the centre's host alone.
    """

    def meet(centre: Tensor, updates: Tensor) -> tuple[Tensor, Tensor]:
        return centre + updates, centre + updates

    centre = Centre(worker, options.host, meet)
    return Program(_downpour_steps(worker, options, centre), centre.services())


async def _downpour_steps(worker: Worker, options: DownpourOptions, centre: Centre) -> None:
    x = worker.start
    updates = torch.zeros_like(x)
    state = worker.optimizer.init(x)
    async for k in worker.steps():
        if k % options.period == 0:
            x = await centre.visit(updates)
            updates = torch.zeros_like(x)
        gradient = await worker.gradient(x)
        moved, state = worker.optimizer.update(x, gradient, state)
        updates = updates + (moved - x)
        x = moved
        await worker.publish(k, x, leader=centre.known)


# --- the centre ---------------------------------------------------------------------------------

Meeting = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(centre, visitor), both [d] -> (centre afterwards, reply to the visitor)."""


class Centre:
    """The centre on the host of worker ``host``, as seen by one worker.

    ``visitors`` are ranks besides the host; None: all workers. With ``compression`` visitors bring changes,
    encoded; replies are sent plain.
    """

    def __init__(
        self,
        worker: Worker,
        host: int,
        meet: Meeting,
        visitors: Sequence[int] | None = None,
        compression: Compression | None = None,
    ) -> None:
        self._worker = worker
        self._visitors = range(worker.size) if visitors is None else visitors
        self._host = host
        self._meet = meet
        self._value = worker.start
        self._brought = CompressedAllReduce(worker, compression)
        self._visits = 0

        self._is_here = worker.rank == host
        self._encoded = None if compression is None else self._brought.payload(worker.start, "visit", 0)

    @property
    def known(self) -> Tensor | None:
        """The centre's value [d] on its own host, None elsewhere."""
        return self._value if self._is_here else None

    def services(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Services of the centre's host: one for each other visitor."""
        others = (rank for rank in self._visitors if rank != self._host)
        return tuple(self._serve(rank) for rank in others) if self._is_here else ()

    def replace(self, value: Tensor) -> None:
        """Set the centre to a value [d], on its own host."""
        self._value = value

    async def visit(self, value: Tensor) -> Tensor:
        """Bring a value [d]; returns the reply. Waits for the centre's host alone."""
        if self._is_here:
            self._value, reply = self._meet(self._value, value)
            return reply
        answer = await self._worker.begin(ops.Receive(self._host, like=value, tag="reply"))
        await self._worker.send(self._host, await self._payload(value), tag="visit")
        message: ops.Message = await self._worker.wait(answer)
        return message.value

    async def begin_visit(self, value: Tensor) -> tuple[ops.Handle, ops.Handle]:
        """Bring a value [d] from another host without waiting: the receive of the reply, and the send."""
        answer = await self._worker.begin(ops.Receive(self._host, like=value, tag="reply"))
        payload = await self._payload(value)
        return answer, await self._worker.begin(ops.Send(self._host, payload, tag="visit"))

    async def _payload(self, value: Tensor) -> Payload:
        self._visits += 1
        await self._brought.spends(encoded=value.shape[-1])
        return self._brought.change(value, "visit", self._visits)

    async def _serve(self, rank: int) -> None:
        # A lost worker does not return; the others have their own services.
        with suppress(PeerLost):
            while True:
                like = self._value if self._encoded is None else self._encoded  # of its shape
                visitor = await self._worker.receive(rank, like=like, tag="visit")
                await self._brought.spends(decoded=self._value.shape[-1])
                self._value, reply = self._meet(self._value, visitor.value)
                await self._worker.send(rank, reply, tag="reply")


class ReplicatedCentre:
    """The centre of synchronous elastic averaging: every worker has a copy, and all copies move alike.

    ``known``: the centre [..., d].
    """

    def __init__(self, worker: Worker, pull: float) -> None:
        self._worker = worker
        self._pull = pull
        self.known = worker.start

    async def visit(self, value: Tensor) -> Tensor:
        """Move the centre towards the mean of all workers' ``value``; returns alpha (value - c)."""
        mean = await self._worker.all_reduce(value)
        difference = (self._pull / self._worker.size) * (value - self.known)
        self.known = self.known + self._pull * (mean - self.known)
        return difference


EASGD: Final = Scheme(
    "easgd", easgd, EasgdOptions, True, check, publishes=publishes_centre,
    cycle=one_period, held=held_elastic,
    depends_on_timing=lambda options: options.asynchronous, shrinks=lambda options: not options.asynchronous,
    weighs=lambda options: None,
)  # fmt: skip
EAMSGD: Final = Scheme(
    "eamsgd", eamsgd, EamsgdOptions, True, check, own_momentum=True, publishes=publishes_centre,
    cycle=one_period,
    held=held_elastic, depends_on_timing=lambda options: options.asynchronous,
    shrinks=lambda options: not options.asynchronous, weighs=lambda options: None,
)  # fmt: skip
DOWNPOUR: Final = Scheme(
    "downpour", downpour, DownpourOptions, False, check, publishes=publishes_leader, cycle=one_period,
    # The sum of updates and the centre, whose host serves all others at once.
    held=lambda options, sizes: Held(
        optimizer=sizes.moments, anchors=2, in_flight=on_a_server(sizes.workers - 1) + REPLACED
    ),
)  # fmt: skip
