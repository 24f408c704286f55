"""A job: one scheme under one seed, with everything that a driver needs to run it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ..compute.model import ComputeModel
from ..config.settings import Settings
from ..network.network import Network
from ..program.encoding import Encoded, Payload
from ..program.worker import Program, Worker
from ..records.accounting import Journal
from ..schemes.scheme import Scheme
from ..training.gradients import Problem
from ..training.optimizer import Optimizer
from ..training.scoring import On, Scorer, Target
from ..workloads.workload import Task


@dataclass(frozen=True)
class TransferModel:
    """How the network carries a message: the nominal cluster, and factors that correct it.

    The defaults are neutral. A calibration says what they are for one kind of cluster and software.

    Attributes:
        network: hosts, links, routes.
        sharing: ``max_min``: transfers share every link on their route fairly; ``rtt``: so, but weighted by
            one over the round trip; ``none``: each has its links alone.
        overhead_s: software overhead before a transfer's bytes start.
        announcement: what the receiver's announcement costs, as a factor on the route's latency. Where it is
            not 0, a receive from anybody is announced to a sender only when it has heard of that sender.
        added_latency_s: what hosts and switches add to every message's and announcement's latency.
        efficiency: share of the nominal bandwidth that the payload gets.
        streams: messages from one host to another, and announcements, share one stream of bytes, first come
            first served (one TCP connection); False: they overtake each other. Not where each is alone.
        buffer_bytes: what the sender's socket takes off its hands: a send is complete when the bytes of its
            stream that have not left are no more than this; 0: when its last byte has left.
        copy_s_per_byte: what handing bytes to the socket takes.
        resume_s: from the end of an exchange until the coroutine goes on.
        late_s: from the end of a computation until the coroutine's next operation.
        lateness_s: instead of that, values as they followed each other when measured: a worker goes through
            them from one drawn at random on, and begins its run that late too.
        unevenness_s: equally likely deviations from ``resume_s``, of which each exchange draws one; it never
            ends before its transfers.
        seed: of the run, for latencies and bandwidths that vary at random.
    """

    network: Network
    sharing: str = "max_min"
    overhead_s: float = 0.0
    announcement: float = 0.0
    added_latency_s: float = 0.0
    efficiency: float = 1.0
    streams: bool = False
    buffer_bytes: float = 0.0
    copy_s_per_byte: float = 0.0
    resume_s: float = 0.0
    late_s: float = 0.0
    lateness_s: tuple[float, ...] = ()
    unevenness_s: tuple[float, ...] = ()
    seed: int = 0


@dataclass(frozen=True)
class Job:
    """One scheme under one seed.

    Attributes:
        scheme, options, label: what to run, and what to call it.
        workers: number of workers n.
        seed: of this repeat.
        start: the initial model [d], on the device to use.
        optimizer: the scheme's update rule.
        problem, task: what is trained; None when only the clock matters.
        bytes_per_parameter: bytes that one parameter stands for on the wire.
        compute: how long gradients take.
        transfer: how messages travel.
        all_reduce: algorithm of the all-reduce.
        segments: (name, start, stop) of the layers in backward order.
        every, on: evaluation.
        target, max_iterations, max_time_s: what ends the run.
        record_events: keep one row per operation,
        max_events: but none if there would be more than this,
        events_until_step: and only those of the first steps.
    """

    scheme: Scheme
    options: Settings
    label: str
    workers: int
    seed: int
    start: torch.Tensor
    optimizer: Optimizer
    problem: Problem | None
    task: Task | None
    bytes_per_parameter: float
    compute: ComputeModel
    transfer: TransferModel
    all_reduce: str
    segments: tuple[tuple[str, int, int], ...]
    every: int
    on: On
    target: Target | None = None
    max_iterations: int | None = None
    max_time_s: float = math.inf
    record_events: bool = True
    max_events: int | None = None
    events_until_step: int | None = None

    @property
    def synchronous(self) -> bool:
        """Whether the iterates do not depend on the clock."""
        return self.scheme.in_step(self.options)

    def worker(self, rank: int) -> Worker:
        """The worker that a scheme sees."""
        return self._worker((rank,), self.start)

    def program(self, rank: int) -> Program:
        """The scheme's coroutines for one worker."""
        return self.scheme.start(self.worker(rank), self.options)

    def stacked_worker(self) -> Worker:
        """All workers at once."""
        start = self.start.expand(self.workers, -1)
        return self._worker(tuple(range(self.workers)), start)

    def _worker(self, ranks: tuple[int, ...], start: torch.Tensor) -> Worker:
        return Worker(
            ranks,
            self.workers,
            start,
            self.optimizer,
            self.seed,
            sites=self.transfer.network.site_of,
            element_bytes=self.bytes_per_parameter,
        )

    def scorer(self) -> Scorer:
        """A fresh scorer of this job."""
        return Scorer(
            workload=self.problem.workload if self.problem else None,
            task=self.task,
            workers=self.workers,
            every=self.every,
            on=self.on,
            synchronous=self.synchronous,
            target=self.target,
        )

    def journal(self) -> Journal | None:
        """A fresh journal, or None where no operations are recorded."""
        return Journal(self.events_until_step, self.max_events) if self.record_events else None

    def num_bytes(self, value: Payload) -> int:
        """Bytes of ``value`` [d'] on the wire; whole numbers are sent as they are."""
        if isinstance(value, Encoded):
            return round(value.elements * self.ratio(value) * self.bytes_per_parameter)
        if not value.is_floating_point():
            return value.numel() * value.element_size()
        return round(value.numel() * self.bytes_per_parameter)

    def ratio(self, value: Payload) -> float:
        """Bytes on the wire for one byte of what ``value`` stands for."""
        if not isinstance(value, Encoded):
            return 1.0
        # Where nothing is trained one element stands for a whole model.
        return value.long_ratio if self.problem is None else value.ratio

    def ready_fractions(self) -> tuple[float, ...]:
        """When each segment is ready, as a fraction of a gradient's duration.

        The forward pass takes one third; the backward pass the rest, in proportion to parameters.
        """
        total = sum(stop - start for _, start, stop in self.segments)
        done, fractions = 0, []
        for _, start, stop in self.segments:
            done += stop - start
            fractions.append(1 / 3 + (2 / 3) * done / total if done < total else 1.0)
        return tuple(fractions)
