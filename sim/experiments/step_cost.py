"""What a step of a scheme costs in the long run: elapsed time over the mean number of steps in it.

A scheme's own code runs on the clock alone, without gradients and without an end, for whole cycles
(``Scheme.cycle``) of steps, mean over the workers, until a fixed amount of work is done. The first quarter of
the cycles counts as start-up and is left out, and so is what the scheme does at its beginning alone
(``Scheme.long_run``). None of these numbers depends on the machine or its load.

The whole of a step is run as the simulation runs it. Its parts come from three runs without anything random:
on a network that costs nothing, on one with latencies only, and on the nominal one. The differences are the
latency term and the bandwidth term; for an all-reduce by a ring of n equal workers, with S bytes, latency L
and bandwidth B, they are 2 (n - 1) L and 2 (n - 1) S / (n B). What is left of the whole is due to what is
random (everybody waits for whoever is late) and to the factors of a profile.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor
from typing_extensions import override

from ..compute.model import ComputeModel
from ..drivers.collectives import TrafficMet
from ..drivers.event import EventDriver
from ..drivers.job import Job
from ..drivers.lockstep.driver import LockstepDriver
from ..drivers.lockstep.exact import why_not
from ..drivers.lockstep.stacked import StackedTask
from ..errors import RunError, SchemeError
from ..network.network import Network, Route
from ..program import operations as ops
from ..scenario.entries import SchemeEntry
from ..scenario.schema import Scenario
from ..schemes import SCHEMES
from ..training.scoring import Scorer, as_they_are
from ..training.snapshots import Published
from .prepare import clock_only, over_profile, prepare

ENOUGH_WORK: Final = 40_000
"""Messages and steps of workers after which a run of two cycles or more ends: of a whole step."""
ENOUGH_PART_WORK: Final = 10_000
"""That bound for the runs that its parts come from."""
FEW_SCHEMES: Final = 4
"""Up to so many schemes each gets all of these bounds; of more, its share of what so many would take."""
MOST_WORK: Final = 500_000
"""Messages and steps of workers within which one cycle has to be complete."""
TRAINED_S: Final = 0.5
"""Processor seconds after which a trial of a scheme's training ends, once 3 steps are complete."""
MANY_WORKERS: Final = 128
"""Workers from which a scheme is followed in lockstep, where that is exact: the same times to rounding."""
START_SHARE: Final = 4
"""One part in this many of the cycles is start-up."""


@dataclass(frozen=True)
class StepCost:
    """What a step of one scheme costs.

    Attributes:
        label: of the scheme.
        steps: over how many steps, mean per worker, the step is a mean.
        compute_s, latency_s, bandwidth_s: they add up to a step without anything random.
        random_s: what is added by all that is random in the scenario, and by the factors of its profile;
            None where it has neither.
        bytes_per_worker: sent in a step, mean over the workers.
        clock_s: processor seconds that the simulation of a step takes here, without its gradients: measured.
        problem: why nothing is known; empty where all is well.
    """

    label: str
    steps: int = 0
    compute_s: float = math.nan
    latency_s: float = math.nan
    bandwidth_s: float = math.nan
    random_s: float | None = None
    bytes_per_worker: float = math.nan
    clock_s: float = math.nan
    problem: str = ""

    @property
    def step_s(self) -> float:
        """A step with everything that counts in the simulation."""
        return self.compute_s + self.latency_s + self.bandwidth_s + (self.random_s or 0.0)


def step_cost(scenario: Scenario, entry: SchemeEntry) -> StepCost:
    """Follow a scheme on the clock alone; one that cannot do without values has a ``problem`` instead."""
    whole = clock_only(endless(prepare(scenario, entry, scenario.seed)))
    network = whole.transfer.network
    nominal = network.steady
    unvarying = _with(replace(whole, compute=steady_compute(whole.compute, whole.workers)), nominal)
    profile = scenario.cluster.profile
    differs = nominal != network or whole.compute.varies or profile is not None
    if profile is not None:
        whole = over_profile(whole, profile)
    cycle = whole.scheme.cycle(whole.options, whole.units)
    free = _with(unvarying, _unlimited(nominal, latency=False), overhead_s=0.0, pattern_overhead_s=0.0)
    share = _share(scenario)
    part, enough = partial(_enough, share * ENOUGH_PART_WORK), partial(_enough, share * ENOUGH_WORK)
    try:
        compute_s = follow(free, cycle, part).step_s
        latency_s = follow(_with(unvarying, _unlimited(nominal, latency=True)), cycle, part).step_s
        total = follow(whole, cycle, enough)
        steady_s = follow(unvarying, cycle, part).step_s if differs else total.step_s
    except RunError as error:
        return StepCost(entry.label, problem=str(error))
    return StepCost(
        label=entry.label,
        steps=total.steps,
        compute_s=compute_s,
        latency_s=latency_s - compute_s,
        bandwidth_s=steady_s - latency_s,
        random_s=total.step_s - steady_s if differs else None,
        bytes_per_worker=total.bytes_per_worker,
        clock_s=total.here_s,
    )


def training_s(scenario: Scenario, entry: SchemeEntry, device: torch.device) -> float:
    """Seconds that gradients, updates and averages add to a step of a simulation on this machine: measured.

    A few steps with and without training are compared; of what other programs do nothing counts on a CPU.
    """
    job = replace(endless(prepare(scenario, entry, scenario.seed, device)), target=None, max_time_s=math.inf)
    if job.problem is None:
        return 0.0
    end_s = time.process_time() + _share(scenario) * TRAINED_S
    with_training = follow(job, 1, lambda complete, work: complete > 2 and time.process_time() > end_s)
    most = math.ceil(with_training.steps * START_SHARE / (START_SHARE - 1))
    without = follow(clock_only(job), 1, lambda complete, work: complete >= most)
    return max(0.0, with_training.here_s - without.here_s)


def endless(job: Job) -> Job:
    """``job`` in the long run: without an end, without crashes, and without what its scheme does at first."""
    staying = [each for each in job.compute.stragglers if not each.crash]
    return replace(
        job,
        compute=replace(job.compute, stragglers=staying),
        options=job.scheme.long_run(job.options),
        max_iterations=MOST_WORK,  # which ends a scheme that publishes nothing
    )


def _share(scenario: Scenario) -> float:
    """Of the work that a scheme may take, how much each may where there are many."""
    return min(1.0, FEW_SCHEMES / len(scenario.schemes))


def _enough(enough_work: float, complete: int, work: int) -> bool:
    return work >= MOST_WORK or (complete > 1 and work >= enough_work)


@dataclass(frozen=True)
class Followed:
    """A step of a run: means over so many steps, mean over the workers.

    Attributes:
        steps: how many of them.
        step_s: seconds on the simulation's clock.
        bytes_per_worker: what a worker sends.
        work: messages and steps of workers, with those of the start.
        here_s: seconds that the simulation takes, of the processor where there is no GPU.
    """

    steps: int
    step_s: float
    bytes_per_worker: float
    work: int
    here_s: float


@dataclass(frozen=True)
class _Mark:
    """The end of a cycle: the time, what all workers have sent and published by then, and the time here."""

    time_s: float
    bytes_sent: int
    published: int
    here_s: float


@dataclass
class _Cycles(Scorer[Tensor]):
    """Scores nothing, and marks the end of every cycle of steps.

    Of a synchronous scheme that is when the last worker has done them. The others are a bounded way
    ahead, so that it is the same in the long run, and is there long before a straggler holds up everybody.

    Attributes:
        workers: how many there are.
        synchronous: whether they keep step.
        cycle: steps of one: of every worker in a synchronous scheme, else mean over the workers.
        is_enough: given the number of complete cycles, whether the run ends.
        here: what time it is for the processor that simulates.
        marks: the beginning, and the end of every cycle.
    """

    workers: int = 1
    synchronous: bool = True
    cycle: int = 1
    is_enough: Callable[[int], bool] = bool
    here: Callable[[], float] = time.process_time
    marks: list[_Mark] = field(default_factory=list)
    published: int = 0
    sent_by: dict[int, int] = field(default_factory=dict)
    incomplete: dict[int, list[int]] = field(default_factory=dict)

    def begin_marks(self) -> None:
        """Mark the beginning."""
        self.marks.append(_Mark(0.0, 0, 0, self.here()))

    @property
    @override
    def scores(self) -> bool:
        return True

    @override
    def publish(self, published: Published[Tensor]) -> bool:
        step, bytes_sent = published.step, published.bytes_sent
        self.published += 1
        sent: list[int] = []
        if not self.synchronous:
            self.sent_by[published.worker] = bytes_sent
            if self.published % (self.cycle * self.workers) == 0:
                sent = list(self.sent_by.values())
        elif (step + 1) % self.cycle == 0:
            sent = self.incomplete.setdefault(step, [])
            sent.append(bytes_sent)
            if len(sent) == self.workers:
                del self.incomplete[step]
            else:
                sent = []
        if sent:
            self.marks.append(_Mark(published.time_s, sum(sent), self.published, self.here()))
        return self.is_enough(len(self.marks) - 1)


def follow(job: Job, cycle: int, is_enough: Callable[[int, int], bool]) -> Followed:
    """Run a job that has no end for whole cycles of steps; the start-up does not count.

    ``is_enough`` is given the number of complete cycles and the work done, in messages and steps of workers.

    Raises:
        RunError: the run fails, or ends before a cycle is complete.
    """
    if job.workers >= MANY_WORKERS and job.scheme.name in SCHEMES and not why_not(job):
        with suppress(SchemeError):  # which the event driver finds as well, or does without
            return _follow_in_lockstep(job, cycle, is_enough)
    try:
        return _follow(job, cycle, is_enough, priced=True)
    except TrafficMet:
        return _follow(job, cycle, is_enough, priced=False)


def _follow(job: Job, cycle: int, is_enough: Callable[[int, int], bool], priced: bool) -> Followed:
    scorer = _Cycles(
        workload=None, task=None, every=job.every, on=job.on, target=None, fetch=as_they_are,
        workers=job.workers, synchronous=job.synchronous, cycle=cycle, here=_clock_here(job),
        is_enough=lambda complete: is_enough(complete, driver.work + scorer.published),
    )  # fmt: skip
    scorer.begin_marks()
    programs = [job.program(rank) for rank in range(job.workers)]
    driver = EventDriver(job, programs, scorer, priced=priced)
    driver.run()
    return _mean_of(scorer.marks, cycle, job.workers, scorer.published, driver.work + scorer.published)


class _CyclesInLockstep(LockstepDriver):
    """Marks the end of every cycle of steps, and ends the run at that of the last that is wanted.

    Args:
        job: that has no end, and that the lockstep driver does exactly.
        cycle: steps of each worker.
        is_enough: as for ``follow``.

    Attributes:
        marks: the beginning, and the end of every cycle.
        num_published: steps of all workers so far.
    """

    def __init__(self, job: Job, cycle: int, is_enough: Callable[[int, int], bool]) -> None:
        super().__init__(job, replace(job, target=None).scorer())
        self._cycle, self._is_enough, self._here = cycle, is_enough, _clock_here(job)
        self.num_published = 0
        self._over = False
        self.marks = [_Mark(0.0, 0, 0, self._here())]

    @property
    def work(self) -> int:
        """Messages and steps of workers."""
        return self.clocks[0].work + self.num_published

    @override
    def publish(self, task: StackedTask, operation: ops.Publish) -> None:
        super().publish(task, operation)
        # As the first worker that publishes sees it under the event driver: so many cycles count on both.
        self._over = self._is_enough(len(self.marks) - 1, self.work + 1)
        self.num_published += self.job.workers
        if not self._over and (operation.step + 1) % self._cycle == 0:
            clock = self.clocks[0]
            self.marks.append(_Mark(clock.last_s, clock.bytes_sent, self.num_published, self._here()))

    @override
    def next_step(self, task: StackedTask, operation: ops.NextStep) -> bool:
        goes_on = super().next_step(task, operation)
        return goes_on and not self._over and not self._is_enough(len(self.marks) - 1, self.work)


def _follow_in_lockstep(job: Job, cycle: int, is_enough: Callable[[int, int], bool]) -> Followed:
    driver = _CyclesInLockstep(replace(job, record_events=False), cycle, is_enough)
    driver.run()
    return _mean_of(driver.marks, cycle, job.workers, driver.num_published, driver.work)


def _mean_of(marks: Sequence[_Mark], cycle: int, workers: int, num_published: int, work: int) -> Followed:
    """The mean over the cycles that ``marks`` begin and end, without those of the start."""
    complete = len(marks) - 1
    if not complete:
        if num_published:
            raise RunError(f"it repeats itself after {cycle:,} steps, which is more than can be followed")
        raise RunError("no worker came through a step")
    first = math.ceil(complete / START_SHARE) if complete > 1 else 0
    begin, end = marks[first], marks[-1]
    steps = (complete - first) * cycle
    published = (end.published - begin.published) / workers
    return Followed(
        steps=steps,
        step_s=(end.time_s - begin.time_s) / steps,
        bytes_per_worker=(end.bytes_sent - begin.bytes_sent) / steps / workers,
        work=work,
        here_s=(end.here_s - begin.here_s) / published if published else 0.0,
    )


def _clock_here(job: Job) -> Callable[[], float]:
    """What time it is for the processor that simulates."""
    return _device_s if job.start.device.type == "cuda" else time.process_time


def _device_s() -> float:
    """The time on the host's clock when the GPU has done all that is queued on it."""
    torch.cuda.synchronize()
    return time.perf_counter()


def steady_compute(model: ComputeModel, workers: int) -> ComputeModel:
    """The model in which every computation takes its mean, and only workers that are always slow are slow.

    Of the user's own function the mean over everybody's first gradients counts, for all workers.
    """
    compute = model.compute
    mean_s = compute.time
    if compute.trace is not None:
        mean_s = statistics.fmean(compute.trace.all_durations)
    elif compute.model is not None:
        undisturbed = ComputeModel(compute, (), model.seed)
        mean_s = sum(float(undisturbed.block_s(rank, 0).mean()) for rank in range(workers)) / workers
    always = [s for s in model.stragglers if s.always]
    update = {"time": mean_s, "jitter": None, "trace": None, "model": None}
    return replace(model, compute=compute.model_copy(update=update), stragglers=always)


def _with(job: Job, network: Network, **changes: Any) -> Job:
    """``job`` on another network, with the algorithms that it takes on its own."""
    priced = job.priced or job.transfer
    return replace(job, transfer=replace(job.transfer, network=network, **changes), priced=priced)


def _unlimited(network: Network, latency: bool) -> Network:
    """``network`` without a link or cap that limits anything; with its latencies, or none."""
    factor = 1.0 if latency else 0.0
    return replace(
        network, links=(), up={}, down={}, pipe={}, leave={}, enter={}, inner_up={}, inner_down={},
        inner_latency_s=factor * network.inner_latency_s,
        latency_s=tuple(tuple(factor * each for each in row) for row in network.latency_s),
        per_flow_bytes_per_s=tuple(tuple(math.inf for _ in row) for row in network.per_flow_bytes_per_s),
        routes={
            pair: Route((), factor * route.latency_s, math.inf) for pair, route in network.routes.items()
        },
    )  # fmt: skip
