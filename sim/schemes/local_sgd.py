"""Local SGD: workers step alone, and models are averaged at the end of every period of steps.

    x_i <- x_i - step of the optimiser at g_i;   at the end of a period:  x_i <- (1/n) sum_j x_j

Bytes per step and worker: an all-reduce's over the period. Waits for: all workers, once a period. A
straggler's jitter averages out inside a period. Three schemes choose the period; ``adaptive_local_sgd``
has a module of its own.

``local_sgd``: ``period`` is constant. Steps are counted from the end of the warm-up, in which models are
averaged at every step. With ``quorum`` or ``deadline`` a straggler is left out; it abandons the rest of its
period and takes the average (``common/rounds.py``). Source: Stich, ICLR 2019; CPSGD (constant period) in
Jiang and Agrawal, arXiv 2007.06134, whose FULLSGD is ``all_reduce``.

``post_local_sgd``: synchronous SGD first, local SGD from step ``switch_at`` on.

    k < switch_at:  x <- x - step of the optimiser at (1/n) sum_i g_i
    then:           x_i <- x_i - step of the optimiser at g_i;
                    if (k + 1 - switch_at) mod period = 0:  x_i <- (1/n) sum_j x_j

The optimiser's buffers are equal on all workers at the switch. Source: Lin et al., ICLR 2020
(arXiv 1808.07217).
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field, Tag

from ..config.settings import Settings
from ..program.encoding import Compression
from ..program.worker import Program, Worker
from .common.compressed import RoundTime, encodes_averages
from .common.exchange import ModelExchange, Momentum, averages_in_flight, pack, unpack
from .common.held import Held, Sizes, in_rounds
from .common.local_steps import (
    BY_FORM,
    LocalPeriod,
    TimedPeriod,
    period_steps,
    taken_steps,
)
from .common.rounds import Deadline, Quorum, Rounds, check_quorum, leaves_out
from .scheme import Scheme, one_period, publishes_averages


class LocalSgdOptions(Settings):
    """Options of ``local_sgd``."""

    period: LocalPeriod = Field(description="steps between two averages")
    warmup: int = Field(default=0, ge=0, description="first steps, with an average at every step")
    momentum: Momentum = "local"
    round: RoundTime = 0.0
    compression: Compression | None = Field(
        default=None,
        description="encoding of changes since the last average (default: none, whole models are sent)",
    )
    quorum: Quorum = None
    deadline: Deadline = None


def check(options: LocalSgdOptions, workers: int) -> None:
    """Raise ``InputError`` where a quorum is out of reach, or does not go with ``compression``."""
    check_quorum(options, workers, compression=options.compression is not None)


def without_warmup(options: LocalSgdOptions) -> Settings:
    """The options without the warm-up, in which models are averaged at every step."""
    return options.model_copy(update={"warmup": 0})


def held(options: LocalSgdOptions, sizes: Sizes) -> Held:
    """Model and gradient; the arriving average and, where changes are sent encoded, the last average."""
    if leaves_out(options):
        return Held(optimizer=sizes.moments, in_flight=in_rounds(sizes))
    models, _ = sizes.message(options.momentum)
    return Held(
        optimizer=sizes.moments,
        anchors=models if options.compression is not None else 0,
        in_flight=averages_in_flight(options.momentum, options.compression, sizes),
    )


def local_sgd(worker: Worker, options: LocalSgdOptions) -> Program:
    """Local SGD: workers step alone, and models are averaged every ``period`` steps."""
    if leaves_out(options):
        like = pack(worker.start, worker.optimizer.init(worker.start), options.momentum)
        rounds = Rounds(worker, options.quorum, options.deadline, like)
        return Program(_local_steps_in_time(worker, options, rounds), rounds.services())
    return Program(local_steps(worker, options))


async def local_steps(worker: Worker, options: LocalSgdOptions) -> None:
    """Local SGD with averages over all workers."""
    exchange = ModelExchange(worker, options.compression, options.momentum)
    x, state, last = worker.kept or (*worker.fresh(), exchange.first_average())
    takes = taken_steps(worker, options)
    async for k in worker.steps():
        if takes(k - options.warmup):
            gradient = await worker.gradient(x)
            x, state = worker.optimizer.update(x, gradient, state)
        averages = _averages_after(k, options)
        if averages:
            x, state, last = await exchange.average_changes(k, x, state, last)
            await worker.spend(options.round)
        await worker.publish(k, x, averaged=x if averages else None, kept=(x, state, last))


def _averages_after(k: int, options: LocalSgdOptions) -> bool:
    return k < options.warmup or (k + 1 - options.warmup) % period_steps(options.period) == 0


async def _local_steps_in_time(worker: Worker, options: LocalSgdOptions, rounds: Rounds) -> None:
    x = worker.start
    state = worker.optimizer.init(x)
    async for k in worker.steps():
        x, state, in_time = await rounds.step(x, state)
        if _averages_after(k, options):
            if in_time:
                await rounds.contribute(pack(x, state, options.momentum))
            x, state = unpack(await rounds.average(), state, options.momentum)
            await worker.spend(options.round)
        await rounds.publish(k, x)
    await rounds.leave()


class PostLocalSgdOptions(Settings):
    """Options of ``post_local_sgd``."""

    switch_at: int = Field(ge=1, description="first steps, with an average of gradients at every step")
    period: Annotated[Annotated[int, Field(ge=2), Tag("number of steps")] | TimedPeriod, BY_FORM] = Field(
        description="steps between two averages of models afterwards"
    )
    momentum: Momentum = "local"
    round: RoundTime = 0.0


async def post_local_sgd(worker: Worker, options: PostLocalSgdOptions) -> None:
    """Post-local SGD: synchronous SGD first, local SGD from a certain step on.

    Bytes per step and worker: an all-reduce's, later that over the period. Waits for: all workers, later once
    a period.
    """
    exchange = ModelExchange(worker, None, options.momentum)
    x, state = worker.kept or worker.fresh()
    takes, period = taken_steps(worker, options), period_steps(options.period)
    async for k in worker.steps():
        if takes(k - options.switch_at):
            gradient = await worker.gradient(x)
            if k < options.switch_at:
                gradient = await worker.all_reduce(worker.weighed(gradient))
            x, state = worker.optimizer.update(x, gradient, state)
        averages = k >= options.switch_at and (k + 1 - options.switch_at) % period == 0
        if averages:
            x, state = await exchange.mix(k, x, state, None)
            await worker.spend(options.round)
        averaged = x if averages or k < options.switch_at else None
        await worker.publish(k, x, averaged=averaged, kept=(x, state))


LOCAL_SGD: Final = Scheme(
    "local_sgd", local_sgd, LocalSgdOptions, True, check, publishes=publishes_averages, cycle=one_period,
    long_run=without_warmup, held=held, depends_on_timing=leaves_out, encodes=encodes_averages,
    shrinks=lambda options: not leaves_out(options), weighs=lambda options: "models",
)  # fmt: skip
POST_LOCAL_SGD: Final = Scheme(
    "post_local_sgd", post_local_sgd, PostLocalSgdOptions, True, publishes=publishes_averages,
    cycle=one_period,
    long_run=lambda options: options.model_copy(update={"switch_at": 0}),
    held=lambda options, sizes: Held(
        optimizer=sizes.moments, in_flight=averages_in_flight(options.momentum, None, sizes)
    ),
    shrinks=lambda options: True, weighs=lambda options: "models",
)  # fmt: skip
