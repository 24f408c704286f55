"""Stochastic gradient push: gossip over directed graphs, where every sender splits its mass.

With P(k) column-stochastic (column j says how j splits its mass), biased models x and weights w, w_i(0) = 1:

    z_i <- x_i / w_i;   x_i <- x_i - step of the optimiser at g_i = grad F_i(z_i)
    (x_i, w_i) <- P_ii(k) (x_i, w_i) + sum_j P_ij(k) (x_j, w_j)

No message needs an answer: out-degrees may differ, and graphs may change from step to step. Mass on workers
and in transit is conserved: sum_i w_i = n, and sum_i x_i moves by gradient steps alone. With ``overlap`` T a
worker computes on after sending, and messages of a step are added T steps later: results do not depend on
timing. With ``asynchronous`` every worker goes at its own pace and adds messages on arrival; a worker that
has done its steps forwards arriving mass to its out-neighbours, one after another, so that active workers
keep their mass. ``biased`` leaves out the division by w: wrong wherever w is not 1. With ``inside`` the
workers of a host (or of a site) act as one: they average their gradients at every step, and each pushes a
shard of their model.

Bytes per step and worker: out-degree models, and 4 bytes for each w, which is not sent where it stays 1 by
itself (rows of P that also sum to 1, no overlap). Waits for: the in-neighbours of this step, or of
``overlap`` steps ago, and until its own messages have left, that is until their receivers have reached the
same step; asynchronously, for the hosts of its out-neighbours alone.

Source: Assran et al., ICML 2019 (arXiv 1811.10792): SGP and overlap SGP, whose published code also adds a
message exactly one step later for T = 1 (for longer T the paper adds arrivals earlier), and on hosts of
several GPUs is SGP between hosts. Asynchronous: Spiridonoff et al., JMLR 2020.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from typing import Any, Final

import torch
from pydantic import Field
from torch import Tensor

from .. import topology
from ..config.settings import Settings
from ..errors import InputError
from ..program import operations as ops
from ..program.encoding import Payload, append_numbers
from ..program.pattern import Pattern
from ..program.worker import Program, Worker
from ..records.accounting import SMALL_WEIGHT_NOTE
from ..topology import Plan, TopologyEntry
from .common.held import Held, Sizes, most_neighbours
from .common.inside import Inside, Units
from .scheme import Scheme, cycle_of_graphs, publishes_none

LEAST_WEIGHT: Final = 1e-3
"""Push-sum weight below which a run is warned of."""


class SgpOptions(Settings):
    """Options of ``sgp``."""

    topology: TopologyEntry = Field(description="topology of messages, directed or not")
    weights: str = Field(default="column_stochastic", description="rule by which a sender splits its mass")
    overlap: int = Field(
        default=0, ge=0, description="steps in which a message may be in transit; 0: wait for it"
    )
    asynchronous: bool = Field(
        default=False, description="add messages on arrival, without synchronous steps"
    )
    biased: bool = Field(default=False, description="leave out the division by the push-sum weight")
    inside: Inside = None


@dataclass
class Mass:
    """The mass that one worker holds, shared by its coroutines, which switch only at ``await``.

    Attributes:
        x: biased model [..., d].
        w: push-sum weight [..., 1]; None where it is 1 or not used, and not sent.
        steps: whether the worker has steps left and so keeps arriving mass.
        passing: part of ``whole`` that has arrived since and is to be forwarded; None: nothing.
    """

    x: Tensor
    w: Tensor | None
    steps: bool = True
    passing: Tensor | None = None

    @property
    def z(self) -> Tensor:
        """The unbiased model [..., d]."""
        return self.x if self.w is None else self.x / self.w

    @property
    def whole(self) -> Tensor:
        """The value whose shares are sent: model [..., d], or [..., d + 1] followed by the weight."""
        return self.x if self.w is None else torch.cat([self.x, self.w], dim=-1)

    @whole.setter
    def whole(self, value: Tensor) -> None:
        if self.w is None:
            self.x = value
        else:
            self.x, self.w = value[..., :-1], value[..., -1:].clone()  # as a view it would keep all of value

    @property
    def notes(self) -> Mapping[str, float]:
        """Notes of a step: a warning of a small weight, which magnifies rounding and gradients.

        None on a device: reading a weight there would wait for the device.
        """
        if self.w is None or self.w.device.type != "cpu" or self.w.min() >= LEAST_WEIGHT:
            return {}
        return {SMALL_WEIGHT_NOTE: 1.0}

    def payload(self, share: Tensor) -> Payload:
        """A ``share`` of ``whole`` as a message; the weight's bytes are counted apart from the model's."""
        return share if self.w is None else append_numbers(share[..., :-1], share[..., -1:])


def check(options: SgpOptions, units: int) -> None:
    """Raise ``InputError`` where mass would be lost, or a weight could vanish."""
    if options.inside is not None and options.asynchronous:
        raise InputError("inside and asynchronous do not go together; choose one of them")
    plan = topology.plan(options.topology, units, options.weights)
    given = plan.weights == topology.GIVEN
    choice = "leave its own weights out" if given else "use weights: column_stochastic"
    if not plan.column_stochastic:
        raise InputError(
            f"push-sum needs columns that sum to 1; those of topology {plan.name} with {plan.weights} weights"
            f" do not: {choice}"
        )
    if plan.least_weight <= 0:
        raise InputError(
            f"push-sum divides by sums of weights, and those of topology {plan.name} with {plan.weights}"
            f" weights go down to {plan.least_weight:.3g}: {choice}"
        )


def held(options: SgpOptions, sizes: Sizes) -> Held:
    """Biased and unbiased model, gradient; shares in transit of ``overlap`` steps and the last."""
    plan = topology.plan(options.topology, sizes.units or sizes.workers, options.weights)
    neighbours, steps = most_neighbours(plan), options.overlap + 1
    if options.asynchronous:
        return Held(optimizer=sizes.moments, anchors=1, in_flight=steps * neighbours + 5)
    messages = steps * (1 + neighbours) / sizes.members
    return Held(optimizer=sizes.moments, anchors=1, in_flight=messages + options.overlap)


def sgp(worker: Worker, options: SgpOptions) -> Program:
    """Stochastic gradient push: gossip over directed graphs, whose senders split their mass."""
    units = Units(worker, options.inside)
    plan = topology.plan(options.topology, units.number, options.weights, worker.seed)
    in_step = not options.asynchronous
    stays_one = in_step and options.overlap == 0 and plan.row_stochastic
    w = None if options.biased or stays_one else torch.ones_like(worker.start[..., :1])
    x, kept_w, _ = worker.kept or (worker.start, None, None)
    mass = Mass(x, w if kept_w is None else kept_w)
    if in_step:
        return Program(push_in_step(worker, mass, units, plan, options.overlap))
    services = take_in(worker, mass), pass_on(worker, mass, plan)
    return Program(push_freely(worker, mass, plan, options.overlap), services)


async def push_in_step(worker: Worker, mass: Mass, units: Units, plan: Plan, overlap: int) -> None:
    """Run the synchronous form: mass sent in step k is added in step k + ``overlap``."""
    state = worker.kept[-1] if worker.kept else worker.optimizer.init(mass.x)
    under_way: deque[ops.Handle] = deque()

    def message() -> Payload:
        return mass.payload(replace(mass, x=units.shard(mass.x)).whole)

    async def gathered(arrived: Tensor) -> Tensor:
        part = replace(mass)
        part.whole = arrived
        return replace(part, x=await units.gather(part.x, mass.x.shape[-1])).whole

    async for k in worker.steps():
        gradient = await units.gradient(mass.z)
        mass.x, state = worker.optimizer.update(mass.x, gradient, state)
        pattern = units.pattern(plan.at(k))
        if overlap == 0:
            mass.whole = await gathered(await worker.mix(pattern, message()))
        else:
            late = None
            if units.members > 1 and len(under_way) == overlap:  # in turn, shards would wait for the message
                late = await gathered(await worker.wait(under_way.popleft()))
            under_way.append(await worker.begin(ops.Mix(_from_others(pattern), message())))
            mass.whole = mass.whole * _kept_share(worker, pattern)
            if len(under_way) > overlap:
                late = await gathered(await worker.wait(under_way.popleft()))
            mass.whole = mass.whole if late is None else mass.whole + late
            del late
        await worker.publish(k, mass.z, kept=(mass.x, mass.w, state), **mass.notes)  # type: ignore[arg-type]
    for handle in under_way:
        mass.whole = mass.whole + await gathered(await worker.wait(handle))


async def push_freely(worker: Worker, mass: Mass, plan: Plan, overlap: int) -> None:
    """Run the asynchronous form at this worker's own pace; ``take_in`` adds arriving mass."""
    state = worker.optimizer.init(mass.x)
    under_way: deque[list[ops.Handle]] = deque()
    async for k in worker.steps():
        gradient = await worker.gradient(mass.z)
        mass.x, state = worker.optimizer.update(mass.x, gradient, state)
        pattern, whole = plan.at(k), mass.whole
        mass.whole = whole * pattern.own[worker.rank]
        under_way.append([
            await worker.begin(
                ops.Send(peer, mass.payload(whole * pattern.weight(peer, worker.rank)), tag="push")
            )
            for peer in pattern.destinations[worker.rank]
        ])  # fmt: skip
        if len(under_way) > overlap:
            for handle in under_way.popleft():
                await worker.wait(handle)
        await worker.publish(k, mass.z, **mass.notes)  # type: ignore[arg-type]
    mass.steps = False
    for started in under_way:
        for handle in started:
            await worker.wait(handle)


async def take_in(worker: Worker, mass: Mass) -> None:
    """Add arriving mass to this worker's: a service of the asynchronous form."""
    while True:
        message = await worker.receive(ops.ANY, like=mass.payload(mass.whole), tag="push")
        mass.whole = mass.whole + message.value
        if not mass.steps:
            mass.passing = message.value if mass.passing is None else mass.passing + message.value
            await worker.signal("passing")


async def pass_on(worker: Worker, mass: Mass, plan: Plan) -> None:
    """Forward arriving mass, in one piece, once this worker has done its steps: no message becomes two."""
    peers = (peer for step in count() for peer in plan.at(step).destinations[worker.rank])
    while True:
        await worker.await_signal("passing")
        if mass.passing is not None:
            passing, mass.passing = mass.passing, None
            mass.whole = mass.whole - passing
            await worker.send(next(peers), mass.payload(passing), tag="push")


@lru_cache(maxsize=64)
def _from_others(pattern: Pattern) -> Pattern:
    """The pattern with own weights 0, so that ``mix`` returns only arriving mass."""
    return replace(pattern, own=(0.0,) * pattern.workers)


def _kept_share(worker: Worker, pattern: Pattern) -> Tensor:
    """The share of its mass that this worker keeps, [1]; of all workers when vectorised, [n, 1]."""
    shares = [worker.start.new_full((1,), pattern.own[rank]) for rank in worker.ranks]
    return torch.stack(shares) if worker.vectorised else shares[0]


def split_mass(kept: tuple[Any, ...]) -> tuple[Any, ...]:
    """A half of a worker's mass, for itself and for the worker that it heals; the model is that of both."""
    x, w, *others = kept or (None, None)
    return kept if w is None else (x / 2, w / 2, *others)


SGP: Final = Scheme(
    "sgp", sgp, SgpOptions, True, check, publishes=publishes_none, cycle=cycle_of_graphs, held=held,
    depends_on_timing=lambda options: options.asynchronous,
    inside=lambda options: options.inside,
    shrinks=lambda options: not options.asynchronous, split=split_mass,
)  # fmt: skip
