"""A job: one scheme under one seed, with everything that a driver needs to run it."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import torch
from torch import Tensor

from ..collectives import algorithms
from ..collectives.collective import Collective, of_rounds
from ..collectives.hierarchy import Sites, hierarchical_all_reduce
from ..collectives.pipelines import (
    BROADCASTS,
    PIPELINES,
    SHARES,
    barrier,
    exchange,
    nccl_all_gather,
    nccl_broadcast,
    nccl_choice,
    nccl_reduce_scatter,
)  # fmt: skip
from ..collectives.registry import all_reduce_named
from ..collectives.schedule import Schedule
from ..compute.model import ComputeModel
from ..config.settings import Settings
from ..errors import SchemeError
from ..network.transfer import TransferModel
from ..network.transport import AUTO_ALGORITHM, TRANSPORTS, TransportRules
from ..program import operations as ops
from ..program.averaging import root_of
from ..program.encoding import Encoded, Payload, TopK, message_bytes, shard_bytes
from ..program.worker import Optimizer, Program, Worker
from ..records.accounting import EventLog, PaceMarks
from ..records.run import On
from ..schemes.scheme import Scheme
from ..traffic.choice import fastest
from ..training.gradients import TrainingProblem
from ..training.scoring import Fetch, Scorer, Target, as_they_are, scored_on
from ..training.snapshots import Keep, Published, V
from ..workloads.workload import Task

BY_PRICE: Final = "fastest_for_each"
"""The algorithm of a collective is what ``fastest`` finds for its size and group."""

Payloads = dict[tuple[tuple[int, ...], Sites, int], str]
"""Members site by site, how many of them each site has, the bytes of their payload -> the algorithm."""


@dataclass(frozen=True, eq=False)
class Algorithms:
    """The algorithms of one scheme's collectives, where there is a choice.

    What they are for is ``all_reduce``, ``shares`` (reduce-scatters and all-gathers) or ``broadcast``.

    Attributes:
        names: what it is for -> the algorithm, or ``BY_PRICE``, as for what is absent.
        taken: what it was for -> the algorithms that have been taken.
    """

    names: Mapping[str, str] = field(default_factory=dict)
    taken: dict[str, Payloads] = field(default_factory=dict)


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
        averaging_share: what a library's averaging of gradients adds to each of them, as a share of its
            duration: on the processor, beside the collective.
        transfer: how messages travel.
        transport: what carries messages and collectives.
        all_reduce: algorithm of the all-reduce; ``auto``: the transport's choice.
        chosen: what ``auto`` stands for.
        sums_inside: ``hosts`` or ``sites``, whose workers add up what is encoded then; None: nobody does.
        priced: on which network ``auto`` is priced, where it is not that of ``transfer``.
        segments: (name, start, stop) of the layers in backward order; none where they are not known.
        ready_at: when each of them is ready, as a fraction of a gradient's duration; none: by its parameters.
        forward: the fraction that the forward pass of each of them takes; none: by its parameters.
        every, on: evaluation.
        keep, keep_share: which models are kept for it: ``apart`` and ``share`` of ``Keep``.
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
    problem: TrainingProblem | None
    task: Task | None
    bytes_per_parameter: float
    compute: ComputeModel
    transfer: TransferModel
    all_reduce: str
    segments: tuple[tuple[str, int, int], ...]
    every: int
    on: On
    keep: int = 1
    keep_share: float = 0.0
    target: Target | None = None
    max_iterations: int | None = None
    max_time_s: float = math.inf
    record_events: bool = True
    max_events: int | None = None
    events_until_step: int | None = None
    transport: TransportRules = TRANSPORTS[None]
    chosen: Algorithms = field(default_factory=Algorithms)
    sums_inside: str | None = None
    priced: TransferModel | None = None
    ready_at: tuple[float, ...] = ()
    forward: tuple[float, ...] = ()
    averaging_share: float = 0.0

    @cached_property
    def computing(self) -> ComputeModel:
        """How long gradients take in a simulation, with what averaging adds; a real run has its own."""
        return replace(self.compute, longer=1.0 + self.averaging_share)

    @property
    def synchronous(self) -> bool:
        """Whether the iterates do not depend on the clock."""
        return self.scheme.in_step(self.options)

    @property
    def units(self) -> int:
        """How many act on their own: workers, or groups of them that the scheme takes as one (``inside``)."""
        return self.scheme.units(self.options, self.transfer.network)

    def worker(self, rank: int) -> Worker:
        """The worker that a scheme sees."""
        return self._worker((rank,), self.start)

    def program(self, rank: int) -> Program:
        """The scheme's coroutines for one worker."""
        return self.scheme.start(self.worker(rank), self.options)

    def vectorised_worker(self) -> Worker:
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
            hosts=self.transfer.network.nodes,
            element_bytes=self.bytes_per_parameter,
            sums_inside=self.sums_inside,
        )

    def pace_marks(self) -> PaceMarks:
        """For what decides the time of a step: the end of the run, of the first worker or of all."""
        return PaceMarks(self.workers, self.max_iterations or sys.maxsize, self.synchronous)

    def scorer(self) -> Scorer[torch.Tensor]:
        """A fresh scorer of this job, for models that are at hand."""
        return self.scorer_of(as_they_are)

    def scorer_of(self, fetch: Fetch[V]) -> Scorer[V]:
        """A fresh scorer of this job, for models that ``fetch`` gets at."""
        return Scorer(
            workload=self.problem.workload if self.problem else None,
            task=self.task,
            every=self.every,
            on=self.on,
            target=self.target,
            fetch=fetch,
        )

    def kept(self, operation: ops.Publish) -> tuple[torch.Tensor | None, ...]:
        """What is kept for scoring of a published step: the model, the leader's, the average; or None each.

        Models are kept as ``keeps`` says, the others only where they are scored.
        """
        scored = self.scored_on
        here = self.keeps.at(operation.step + 1)
        return (
            operation.value if here else None,
            operation.leader if here and "leader" in scored else None,
            operation.averaged if "averaged" in scored else None,
        )

    @cached_property
    def keeps(self) -> Keep:
        """Which of a worker's models are kept for scoring."""
        return Keep(self.every, self.keep, self.keep_share)

    @cached_property
    def scored_on(self) -> tuple[On, ...]:
        """Whose models are scored."""
        return scored_on(self.on, self.target.on if self.target else None)

    def published(
        self, worker: int, time_s: float, bytes_sent: int, operation: ops.Publish
    ) -> Published[torch.Tensor]:
        """What a scorer is to know of a published step."""
        value, leader, averaged = self.kept(operation)
        return Published(worker, operation.step, time_s, value, bytes_sent, leader, averaged, operation.notes)

    def event_log(self) -> EventLog | None:
        """A fresh event log, or None where no operations are recorded."""
        return EventLog(self.events_until_step, self.max_events) if self.record_events else None

    def num_bytes(self, value: Payload) -> int:
        """Bytes of ``value`` [d'] on the wire; whole numbers are sent as they are."""
        return message_bytes(value, self.bytes_per_parameter)

    def encode_s(self, operation: ops.Encode) -> float | Tensor | None:
        """Seconds that a worker, or each, encodes; None where nothing is said of it, and it takes no time."""
        rates = self.compute.compute.encoding
        rate = rates.top_k if isinstance(operation.codec, TopK) else rates.qsgd
        return None if rate is None else operation.elements * self.bytes_per_parameter / rate

    def ready_fractions(self) -> tuple[float, ...]:
        """When each segment is ready, as a fraction of a gradient's duration.

        Without ``ready_at`` the forward pass takes one third; the backward pass the rest, in proportion to
        parameters.
        """
        if self.ready_at:
            return self.ready_at
        total = sum(stop - start for _, start, stop in self.segments)
        done, fractions = 0, []
        for _, start, stop in self.segments:
            done += stop - start
            fractions.append(1 / 3 + (2 / 3) * done / total if done < total else 1.0)
        return tuple(fractions)

    def forward_of(self, operation: ops.Forward) -> dict[int, float]:
        """How much of a gradient's duration the forward pass of segments takes, by their numbers.

        Without ``forward`` it is a third of it for all of them, in proportion to parameters.

        Raises:
            SchemeError: of the layers nothing is known.
        """
        if not self.segments:
            raise SchemeError(
                "a forward pass through layers of a payload of which nothing is known; leave "
                "workload.payload and timing_only out, or name the layers in workload.layer_profile"
            )
        total = sum(stop - start for _, start, stop in self.segments)
        return {
            number: self.forward[number] if self.forward else (stop - start) / total / 3
            for number, (_, start, stop) in enumerate(self.segments)
            if operation.start <= start and stop <= operation.stop
        }

    def _blocks_of(
        self, operation: ops.Operation[Any], members: tuple[int, ...], rank: int
    ) -> tuple[Collective, tuple[int, ...]] | None:
        """A collective among ``members`` as blocks, and who plays which rank of it, site by site.

        None where its receives are not posted ahead.

        Raises:
            SchemeError: the root of a broadcast is not one of the members.
        """
        if not self.transport.posted_ahead:
            return None
        order, sites = self.by_site(members)
        n, nccl = len(order), self.transport.nccl_collectives
        # In a graph any two members may have links of their own.
        apart = (1,) * n if self.transfer.network.routes else sites
        match operation:
            case ops.AllReduce(value=value):
                name = self.algorithm(order, sites, self.num_bytes(value))
                if name not in PIPELINES:
                    return None
                schedule = PIPELINES[name](sites, self.num_bytes(value))
            case ops.Broadcast(value=value):
                first = order.index(root_of(operation, rank, members))
                order = order[first:] + order[:first]
                num_bytes = self.num_bytes(value)
                build = nccl_broadcast if nccl else self._choice("broadcast", order, sites, num_bytes)
                schedule = build(sites, num_bytes)
            case ops.ReduceScatter(value=Encoded() as value):
                schedule = exchange(apart, self.num_bytes(value))
            case ops.ReduceScatter(value=value):
                num_bytes = self.num_bytes(value)
                build = nccl_reduce_scatter if nccl else self._choice("shares", order, apart, num_bytes)
                schedule = build(apart, num_bytes)
            case ops.AllGatherShards() | ops.AllGather():
                if isinstance(operation, ops.AllGather):
                    num_bytes = n * operation.value.numel() * operation.value.element_size()
                elif isinstance(operation.value, Encoded):
                    num_bytes = n * shard_bytes(
                        operation.value, operation.length, n, self.bytes_per_parameter
                    )
                else:
                    num_bytes = round(operation.length * self.bytes_per_parameter)
                build = nccl_all_gather if nccl else self._choice("shares", order, apart, num_bytes)
                schedule = build(apart, num_bytes)
            case _:
                schedule = barrier(n)
        return schedule, order

    def _choice(
        self, what: str, order: tuple[int, ...], sites: Sites, num_bytes: int
    ) -> Callable[[Sites, int], Collective]:
        return self.choices[what][self._take(what, order, sites, num_bytes)]

    def _take(self, what: str, order: tuple[int, ...], sites: Sites, num_bytes: int) -> str:
        """The name of what was chosen of ``choices``, else of the fastest by price."""
        taken, key = self.chosen.taken.setdefault(what, {}), (order, sites, num_bytes)
        if key not in taken:
            name = self.chosen.names.get(what, BY_PRICE)
            if name == BY_PRICE:
                name = fastest(self.choices[what], sites, num_bytes, order, self.priced or self.transfer)
            taken[key] = name
        return taken[key]

    @cached_property
    def choices(self) -> Mapping[str, Mapping[str, Callable[[Sites, int], Collective]]]:
        """What there is a choice for -> its algorithms by name."""
        all_reduces = {name: PIPELINES[name] for name in self.transport.choices}
        return {"all_reduce": all_reduces, "shares": SHARES, "broadcast": BROADCASTS}

    def by_site(self, members: tuple[int, ...]) -> tuple[tuple[int, ...], Sites]:
        """``members``, site by site, and how many of them each of these sites, or of its nodes, has."""
        if members not in self._by_site:
            self._by_site[members] = self._sort_by_site(members)
        return self._by_site[members]

    @cached_property
    def _by_site(self) -> dict[tuple[int, ...], tuple[tuple[int, ...], Sites]]:
        return {}

    def _sort_by_site(self, members: tuple[int, ...]) -> tuple[tuple[int, ...], Sites]:
        site_of, nodes = self.transfer.network.site_of, self.transfer.network.nodes
        order = tuple(sorted(members, key=lambda host: (site_of[host], nodes[host], host)))
        in_nodes: dict[int, Counter[int]] = {}
        for host in order:
            in_nodes.setdefault(site_of[host], Counter())[nodes[host]] += 1
        if all(max(of_site.values()) == 1 for of_site in in_nodes.values()):
            return order, tuple(of_site.total() for of_site in in_nodes.values())
        return order, tuple(tuple(of_site.values()) for of_site in in_nodes.values())

    def algorithm(self, members: tuple[int, ...], sites: Sites, num_bytes: int) -> str:
        """The all-reduce of so many bytes among ``members``, of whom so many are in each site."""
        if self.all_reduce != AUTO_ALGORITHM:
            return self.all_reduce
        if len(self.transport.choices) == 1:
            return self.transport.choices[0]
        if self.transport.nccl_collectives:
            return nccl_choice(sites, num_bytes)
        return self._take("all_reduce", members, sites, num_bytes)

    def collective_of(
        self, operation: ops.Operation[Any], members: tuple[int, ...], rank: int
    ) -> tuple[Collective, tuple[int, ...]]:
        """A collective among ``members``, and who plays which rank of it.

        Raises:
            SchemeError: the root of a broadcast is not one of the members.
        """
        if blocks := self._blocks_of(operation, members, rank):
            return blocks
        return self.table_of(operation, members, rank)

    def table_of(
        self, operation: ops.Operation[Any], members: tuple[int, ...], rank: int
    ) -> tuple[Collective, tuple[int, ...]]:
        """A collective among ``members`` with rendezvous, and who plays which rank of it.

        Raises:
            SchemeError: the root of a broadcast is not one of the members.
        """
        as_gloo = self.transport.gloo_collectives or self.all_reduce == "gloo_ring"
        n = len(members)
        match operation:
            case ops.AllReduce(value=value):
                schedule, members = self._all_reduce_table(members, self.num_bytes(value))
            case ops.ReduceScatter(value=Encoded() as value):
                schedule = algorithms.direct_reduce_scatter(n, self.num_bytes(value))
            case ops.ReduceScatter(value=value):
                schedule = algorithms.ring_reduce_scatter(n, self.num_bytes(value))
            case ops.AllGatherShards(value=value, length=length):
                own_bytes = shard_bytes(value, length, n, self.bytes_per_parameter)
                if as_gloo:
                    schedule = algorithms.gloo_all_gather(n, own_bytes)
                elif isinstance(value, Encoded):
                    schedule = algorithms.ring_gather_chunks(n, own_bytes * n)
                else:
                    schedule = algorithms.ring_gather_chunks(n, round(length * self.bytes_per_parameter))
            case ops.AllGather(value=value):
                gather = algorithms.gloo_all_gather if as_gloo else algorithms.ring_all_gather
                schedule = gather(n, value.numel() * value.element_size())
            case ops.Broadcast(value=value):
                spread = algorithms.gloo_broadcast if as_gloo else algorithms.binomial_broadcast
                schedule = spread(n, self.num_bytes(value), members.index(root_of(operation, rank, members)))
            case _:
                schedule = algorithms.dissemination_barrier(n)
        return of_rounds(schedule), members

    def _all_reduce_table(self, members: tuple[int, ...], num_bytes: int) -> tuple[Schedule, tuple[int, ...]]:
        name = self.transport.choices[0] if self.all_reduce == AUTO_ALGORITHM else self.all_reduce
        if name != "hierarchical":
            return all_reduce_named(name)(len(members), num_bytes), members
        order, sites = self.by_site(members)
        return hierarchical_all_reduce(sites, num_bytes), order
