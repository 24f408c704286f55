"""DiLoCo: workers train alone, and an outer optimiser steps along their mean change.

With the common model t, its copies x_i, and D_i = t - x_i as a gradient; every ``period`` steps, with outer
learning rate h and momentum m:

    x_i <- x_i - step of the (inner) optimiser at g_i                      at every step
    u <- m u + mean of D_i,   t <- t - h (mean of D_i + m u),   x_i <- t   (Nesterov; without: t <- t - h u)

The inner optimiser, AdamW in the paper, is the entry's ``optimizer``; its buffers are local. The running
buffers of batch norm become the workers' mean.

Streaming: the model is cut into ``fragments`` P of equal size, consecutive parameters each, with an outer
optimiser of its own. Fragment 1, 2, ..., P in turn is averaged after every ``period`` / P steps, so each of
them once a period, in the same order on all workers. With a ``delay`` T it is in transit during T more steps;
then, with the x_i of that time,

    t <- the outer step;   x_i <- (1 - alpha) t + alpha x_i

A delay is shorter than ``period`` / P, so that one fragment is in transit at a time. The last ones of a run
are received, and not used. With ``compression``, D_i is sent encoded.

With ``inside`` the workers of a host (or of a site) act as one: they average their gradients at every inner
step, with ``overlap`` during the backward pass, and D_i is their common model's (``inside.py``). With
``quorum`` or ``deadline`` a straggler's D_i is left out of the mean; it abandons the rest of its period and
takes the new t (``common/rounds.py``).

Bytes per step and worker: those of an all-reduce over the period. Waits for: all workers, once a period for
each fragment; with a delay only if the average has not arrived after ``delay`` steps.

Source: Douillard et al., arXiv 2311.08105 (DiLoCo, algorithm 1); arXiv 2501.18512 (streaming), which cuts by
layers. Its delay counts inner steps, as here.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import torch
from pydantic import Field
from torch import Tensor

from ..config.settings import Settings
from ..errors import InputError
from ..program.encoding import Compression
from ..program.worker import Program, State, Worker
from .common.compressed import (
    AverageUnderWay,
    CompressedAllReduce,
    RoundTime,
    average_in_flight,
    encodes_averages,
)
from .common.held import REPLACED, Held, Sizes, in_rounds
from .common.inside import Inside, Units
from .common.local_steps import LocalPeriod, is_by_time, period_steps, taken_steps
from .common.outer import OuterOptimizer, buffers_in, outer_rule
from .common.rounds import Deadline, Quorum, Rounds, check_quorum, leaves_out
from .scheme import Scheme, one_period, publishes_averages

BUCKET_BYTES: Final = 25.0 * 2**20
"""Of gradients averaged inside a unit during the backward pass: DistributedDataParallel's default."""


class DilocoOptions(Settings):
    """Options of ``diloco``."""

    period: LocalPeriod = Field(default=100, description="inner steps between outer steps of a fragment")
    outer: OuterOptimizer = Field(default=OuterOptimizer(), description="the outer optimiser: SGD")
    fragments: int = Field(default=1, ge=1, description="parts of the model, averaged in turn once a period")
    delay: int = Field(default=0, ge=0, description="inner steps during an average; 0: wait for it")
    alpha: float = Field(
        default=0.0, ge=0, le=1, description="weight of the worker's own model when an average arrives"
    )
    compression: Compression | None = Field(
        default=None, description="encoding of changes since the last outer step (default: none)"
    )
    round: RoundTime = 0.0
    inside: Inside = None
    overlap: bool = Field(
        default=False,
        description="with inside: average gradients during the backward pass, in buckets of 25 MiB, as "
        "DistributedDataParallel does",
    )
    quorum: Quorum = None
    deadline: Deadline = None


def check(options: DilocoOptions, workers: int) -> None:
    """Raise ``InputError`` where the fragments do not fit into the period."""
    period = period_steps(options.period)
    spacing, rest = divmod(period, options.fragments)
    if rest or not spacing:
        raise InputError(
            f"a period of {period} steps is no multiple of {options.fragments} fragments; "
            f"write for example 'period: {options.fragments * max(1, spacing)}'"
        )
    if options.delay >= spacing:
        between = f"{spacing} steps after the one before" if spacing > 1 else "after every step"
        raise InputError(
            f"a delay of {options.delay} steps is too long: the next fragment leaves {between}; "
            f"write 'delay: {spacing - 1}', or a longer period"
        )
    if options.overlap and options.inside is None:
        raise InputError("overlap is of the averages inside hosts or sites; write 'inside: hosts' beside it")
    if options.inside is not None and is_by_time(options):
        raise InputError(
            "'inside' averages gradients in every step, which by time some units leave out; leave it out, or "
            "write 'period' as a number"
        )
    check_quorum(
        options,
        workers,
        fragments=options.fragments > 1,
        delay=options.delay > 0,
        alpha=options.alpha > 0,
        compression=options.compression is not None,
        inside=options.inside is not None,
    )


def held(options: DilocoOptions, sizes: Sizes) -> Held:
    """Model, gradient, the common model and its momentum; a fragment's change and mean change."""
    outer = 1.0 if options.outer.momentum else 0.0
    if leaves_out(options):
        in_flight = in_rounds(sizes)
    else:
        several = 1 if options.fragments > 1 else 0  # the rejoined model and the last fragment
        average = average_in_flight(options.compression, sizes)
        # With a delay the codes of a change are kept, or a unit's shard of it.
        coded = options.delay and options.compression and options.compression.qsgd
        change = 0.5 if coded else 1
        in_flight = (change + several + average) / options.fragments + several
        if sizes.members > 1:  # mean gradient inside
            in_flight = max(in_flight, 1.0) + options.overlap * REPLACED
    return Held(optimizer=sizes.moments, anchors=1, outer_momentum=outer, in_flight=in_flight)


def diloco(worker: Worker, options: DilocoOptions) -> Program:
    """DiLoCo: local steps, and every ``period`` steps an outer step with momentum along their mean change.

    Streaming where there are several ``fragments``.
    """
    if leaves_out(options):
        rounds = Rounds(worker, options.quorum, options.deadline, worker.start)
        return Program(_outer_steps_in_time(worker, options, rounds), rounds.services())
    return Program(_outer_steps(worker, options))


async def _outer_steps_in_time(worker: Worker, options: DilocoOptions, rounds: Rounds) -> None:
    x = common = worker.start
    state = worker.optimizer.init(x)
    rule = outer_rule(options.outer, buffers_in(worker, 0, x.shape[-1]))
    outer_state = rule.init(common)
    async for k in worker.steps():
        x, state, in_time = await rounds.step(x, state)
        if (k + 1) % period_steps(options.period) == 0:
            if in_time:
                await rounds.contribute(common - x)
            common, outer_state = rule.update(common, await rounds.average(), outer_state)
            await worker.spend(options.round)
            x = common
        await rounds.publish(k, x)
    await rounds.leave()


async def _outer_steps(worker: Worker, options: DilocoOptions) -> None:
    x, state, *fragments = worker.kept or worker.fresh()
    length = x.shape[-1]
    cuts = [number * length // options.fragments for number in range(options.fragments + 1)]
    units = Units(worker, options.inside, BUCKET_BYTES if options.overlap else None)
    turns = [Fragment(worker, units, options, start, stop) for start, stop in pairwise(cuts)]
    for each, (value, outer_state) in zip(turns, fragments, strict=False):
        each.value, each.outer_state = value, outer_state
    takes = taken_steps(worker, options)
    spacing = period_steps(options.period) // options.fragments
    current = turns[-1]
    async for k in worker.steps():
        if takes(k):
            gradient = await units.gradient(x)
            x, state = worker.optimizer.update(x, gradient, state)
        turn, since = divmod(k + 1, spacing)
        if since == 0:
            current = turns[(turn - 1) % options.fragments]
            await current.begin(x, k)
        elif turn and 2 * since == options.delay + options.delay % 2:
            await current.go_on()
        applies = current.under_way and since == options.delay
        if applies:
            x = await current.apply(x)
            await worker.spend(options.round / options.fragments)
        averaged = _joined(turns) if applies else None
        await worker.publish(k, x, averaged=averaged, kept=(x, state, *(each.kept for each in turns)))
        del averaged
    await current.abandon()


class Fragment:
    """Elements [start, stop) of the common model, with their own outer optimiser."""

    def __init__(self, worker: Worker, units: Units, options: DilocoOptions, start: int, stop: int) -> None:
        self._worker, self._units = worker, units
        self._start, self._stop, self._alpha = start, stop, options.alpha
        self._average = CompressedAllReduce(worker, options.compression, stop - start, units.members)
        self._waits = options.delay == 0
        self._rule = outer_rule(options.outer, buffers_in(worker, start, stop))
        self.value = worker.start[..., start:stop]
        self.outer_state = self._rule.init(self.value)
        self._mean: Tensor | AverageUnderWay | None = None

    @property
    def kept(self) -> tuple[Tensor, State]:
        """Its elements, and the state of their outer optimiser."""
        return self.value, self.outer_state

    @property
    def under_way(self) -> bool:
        """Whether it has been averaged since the last outer step; after a fault that average is lost."""
        return self._mean is not None

    async def begin(self, x: Tensor, k: int) -> None:
        """Average the change in the model x [..., d] after step ``k``; with a delay, only begin to."""
        change = self._worker.weighed(self.value - x[..., self._start : self._stop])
        change = self._units.shard(change)
        if self._waits:
            self._mean = await self._average.all_reduce(change, k, self._units.across)
        else:
            self._mean = await self._average.begin(change, k, self._units.across)

    async def go_on(self) -> None:
        """Begin the second half of an encoded average, when half of the delay is over."""
        if isinstance(self._mean, AverageUnderWay):
            await self._mean.go_on()

    async def apply(self, x: Tensor) -> Tensor:
        """Take the outer step; returns the model x [..., d] with it."""
        mean = await self._mean.wait() if isinstance(self._mean, AverageUnderWay) else self._mean
        assert mean is not None
        mean = await self._units.gather(mean, self.value.shape[-1])
        self._mean = None
        self.value, self.outer_state = self._rule.update(self.value, mean, self.outer_state)
        merged = self.value
        if self._alpha:
            merged = torch.lerp(self.value, x[..., self._start : self._stop], self._alpha)
        if merged.shape == x.shape:
            return merged
        return torch.cat([x[..., : self._start], merged, x[..., self._stop :]], dim=-1)

    async def abandon(self) -> None:
        """Wait for an average still in transit at the end of a run."""
        if isinstance(self._mean, AverageUnderWay):
            await self._mean.wait()


def _joined(turns: list[Fragment]) -> Tensor:
    return turns[0].value if len(turns) == 1 else torch.cat([each.value for each in turns], dim=-1)


DILOCO: Final = Scheme(
    "diloco", diloco, DilocoOptions, True, check, publishes=publishes_averages, cycle=one_period, held=held,
    parts=lambda options: options.fragments, depends_on_timing=leaves_out, encodes=encodes_averages,
    inside=lambda options: options.inside, weighs=lambda options: "models",
    bucket_bytes=lambda options: (BUCKET_BYTES,) * 2 if options.overlap else None,
    shrinks=lambda options: not leaves_out(options),
)  # fmt: skip
