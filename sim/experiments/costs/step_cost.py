"""Cost of a step of a scheme in the long run: elapsed time over the mean number of steps in it.

A scheme's own code runs on the clock alone, without gradients and without an end, for whole cycles
(``Job.cycle``) of steps until its mean is known well enough (``Watch``). Single events are left out: crashes,
and the scheme's own beginning (``Scheme.long_run``). No number here depends on the machine.

The whole of a step is run as the simulation runs it. Its parts come from three runs over the same cycles
without anything random in computers and networks: on a network that costs nothing, on one with latencies
only, and on the nominal one. The differences are the latency term and the bandwidth term; for an all-reduce
by a ring of n equal workers, with S bytes, latency L and bandwidth B, they are 2 (n - 1) L and
2 (n - 1) S / (n B). Where averages take time besides their exchange (``round``), the difference to a fourth,
without it, is theirs. The rest of the whole is due to randomness (everybody waits for stragglers)
and to the factors of a profile.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import override

from ...compute.compute_settings import Straggler
from ...compute.model import steady_compute
from ...drivers.event import EventDriver
from ...drivers.job import UNRECORDED, Job
from ...drivers.lockstep.exact import why_not
from ...drivers.lockstep.lockstep_driver import LockstepDriver
from ...drivers.lockstep.stacked import StackedTask
from ...drivers.outcome import Outcome
from ...errors import RunError, SchemeError
from ...faults.fault_settings import Heartbeats, needed_bytes_per_s
from ...network.network import Network, Route, bytes_carried, shares_on_links
from ...program import operations as ops
from ...records.accounting import PaceMarks, mean_share
from ...records.run import untimed
from ...scenario.entries import SchemeEntry
from ...scenario.schema import Scenario
from ...schemes import SCHEMES, find_scheme
from ...training.scoring import Scorer, as_they_are
from ...training.snapshots import Published
from ..prepare import churn_of, clock_only, over_profile, prepare
from .watch import BATCH_MEANS, RARE, Enough, Followed, Span, Watch

ENOUGH_WORK: Final = 20_000
"""Messages and steps of workers after which a run of two cycles or more ends."""
ENOUGH_PART_WORK: Final = 2_000
"""The bound where a step is followed many times, each on another network."""
QUARTER: Final = 4
"""One part in this many of the cycles gives the parts of a random step whose workers do not keep step."""
FEW_SCHEMES: Final = 4
"""Number of schemes that each get the full bounds; more schemes share what these would take."""
MOST_WORK: Final = 500_000
"""Messages and steps of workers within which one cycle has to be complete."""
MANY_WORKERS: Final = 128
"""Workers from which a scheme is followed in lockstep, where exact: the same times to rounding."""


@dataclass(frozen=True)
class StepCost:
    """Cost of a step of one scheme.

    Attributes:
        label: of the scheme.
        steps: mean steps per worker behind the numbers.
        shares, average_s: of each worker, as in ``Pace``.
        leaves_out: what does not count, as phrases.
        compute_s, latency_s, bandwidth_s: add up to a step without chance, with ``round_s``; evaluation is
            computing.
        round_s: of averages besides their exchange; None where the scheme has no such time.
        random_s: added by all that is random in the scenario, and by the factors of its profile;
            None where it has neither.
        error: relative standard error of the step; 0 where nothing is random, infinite where unknown.
        bytes_per_worker: sent in a step, mean over the workers.
        card_bytes: over the busiest host's card in a step; None where each has one worker, or in lockstep.
        exchanges: names of the operations by which workers exchange anything, sorted.
        clock_s: measured seconds to simulate a step here on the clock alone.
        heartbeat: of the link that is nearest to starving heartbeats; None where there are none.
        problem: why nothing is known; empty where all is well.
    """

    label: str
    steps: int = 0
    shares: Sequence[float | None] = ()
    average_s: Sequence[float | None] = ()
    leaves_out: Sequence[str] = field(default=(), compare=False)
    compute_s: float = math.nan
    latency_s: float = math.nan
    bandwidth_s: float = math.nan
    round_s: float | None = None
    random_s: float | None = None
    error: float = field(default=math.inf, compare=False)
    bytes_per_worker: float = math.nan
    card_bytes: float | None = None
    exchanges: tuple[str, ...] = ()
    clock_s: float = math.nan
    heartbeat: Mapping[str, Any] | None = None
    problem: str = ""

    @property
    def step_s(self) -> float:
        """Seconds of a step with everything that counts in the simulation."""
        known_s = self.compute_s + self.latency_s + self.bandwidth_s
        return known_s + (self.round_s or 0.0) + (self.random_s or 0.0)


def whole_job(scenario: Scenario, entry: SchemeEntry) -> Job:
    """Job of a scheme's long run with all that counts in its simulation, without values."""
    job = clock_only(endless(prepare(scenario, entry, scenario.seed)))
    return over_profile(job, scenario.cluster.profile)


def follow_whole(scenario: Scenario, entry: SchemeEntry, effort: float = 1.0) -> Followed:
    """Follow a step with everything that counts, over an affordable part of the long run.

    ``effort``: the share of that part.

    Raises:
        RunError: as ``follow``.
    """
    share = effort * min(1.0, FEW_SCHEMES / len(scenario.schemes))
    return follow(whole_job(scenario, entry), partial(enough, share * ENOUGH_WORK))


def left_out(scenario: Scenario, entry: SchemeEntry, followed: Followed) -> list[str]:
    """Phrases for what a step in the long run does not count."""
    crash, once = (
        [bool(s.crash) for s in scenario.cluster.stragglers if s.at is not None].count(each)
        for each in (True, False)
    )
    scheme = find_scheme(entry.name)
    phrases = {
        "start-up, a quarter of the steps": followed.span.first,
        "the scheme's own beginning": scheme.long_run(entry.options) != entry.options,
        "crashes": crash,
        "slow periods that come once": once,
        "connecting": scenario.cluster.network.connect,
        "faults and checkpoints": churn_of(scenario, entry, scenario.seed),
    }
    return [*(phrase for phrase, there in phrases.items() if there), *untimed(followed.exchanges)]


def step_cost(scenario: Scenario, entry: SchemeEntry) -> StepCost:
    """Follow a scheme on the clock alone; one that cannot do without values has a ``problem`` instead."""
    plain = clock_only(endless(prepare(scenario, entry, scenario.seed)))
    network = plain.transfer.network
    nominal = network.steady
    unvarying = with_network(replace(plain, compute=steady_compute(plain.compute, plain.workers)), nominal)
    differs = nominal != network or plain.compute.varies or scenario.cluster.profile is not None
    try:
        total = follow_whole(scenario, entry)
        span = total.span
        # Less varies in the parts.
        if differs and not plain.synchronous and span.last > QUARTER * BATCH_MEANS:
            span = Span(span.first // QUARTER, span.last // QUARTER)
        free_s = follow(on_free_network(unvarying), span).step_s
        without = unvarying.with_rounds(0.0)
        compute_s = free_s if without is unvarying else follow(on_free_network(without), span).step_s
        latency_s = follow(with_network(unvarying, _unlimited(nominal, latency=True)), span).step_s
        # Parts that repeat are rounded alike, so that the bandwidth of what sends nothing is 0.
        steady_s = follow(unvarying, span).step_s if differs or repeats(unvarying) else total.step_s
    except RunError as error:
        return StepCost(entry.label, problem=str(error), clock_s=error.here_s)
    return StepCost(
        label=entry.label,
        steps=total.steps,
        shares=total.pace.shares,
        average_s=total.pace.average_s,
        leaves_out=left_out(scenario, entry, total),
        compute_s=compute_s,
        latency_s=latency_s - free_s,
        bandwidth_s=steady_s - latency_s,
        round_s=None if without is unvarying else free_s - compute_s,
        random_s=total.step_s - steady_s if differs else None,
        error=total.error,
        bytes_per_worker=total.bytes_per_worker,
        card_bytes=total.card_bytes,
        exchanges=total.exchanges,
        clock_s=total.here_s,
        heartbeat=_tightest_link(scenario.cluster.heartbeat, network, total),
    )


def _tightest_link(heartbeat: Heartbeats | None, network: Network, step: Followed) -> dict[str, Any] | None:
    """The link with the least bandwidth for what heartbeats and averages need of it."""
    averages = sum(step.pace.averages) / len(step.pace.averages)
    if heartbeat is None or not averages:
        return None
    needed = {
        link: needed_bytes_per_s(heartbeat, network.num_hosts, share * step.pace.bytes_sent / averages)
        for link, share in shares_on_links(network, step.sent_to).items()
    }
    if not needed:
        return None
    tight = min(needed, key=lambda link: link.bandwidth_bytes_per_s / needed[link])
    has = tight.bandwidth_bytes_per_s
    return {"link": tight.name, "bytes_per_s": has, "needed_bytes_per_s": needed[tight]}


def endless(job: Job) -> Job:
    """``job`` in the long run: without an end, single events, and its scheme's own beginning."""
    # Each keeps its place, by which its random numbers are drawn.
    staying = [
        each if each.at is None else Straggler(workers=(0,), slowdown=1.0)  # which it never is
        for each in job.compute.stragglers
    ]
    return replace(
        job,
        compute=replace(job.compute, stragglers=staying),
        transfer=replace(job.transfer, connect_s=0.0),
        churn=None,
        options=job.scheme.long_run(job.options),
        max_iterations=MOST_WORK,  # which ends a scheme that publishes nothing
    )


def enough(enough_work: float, complete: int, work: int) -> bool:
    """Whether these cycles and this work are enough; with a bound given, an ``Enough``."""
    return work >= MOST_WORK or (complete > 1 and work >= enough_work)


@dataclass
class _Cycles(Scorer[Tensor]):
    """Scorer without scores: ``watch`` counts published steps, ``driver`` what was done besides."""

    watch: Watch = field(kw_only=True)
    driver: Callable[[], EventDriver] = field(kw_only=True)
    nodes: Sequence[int] = field(kw_only=True)
    _left: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict(list), init=False)

    @property
    @override
    def scores(self) -> bool:
        return True

    @property
    @override
    def due_s(self) -> None:
        if not self.watch.published and (work := self.driver().work) >= MOST_WORK:  # of a first step
            raise self.watch.too_long(work / max(work, self.driver().exchanges.collectives.begun))

    @override
    def publish(self, published: Published[Tensor]) -> bool:
        rank = published.worker
        self.watch.publish(rank, published.step, published.time_s, published.bytes_sent)
        if self.nodes and (published.step + 1) % self.watch.marks.cycle == 0:
            sent_to = self.driver().tasks[rank][0].breakdown.sent_to
            others = (peer for peer in sent_to if self.nodes[peer] != self.nodes[rank])
            self._left[rank].append(sum(sent_to[peer] for peer in others))
        return self.watch.is_over(self.driver().work + self.watch.published)

    @property
    def card_bytes(self) -> float | None:
        """Bytes that leave the busiest host in a step, without the first cycle where there are more."""
        cards, cycles = Counter[int](), min(map(len, self._left.values()), default=0)
        for rank, left in self._left.items():
            cards[self.nodes[rank]] += left[cycles - 1] - (left[0] if cycles > 1 else 0)
        return max(cards.values()) / (max(cycles - 1, 1) * self.watch.marks.cycle) if cycles else None


def follow(job: Job, wanted: Enough | Span) -> Followed:
    """Run an endless job for whole cycles of steps; the start does not count.

    Raises:
        RunError: the run fails, or ends before a cycle is complete.
    """
    if job.workers >= MANY_WORKERS and job.scheme.name in SCHEMES and not why_not(job):
        with suppress(SchemeError):  # the event driver meets it as well, or does without
            return _follow_in_lockstep(job, wanted)
    watch = _watch(job, wanted)
    scorer = _Cycles(
        workload=None, task=None, every=job.scoring.every, on=job.scoring.on, target=None, fetch=as_they_are,
        watch=watch, driver=lambda: driver, nodes=job.transfer.network.node_of,
    )  # fmt: skip
    programs = [job.program(rank) for rank in range(job.workers)]
    driver = EventDriver(job, programs, scorer, priced=True)
    outcome = driver.run()
    followed = _with_exchanges(watch.followed(driver.work + watch.published), outcome, job)
    return replace(followed, card_bytes=scorer.card_bytes)


def _with_exchanges(followed: Followed, outcome: Outcome, job: Job) -> Followed:
    sent_to = [each.sent_to for each in outcome.breakdowns]
    between, _ = bytes_carried(job.transfer.network, sent_to)
    shares = mean_share(outcome.breakdowns, outcome.wall_s, outcome.wall_s)
    computing = shares.compute / (outcome.wall_s or 1.0)
    return replace(
        followed, exchanges=outcome.exchanges, between=between, sent_to=sent_to, computing=computing
    )


def _watch(job: Job, wanted: Enough | Span) -> Watch:
    marks = PaceMarks(job.workers, job.cycle, job.synchronous)
    return Watch(marks, wanted, repeats(job), max(4 * BATCH_MEANS, _steps_with_rare(job) / job.cycle))


def _steps_with_rare(job: Job) -> float:
    """Steps with ``RARE`` slow periods of each random kind; infinite where what comes later may be unlike.

    That is under a table or a function of the user's, on links that vary, and with windows or queues, which
    last for many cycles.
    """
    compute, transfer = job.compute.compute, job.transfer
    varies = any(link.variation for link in transfer.network.links)
    if compute.trace or compute.model or varies or transfer.tcp or transfer.queue != "fair":
        return math.inf
    rates = [
        len(each.workers or range(job.workers))
        * (each.probability or 0.0 if each.markov is None else 1 / (each.markov.slow + each.markov.fast))
        for each in job.compute.stragglers
    ]
    return RARE / min(filter(None, rates), default=math.inf)


def repeats(job: Job) -> bool:
    """Whether a job has no chance and no memory but its workers' times, so that like cycles follow like."""
    return job.scheme.name in SCHEMES and not (
        job.computing.varies
        or job.churn
        or job.transfer.streams
        or job.scheme.draws(job.options)
        or why_not(job)
    )


def clock_of(device: torch.device) -> Callable[[], float]:
    """Processor seconds so far, on which other programs do not count; with a GPU the host's clock."""
    return _device_s if device.type == "cuda" else time.process_time


class _CyclesInLockstep(LockstepDriver):
    """Lockstep driver that ends the run with the last wanted cycle, for endless jobs exact in lockstep."""

    def __init__(self, job: Job, watch: Watch) -> None:
        super().__init__(job, replace(job, scoring=replace(job.scoring, target=None)).scorer())
        self.watch = watch
        self._over = False

    @property
    def work(self) -> int:
        return self.clocks[0].work + self.watch.published

    @override
    def publish(self, task: StackedTask, operation: ops.Publish) -> None:
        super().publish(task, operation)
        # Count as the first publishing worker does under the event driver, so that both see the same cycles.
        self._over = self.watch.is_over(self.work + 1)
        if not self._over:
            for rank, (time_s, bytes_sent) in enumerate(self.clocks[0].published()):
                self.watch.publish(rank, operation.step, time_s, bytes_sent)

    @override
    def next_step(self, task: StackedTask, operation: ops.NextStep) -> bool:
        goes_on = super().next_step(task, operation)
        return goes_on and not self._over and not self.watch.is_over(self.work)


def _follow_in_lockstep(job: Job, wanted: Enough | Span) -> Followed:
    driver = _CyclesInLockstep(replace(job, recording=UNRECORDED), _watch(job, wanted))
    outcome = driver.run()
    return _with_exchanges(driver.watch.followed(driver.work), outcome, job)


def _device_s() -> float:
    """Host's clock once the GPU has done all queued work."""
    torch.cuda.synchronize()
    return time.perf_counter()


def on_free_network(job: Job) -> Job:
    """``job`` on a network that costs nothing."""
    free = _unlimited(job.transfer.network.steady, latency=False)
    return with_network(job, free, overhead_s=0.0, pattern_overhead_s=0.0, launch_s=0.0)


def with_network(job: Job, network: Network, **changes: Any) -> Job:
    """``job`` on another network, with the algorithms chosen for its own."""
    return job.over(replace(job.transfer, network=network, **changes))


def _unlimited(network: Network, latency: bool) -> Network:
    """``network`` without limits of links or connections; with its latencies, or none."""
    return replace(
        network, links=(), up={}, down={}, pipe={}, leave={}, enter={}, inner_up={}, inner_down={},
        inner_latency_s=latency * network.inner_latency_s,
        latency_s=tuple(tuple(latency * each for each in row) for row in network.latency_s),
        per_flow_bytes_per_s=tuple(tuple(math.inf for _ in row) for row in network.per_flow_bytes_per_s),
        routes={
            pair: Route((), latency * route.latency_s, math.inf) for pair, route in network.routes.items()
        },
    )  # fmt: skip
