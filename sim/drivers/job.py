"""A job: one scheme under one seed, with everything that a driver needs to run it."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from .. import seeds
from ..compute.model import ComputeModel
from ..config.settings import Settings
from ..errors import SchemeError
from ..faults.outages import Churn
from ..network.transport import TRANSPORTS, TransferModel, TransportRules
from ..program import operations as ops
from ..program.encoding import TopK
from ..program.worker import Optimizer, Parameter, Program, Worker
from ..records.accounting import EventLog, PaceMarks
from ..records.run import On
from ..schemes import SCHEMES
from ..schemes.common.buckets import count_buckets
from ..schemes.scheme import Scheme
from ..traffic.placing import place, price_s
from ..traffic.selection import Algorithms, Choice
from ..training.gradient_noise import NoiseMeter
from ..training.gradients import TrainingProblem
from ..training.optimizer import OncePerRow, WithBuffers
from ..training.scoring import Fetch, HandOver, Scorer, Target, as_they_are, scored_on
from ..training.snapshots import Keep, Published, V
from ..workloads.workload import Task

if TYPE_CHECKING:
    from ..training.curves.points import Points

PRICED_WORK: Final = 4
"""Most messages per member counted as work for a collective priced as a whole."""


@dataclass(frozen=True)
class Scoring:
    """When which models of a job are scored, and the score that ends it.

    Attributes:
        every, on, time_s: steps between two evaluations, the model, and each worker's seconds for one.
        keep, keep_share: models kept for it: ``apart`` and ``share`` of ``Keep``.
        curve: measured scores, in place of the models'.
        gradient_noise: steps between two measurements of the gradients' noise; None: there are none.
        target: an end of the run.
    """

    every: int
    on: On = "mean"
    time_s: float = 0.0
    keep: int = 1
    keep_share: float = 0.0
    curve: Points | None = None
    gradient_noise: int | None = None
    target: Target | None = None

    @cached_property
    def keeps(self) -> Keep:
        """The rule for the models of a worker that are kept for scoring."""
        return Keep(self.every, self.keep, self.keep_share)

    @cached_property
    def scored_on(self) -> tuple[On, ...]:
        """Kinds of models that are scored."""
        return scored_on(self.on, self.target.on if self.target else None)


@dataclass(frozen=True)
class JobLayers:
    """The layers of a job's model, in backward order.

    Attributes:
        segments: (name, start, stop) of each; empty if unknown.
        ready_at: when each is ready, as a fraction of a gradient's duration; empty: by its parameters.
        forward: fraction taken by the forward pass of each; empty: by its parameters.
        parameters: (name, shape, first element) of the model's tensors; empty: its layers are vectors.
    """

    segments: tuple[tuple[str, int, int], ...] = ()
    ready_at: tuple[float, ...] = ()
    forward: tuple[float, ...] = ()
    parameters: tuple[tuple[str, tuple[int, ...], int], ...] = ()

    def tensors(self, length: int) -> tuple[Parameter, ...]:
        """The tensors of a model [length] as a scheme sees them."""
        whole = self.segments or (("model", 0, length),)
        layers = ((name, (stop - start,), start) for name, start, stop in reversed(whole))
        return tuple(Parameter(*each) for each in self.parameters or layers)

    def ready_fractions(self, accumulate: int) -> tuple[float, ...]:
        """Completion of each in the last of ``accumulate`` batches, as a fraction of the gradient's duration.

        Without ``ready_at`` the forward pass takes one third; the backward pass the rest, in proportion to
        parameters.
        """
        total = sum(stop - start for _, start, stop in self.segments)
        done, fractions = 0, []
        for _, start, stop in self.segments:
            done += stop - start
            fractions.append(1 / 3 + (2 / 3) * done / total if done < total else 1.0)
        before = accumulate - 1
        return tuple((before + each) / (before + 1) for each in self.ready_at or fractions)

    def forward_of(self, operation: ops.Forward, accumulate: int) -> dict[int, float]:
        """Fractions of a gradient's duration that its first batch's forward pass takes, by number of segment.

        Without ``forward`` it is one third for all of them, in proportion to parameters. Raises
        ``SchemeError`` where nothing is known of the layers.
        """
        if not self.segments:
            raise SchemeError(
                "a forward pass through layers of a payload of which nothing is known; leave "
                "workload.payload and timing_only out, or name the layers in workload.layer_profile"
            )
        total = sum(stop - start for _, start, stop in self.segments)
        return {
            number: (self.forward[number] if self.forward else (stop - start) / total / 3) / accumulate
            for number, (_, start, stop) in enumerate(self.segments)
            if operation.start <= start and stop <= operation.stop
        }


@dataclass(frozen=True)
class JobCollectives:
    """How a job's workers average.

    Attributes:
        all_reduce: algorithm of the all-reduce; ``auto``: the transport's choice.
        transport: of messages and collectives.
        chosen: meaning of ``auto``.
        sums_inside: ``hosts`` or ``sites``, whose workers sum what is then encoded; None: none do.
        priced: the network on which ``auto`` is priced, where it is not the job's.
    """

    all_reduce: str
    transport: TransportRules = TRANSPORTS[None]
    chosen: Algorithms = field(default_factory=Algorithms)
    sums_inside: str | None = None
    priced: TransferModel | None = None


@dataclass(frozen=True)
class Recording:
    """Operations of a job that are kept, a row for each.

    Attributes:
        events: whether any are,
        most: but none if there would be more than this,
        until_step: and only those of the first steps.
    """

    events: bool = True
    most: int | None = None
    until_step: int | None = None

    def log(self) -> EventLog | None:
        """A fresh event log, or None where no operations are recorded."""
        return EventLog(self.until_step, self.most) if self.events else None


UNRECORDED: Final = Recording(events=False)


@dataclass(frozen=True)
class Job:
    """One scheme under one seed.

    Attributes:
        scheme, options, label: the scheme to run, and its name in results.
        workers: number of workers n.
        seed: of this repeat.
        start: the initial model [d], on the device to use.
        optimizer: the scheme's update rule.
        problem, task: training problem; None when only the clock matters.
        bytes_per_parameter: on the wire.
        compute: durations of gradients.
        averaging_share: processor time of a library's averaging beside the collective, as a share of the
            duration of each gradient's last batch.
        transfer: how messages travel.
        collectives: transport and algorithms.
        layers: of the model.
        scoring: evaluation, and the target.
        max_iterations, max_time_s: other ends of the run.
        churn: faults and checkpoints.
        ranks: of its workers in the job that it is a part of (``among``); empty: it is no part.
        speeds: of the workers, for periods by time (``Worker.speeds``).
        recording: operations that are kept.
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
    collectives: JobCollectives
    layers: JobLayers
    scoring: Scoring
    max_iterations: int | None = None
    max_time_s: float = math.inf
    recording: Recording = Recording()
    averaging_share: float = 0.0
    churn: Churn | None = None
    ranks: tuple[int, ...] = ()
    speeds: tuple[float, ...] = ()

    @cached_property
    def computing(self) -> ComputeModel:
        """Durations of gradients in a simulation, including averaging; a real run has its own.

        All collectives that begin beside a gradient but the last are launched by the device that computes it.
        """
        launches = 1
        if (sizes := self.scheme.bucket_bytes(self.options)) and self.layers.segments:
            first, other = (int(size / self.bytes_per_parameter) for size in sizes)
            lengths = (stop - start for _, start, stop in self.layers.segments)
            launches = count_buckets(lengths, (first, other))
        longer, launch_s = self.averaging_share / self.compute.accumulate, self.transfer.launch_s
        return replace(self.compute, longer=1.0 + longer, launches_s=(launches - 1) * launch_s)

    @property
    def synchronous(self) -> bool:
        """Whether the iterates do not depend on the clock."""
        return self.scheme.in_step(self.options)

    @property
    def shrinks(self) -> bool:
        """Whether the remaining workers continue after a fault."""
        return self.churn is not None and self.churn.policy == "shrink"

    @property
    def stops_for_faults(self) -> bool:
        """Whether all stop for one, so that the clock alone changes."""
        return self.churn is not None and self.churn.policy in ("wait", "restart")

    @property
    def units(self) -> int:
        """Number of independent units: workers, or groups that the scheme takes as one (``inside``)."""
        return self.scheme.units(self.options, self.transfer.network)

    @property
    def cycle(self) -> int:
        """Number of steps after which the scheme's messages, and evaluations that take time, repeat."""
        cycle = self.scheme.cycle(self.options, self.units)
        return math.lcm(cycle, self.scoring.every) if self.scoring.time_s else cycle

    def among(self, ranks: tuple[int, ...]) -> Job:
        """The job of these workers alone, which are 0, 1, ... in it, without faults."""
        priced, chosen = self.collectives.priced, self.collectives.chosen
        return replace(
            self,
            workers=len(ranks),
            ranks=ranks,
            speeds=tuple(self.speeds[rank] for rank in ranks if self.speeds),
            transfer=replace(self.transfer, network=self.transfer.network.among(ranks)),
            collectives=replace(
                self.collectives,
                priced=priced and replace(priced, network=priced.network.among(ranks)),
                chosen=chosen if len(ranks) == self.workers else Algorithms(chosen.names),
            ),
            churn=None,
        )

    def over(self, transfer: TransferModel) -> Job:
        """The job with messages that travel so, and the algorithms chosen for its own network."""
        collectives = replace(self.collectives, priced=self.collectives.priced or self.transfer)
        return replace(self, transfer=transfer, collectives=collectives)

    def with_rounds(self, factor: float) -> Job:
        """The job with an average's time besides its exchange (``round``) multiplied."""
        round_s = getattr(self.options, "round", 0.0)
        options = self.options.model_copy(update={"round": factor * round_s})
        return replace(self, options=options) if round_s else self

    def rank_of(self, worker: int) -> int:
        """Rank of a worker in the job that this one is a part of."""
        return self.ranks[worker] if self.ranks else worker

    def parts(self, gradient: ops.Gradient) -> int:
        """Number of equal parts of a batch, of which a gradient is of one; 1: it is of the whole."""
        return 1 if gradient.part is None else self.compute.accumulate

    def ends_batch(self, gradient: ops.Gradient) -> bool:
        """Whether a worker's batch ends with this gradient."""
        return gradient.part is None or gradient.part == self.compute.accumulate - 1

    def drawn_loss(self, worker: int, number: int) -> Tensor:
        """Loss [1] of a worker's gradient where nothing is trained: drawn, each as often the least."""
        return self.start.new_tensor([seeds.uniform(self.seed, self.rank_of(worker), "loss", number)])

    def worker(self, rank: int) -> Worker:
        """The worker that a scheme sees."""
        return self._worker((rank,), self.start, self.optimizer)

    def program(self, rank: int, **since: Any) -> Program:
        """The scheme's coroutines for one worker; ``since``: its ``first_step``, and what it has ``kept``."""
        return self.scheme.start(replace(self.worker(rank), **since), self.options)

    def vectorised_worker(self) -> Worker:
        """All workers at once."""
        rule = self.optimizer
        # A user's scheme may write into what is new; running buffers are joined to rows of their own.
        if self.scheme.name in SCHEMES and not isinstance(rule, WithBuffers):
            rule = OncePerRow(rule)
        return self._worker(tuple(range(self.workers)), self.start.expand(self.workers, -1), rule)

    def _worker(self, ranks: tuple[int, ...], start: torch.Tensor, optimizer: Optimizer) -> Worker:
        models = self.problem.model_weights if self.problem else ()
        own = start.new_tensor([models[rank] for rank in ranks if models])
        return Worker(
            ranks,
            self.workers,
            start,
            optimizer,
            self.seed,
            sites=self.transfer.network.site_of,
            hosts=self.transfer.network.nodes,
            element_bytes=self.bytes_per_parameter,
            sums_inside=self.collectives.sums_inside,
            evaluation_s=self.scoring.time_s,
            every=self.scoring.every,
            layers=tuple((start, stop) for _, start, stop in reversed(self.layers.segments)),
            accumulate=self.compute.accumulate,
            parameters=self.layers.tensors(self.start.shape[-1]),
            weight=own.view(*start.shape[:-1], 1) if models else None,
            speeds=self.speeds,
        )

    def pace_marks(self) -> PaceMarks:
        """Marks of the step time: the end of the run, of the first worker or of all."""
        return PaceMarks(self.workers, self.max_iterations or sys.maxsize, self.synchronous)

    def scorer(self) -> Scorer[torch.Tensor]:
        """A fresh scorer of this job, for models at hand."""
        return self.scorer_of(as_they_are)

    def scorer_of(self, fetch: Fetch[V]) -> Scorer[V]:
        """A fresh scorer of this job, for models that ``fetch`` gets."""
        scoring, problem = self.scoring, self.problem
        if scoring.curve is not None:
            from ..training.curves.points import CurveScorer

            return CurveScorer(
                None, None, scoring.every, scoring.on, scoring.target, fetch, points=scoring.curve,
                published=self.publishes, hand_over=self.hand_over,
            )  # fmt: skip
        every = scoring.gradient_noise
        meter = NoiseMeter(problem, every, self.optimizer.lr_at) if every and problem else None
        workload = problem.workload if problem else None
        return Scorer(
            workload, self.task, scoring.every, scoring.on, scoring.target, fetch, noise=meter,
            published=self.publishes, hand_over=self.hand_over,
        )  # fmt: skip

    @property
    def publishes(self) -> On | None:
        """The kind of model that ``published`` stands for; None: what has been published by then."""
        return self.scheme.publishes(self.options)

    @property
    def scored_kind(self) -> On | None:
        """The kind of model that ``on`` stands for, as above."""
        return self.publishes if self.scoring.on == "published" else self.scoring.on

    @cached_property
    def hand_over(self) -> HandOver:
        """One all-reduce of the whole model, on idle links; nothing where a model of all is published, or no
        scores wait for it."""
        unscored = self.problem is None and self.scoring.curve is None
        if unscored or self.publishes not in ("mean", None) or "published" not in self.scoring.scored_on:
            return HandOver()
        collective, order = self.choice.collective_of(
            ops.AllReduce(self.start), tuple(range(self.workers)), 0
        )
        nominal = self.collectives.priced or self.transfer  # alike in a real run and its prediction
        steady = replace(nominal, network=nominal.network.steady)
        return HandOver(price_s(place(collective, order, steady)), int(collective.num_bytes.sum()))

    def kept(self, operation: ops.Publish) -> tuple[torch.Tensor | None, ...]:
        """A published step's model, leader's model and average, each None where it is not kept for scoring.

        Models are kept as ``keeps`` says, the others only where they are scored; of averages between two kept
        models all that are not made at every step.
        """
        kinds, here = self._kinds, self.scoring.keeps.at(operation.step + 1)
        seldom = self.publishes is None or self.scheme.cycle(self.options, self.units) > 1
        averaged = ("averaged" in kinds and (here or seldom)) or (here and self.scoring.gradient_noise)
        return (
            operation.value if here else None,
            operation.leader if here and "leader" in kinds else None,
            operation.averaged if averaged else None,
        )

    @cached_property
    def _kinds(self) -> frozenset[On]:
        """What these kinds may stand for: ``published`` for what the scheme publishes."""
        each = frozenset(self.scoring.scored_on)
        any_of_three = frozenset[On](("averaged", "leader", "mean"))
        published = any_of_three if self.publishes is None else frozenset((self.publishes,))
        return each - {"published"} | published if "published" in each else each

    def published(
        self, worker: int, time_s: float, bytes_sent: int, operation: ops.Publish
    ) -> Published[torch.Tensor]:
        """A published step as its scorer sees it."""
        value, leader, averaged = self.kept(operation)
        rank = self.rank_of(worker)
        return Published(rank, operation.step, time_s, value, bytes_sent, leader, averaged, operation.notes)

    def encode_s(self, operation: ops.Encode) -> float | Tensor | None:
        """Seconds of an encoding on a worker, or on each; None if unknown, when it takes no time."""
        rates = self.compute.compute.encoding
        rate = rates.top_k if isinstance(operation.codec, TopK) else rates.qsgd
        return None if rate is None else operation.elements * self.bytes_per_parameter / rate

    @cached_property
    def choice(self) -> Choice:
        """The algorithms of its collectives."""
        of, priced = self.collectives, self.collectives.priced or self.transfer
        return Choice(of.transport, of.all_reduce, of.chosen, priced, self.bytes_per_parameter)
