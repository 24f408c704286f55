"""Leader SGD: workers step alone and are pulled towards the best of them.

The objective is sum_i f(x_i) + (lambda/2) |x_i - leader|^2 with the leader argmin_i f(x_i), and with groups a
second such term for the leader of each. Local steps, x_i <- x_i - step of the optimiser at g_i; then

    every period:        x_i <- x_i + pull (leader of i's group - x_i)
    every global_period: x_i <- x_i + global_pull (leader of all - x_i)

The leader is the worker with the lowest mean of its last ``loss_window`` batch losses (ties: the lower rank).
Its own pull is zero, so its model is an ordinary iterate of SGD. With batches that hold the whole training
set (``partition: replicated``) this is leader gradient descent, LGD.

Asynchronous: a service of worker 0 counts the steps of all workers together; after every n * period of them,
more by faster workers, all meet in a round. A worker that has done its steps waits in the next round.

Bytes per step and worker: over the period (n-1)/n models (a broadcast along a tree), 4 (n-1) bytes of losses
and, asynchronous, two numbers a step to and from the counter. Waits for: its group once a period, all workers
once a global period; asynchronous: all workers once a round, and for the counter's answer. A worker sends its
request for a step to the counter before it computes the previous step.

Where nothing is trained, as in ``paceline check``, losses are drawn and each worker leads as often: whom a
training set favours is not known there.

Source: Teng et al., NeurIPS 2019 (arXiv 1905.10395), the algorithm and the multi-leader objective; the
score of the leader as in its experiments. Left out: the continuous pull between rounds of the authors' code.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import reduce
from typing import Annotated, Any, Final, Literal

import torch
from pydantic import Field
from torch import Tensor

from paceline.extras.papers.parameter_server import Spread, publishes_leader, scattered
from paceline.sim.config.settings import Settings
from paceline.sim.errors import InputError
from paceline.sim.network.network import Network
from paceline.sim.program import operations as ops
from paceline.sim.program.encoding import LIKE_INT, int_message
from paceline.sim.program.groups import Groups
from paceline.sim.program.worker import Program, Worker
from paceline.sim.schemes.common.held import Held
from paceline.sim.schemes.common.inside import unit_groups
from paceline.sim.schemes.scheme import Scheme


class LeaderSgdOptions(Settings):
    """Options of ``leader_sgd``."""

    period: int = Field(ge=1, description="steps between pulls towards the group's leader")
    pull: float = Field(default=0.1, gt=0, le=1, description="share of the distance to that leader")
    groups: Annotated[int, Field(ge=1)] | Literal["sites"] = Field(
        default=1, description="number of groups with a leader each, or 'sites'"
    )
    global_period: int | None = Field(
        default=None, ge=1, description="steps between pulls towards the leader of all (default: period)"
    )
    global_pull: float = Field(default=0.1, gt=0, le=1, description="share of the distance to that leader")
    asynchronous: bool = Field(default=False, description="count periods in steps of all workers together")
    loss_window: int = Field(default=10, ge=1, description="batch losses in the mean that decides the leader")
    spread: Spread = 0.0


def check(options: LeaderSgdOptions, workers: int) -> None:
    """Raise ``InputError`` where groups or periods do not divide."""
    groups = options.groups
    if isinstance(groups, int) and workers % groups:
        fits = min((g for g in range(1, workers + 1) if workers % g == 0), key=lambda g: abs(g - groups))
        raise InputError(f"{workers} workers do not divide into {groups} groups; use {fits}")
    if options.global_period is None:
        return
    if options.groups == 1:
        raise InputError("global_period needs groups, there is one leader only; leave it out")
    if options.global_period % options.period:
        below = options.global_period - options.global_period % options.period
        raise InputError(
            f"global_period {options.global_period} is no multiple of period {options.period};"
            f" use {max(below, options.period)}"
        )


def check_network(options: LeaderSgdOptions, network: Network) -> None:
    """Raise ``InputError`` where the leaders of all sites would be one leader."""
    one_site = len(set(network.site_of)) == 1
    if options.groups == "sites" and options.global_period is not None and one_site:
        raise InputError("global_period needs groups, but the cluster is one site; leave it out")


def leader_sgd(worker: Worker, options: LeaderSgdOptions) -> Program:
    """Leader SGD: workers step alone and are pulled towards the best of them."""
    if not options.asynchronous:
        return Program(_synchronous(worker, options))
    counter = StepCounter(worker, options.period * worker.size)
    return Program(_asynchronous(worker, options, counter), counter.services())


async def _synchronous(worker: Worker, options: LeaderSgdOptions) -> None:
    x = scattered(worker, options.spread)
    state = worker.optimizer.init(x)
    x, state, *losses_before = worker.kept or (x, state)
    recent: deque[Tensor] = deque(losses_before, maxlen=options.loss_window)
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        recent.append(await worker.batch_loss())
        x, state = worker.optimizer.update(x, gradient, state)
        for tier in _tiers(worker, options):
            if (k + 1) % tier.period == 0:
                losses = await worker.all_gather(_mean(recent), tier.groups)
                x = await _follow(worker, x, losses, tier)
        await worker.publish(k, x, kept=(x, state, *recent))


async def _asynchronous(worker: Worker, options: LeaderSgdOptions, counter: StepCounter) -> None:
    x = scattered(worker, options.spread)
    state = worker.optimizer.init(x)
    recent: deque[Tensor] = deque(maxlen=options.loss_window)
    rounds = 0
    request = await counter.request()
    async for k in worker.steps():
        while not await counter.granted(request):
            rounds += 1
            x, _ = await _meet(worker, options, rounds, x, recent, stepping=True)
            request = await counter.request()
        request = await counter.request()  # for the next step: answered while this one's gradient computes
        gradient = await worker.gradient(x)
        recent.append(await worker.batch_loss())
        x, state = worker.optimizer.update(x, gradient, state)
        await worker.publish(k, x)
    await counter.leave(request)
    others = True
    while others:
        rounds += 1
        x, others = await _meet(worker, options, rounds, x, recent, stepping=False)


async def _meet(
    worker: Worker, options: LeaderSgdOptions, rounds: int, x: Tensor, recent: deque[Tensor], stepping: bool
) -> tuple[Tensor, bool]:
    """Round number ``rounds`` (from 1) of all workers: x [d] after it, and whether any worker still steps."""
    loss = _mean(recent) if recent else x.new_full((1,), torch.inf)
    gathered = await worker.all_gather(torch.cat([loss, x.new_tensor([float(stepping)])]))
    if not gathered[:, 1].any():
        return x, False
    for tier in _tiers(worker, options):
        if rounds * options.period % tier.period == 0:
            x = await _follow(worker, x, gathered[worker.members(tier.groups), :1], tier)
    return x, True


# --- leaders ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Tier:
    """One pull: towards the leader of each group, or of all (``groups`` None)."""

    groups: Groups | None
    period: int
    pull: float


def _tiers(worker: Worker, options: LeaderSgdOptions) -> tuple[_Tier, ...]:
    if options.groups == "sites":
        groups = unit_groups(worker.sites)
    else:  # equal blocks of neighbouring ranks
        size = worker.size // options.groups
        groups = tuple(tuple(range(first, first + size)) for first in range(0, worker.size, size))
    local = _Tier(groups if len(groups) > 1 else None, options.period, options.pull)
    if local.groups is None:
        return (local,)
    return local, _Tier(None, options.global_period or options.period, options.global_pull)


async def _follow(worker: Worker, x: Tensor, losses: Tensor, tier: _Tier) -> Tensor:
    """x [..., d], pulled towards the member with the lowest of the ``losses`` [..., g, 1] in rank order."""
    place = losses.squeeze(-1).argmin(dim=-1, keepdim=True)
    root = place if tier.groups is None else worker.members(tier.groups).gather(-1, place)
    leader = await worker.broadcast(x, root.squeeze(-1), tier.groups)
    return x + tier.pull * (leader - x)


def _mean(losses: deque[Tensor]) -> Tensor:
    return reduce(torch.add, losses) / len(losses)


# --- the counter of steps -----------------------------------------------------------------------

_COUNTING_RANK: Final = 0
"""The worker whose host counts the steps."""

_STEP, _LEAVE = 0, 1
"""Messages to the counter: a request for one step, or that all steps are done."""


class StepBudget:
    """Grants ``budget`` steps of all workers together between two rounds.

    Once they are used up, every worker with steps left is refused, and so sent to the next round, once.
    """

    def __init__(self, workers: int, budget: int) -> None:
        self._budget = budget
        self._left = budget
        self._stepping = set(range(workers))
        self._expected: set[int] = set()

    def grant(self, rank: int) -> bool:
        """Grant one more step, or refuse it: the worker has to take part in the round first."""
        if self._left:
            self._left -= 1
            if not self._left:
                self._expected = set(self._stepping)
            return True
        self._arrive(rank)
        return False

    def leave(self, rank: int) -> None:
        """Note that a worker has done all its steps: it takes part in every round without being sent."""
        self._stepping.discard(rank)
        if not self._left:
            self._arrive(rank)

    def _arrive(self, rank: int) -> None:
        self._expected.discard(rank)
        if not self._expected:
            self._left = self._budget


CounterRequest = tuple[ops.Handle, ops.Handle]
"""A request for one more step in transit, and the receive of the counter's answer."""


class StepCounter:
    """The step counter as seen by one worker; ``budget`` steps of all workers between two rounds."""

    def __init__(self, worker: Worker, budget: int) -> None:
        self._worker = worker
        self._steps = StepBudget(worker.size, budget) if worker.rank == _COUNTING_RANK else None

    def services(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """Services of the counting host: one for each other worker."""
        if self._steps is None:
            return ()
        others = (rank for rank in range(self._worker.size) if rank != _COUNTING_RANK)
        return tuple(self._serve(self._steps, rank) for rank in others)

    async def request(self) -> CounterRequest | bool:
        """Request one more step without waiting; the counting host has its answer at once."""
        if self._steps is not None:
            return self._steps.grant(self._worker.rank)
        answer = await self._worker.begin(ops.Receive(_COUNTING_RANK, like=LIKE_INT, tag="granted"))
        request = await self._worker.begin(ops.Send(_COUNTING_RANK, int_message(_STEP), tag="step"))
        return request, answer

    async def granted(self, request: CounterRequest | bool) -> bool:
        """Whether the requested step may be done; otherwise a round is due first."""
        if isinstance(request, bool):
            return request
        sent, answer = request
        await self._worker.wait(sent)
        message: ops.Message = await self._worker.wait(answer)
        return bool(message.value)

    async def leave(self, request: CounterRequest | bool) -> None:
        """Tell the counter that this worker stops; the step of its last ``request`` is not done."""
        await self.granted(request)
        if self._steps is not None:
            self._steps.leave(self._worker.rank)
        else:
            await self._worker.send(_COUNTING_RANK, int_message(_LEAVE), tag="step")

    async def _serve(self, steps: StepBudget, rank: int) -> None:
        while (await self._worker.receive(rank, like=LIKE_INT, tag="step")).value.item() == _STEP:
            await self._worker.send(rank, int_message(int(steps.grant(rank))), tag="granted")
        steps.leave(rank)


LEADER_SGD: Final = Scheme(
    "leader_sgd", leader_sgd, LeaderSgdOptions, True, check, check_network=check_network,
    publishes=publishes_leader,
    cycle=lambda options, workers: options.global_period or options.period,
    # The arriving model of the leader; asynchronous: and the own one to be sent.
    held=lambda options, sizes: Held(optimizer=sizes.moments, in_flight=2 if options.asynchronous else 1),
    depends_on_timing=lambda options: options.asynchronous, weighs=lambda options: None,
    draws=lambda options: True,  # losses on batches that are drawn say who leads
    shrinks=lambda options: not options.asynchronous,
)  # fmt: skip
