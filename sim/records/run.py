"""Outcome of a run: one schema for simulated and measured ones.

A run is one scheme under one seed. A result folder holds all runs of one command:

``scenario.yaml``   the resolved scenario
``summary.json``    per run and per scheme, see ``docs/records.md``
``metrics.parquet`` METRICS, one row per evaluation
``events.parquet``  EVENTS, one row per operation, in the order in which the worker resumed
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Final, Literal, NotRequired

from typing_extensions import TypedDict

from .carry.noise import NoisePoint
from .carry.score_error import ScoreSlices

On = Literal["published", "mean", "workers", "worst", "leader", "averaged"]
"""The scored model: what the scheme publishes for all, the mean model, all workers on average, the worst of
them, the leader's, or the average that the scheme itself publishes.
"""

ANY_SOURCE: Final = "receive_any"
"""In ``Run.exchanges`` beside ``receive``: a worker received from the first sender to arrive."""

OTHER_CLOCK: Final = "its curve was measured under another clock, on which an asynchronous scheme's depends"
"""In ``Run.message``: what the models are depends on the clock, and these were measured."""

HALF_SUM: Final = "sum_in_16_bits"
"""In ``Run.exchanges`` beside ``all_reduce``: values were added up in 16 bits."""

UNTIMED_ENCODING: Final = "encode_in_no_time"
"""In ``Run.exchanges``: values were encoded, and the scenario gives no speed for it."""

BRACKET: Final = 0.02
"""Width to which the crossing of the target is narrowed down, as a share of the time."""
INSTANT: Final = 1e-9
"""Times within this share of the later one are one instant: they differ by rounding."""

LOST: Final = -1
"""In a step vector: this worker is gone."""

Source = Literal["simulated", "measured"]
Status = Literal["completed", "diverged", "partial"]


RESUMPTIONS: Final = frozenset({"wait", "wait_any"})
"""Events of a coroutine that was blocked on a started operation; they carry its handle."""
COMPUTING: Final = frozenset({"gradient", "forward", "encode", "evaluate", "spend_round"})
"""Events of a worker that computes."""


@dataclass(frozen=True, slots=True)
class Event:
    """One operation of one worker, written when it completes.

    An awaited operation gives one row when the coroutine resumes. A started one gives a row of its own
    (``handle`` >= 0) when it completes and a ``wait`` row when the coroutine resumes with its reply.
    Operations that take no time are left out, except where their reply depends on time (``poll``,
    ``now``, a refused ``next_step``), so that a replay can give the same reply.

    Attributes:
        worker: its rank.
        task: 0 for the scheme's main coroutine, 1, 2, ... for its services.
        handle: number of the started operation of this row, -1 for an awaited one.
        step: step of the main coroutine at the end of the operation; the one that ``next_step`` refused.
        operation: ``gradient``, ``mix``, ``all_reduce``, ``send``, ``receive``, ...
        start_s, end_s: on the run's clock.
        peer_s: when the last needed peer began (``start_s`` if none was waited for); of a broadcast that
            is the root.
        bytes: payload that this worker sent in this operation.
        peer: the other side of a point-to-point operation (for ``receive``: the sender), the root of a
            ``broadcast``, else -1.
    """

    worker: int
    task: int
    handle: int
    step: int
    operation: str
    start_s: float
    end_s: float
    peer_s: float
    bytes: int
    peer: int


def metric_name(metric: str, on: str, own: str) -> str:
    """Name of a metric of ``on`` in evaluations: plain if ``evaluate.on`` (``own``) is the same."""
    return metric if on == own else f"{metric}_on_{on}"


_FALLS: Final = re.compile(
    r"loss|nll|perplexity|error|entropy|\b(ppl|err|mse|rmse|mae|bpb|bpc|bpt|wer|cer|fid)\b"
)
_RISES: Final = re.compile(
    r"accuracy|reward|\b(acc ?\d*|top ?\d|f1|auc|auroc|bleu|rouge|precision|recall|m?iou|m?ap)\b"
)


def falls(metric: str) -> bool | None:
    """Whether a score gets better by falling, by its name; None where the name says nothing.

    >>> falls("eval/loss_on_worst"), falls("top1_error"), falls("val-acc1"), falls("score")
    (True, True, False, None)
    """
    words = re.sub(r"[^a-z0-9]+", " ", metric.lower())
    return True if _FALLS.search(words) else False if _RISES.search(words) else None


NO_METRICS: Final = frozenset({"label", "scheme", "seed", "source", "step", "time_s", "bytes_sent", "steps"})
"""Columns of the table of evaluations that are no metrics; reserved names."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores of the models at one moment; None where the task has no such metric or it is not finite.

    Attributes:
        step: number of steps done, the mean over workers, rounded down.
        time_s: on the run's clock.
        bytes_sent: payload that all workers had sent at the end of these steps.
        metrics: those on ``evaluate.on`` under their own names; the target's, if on something
            else, as ``test_accuracy_on_worst``. See ``paceline.sim.training.scoring``.
        steps: the step vector: for each worker, how many steps the scored model had seen; -1 where
            the worker was gone. Empty: not recorded.
    """

    step: int
    time_s: float
    bytes_sent: int
    metrics: dict[str, float | None]
    steps: tuple[int, ...] = ()


@dataclass(slots=True)
class Counts:
    """What is counted of one worker.

    Attributes:
        steps: published.
        bytes_sent: payload of its messages.
        averages: those that may leave out stragglers and wanted this worker's contribution.
        left_out: of these, those made without it.
        operations: names of begun operations, with ``ANY_SOURCE`` for a receive from anybody.
        sent_to: worker -> bytes, which add up to ``bytes_sent``.
    """

    steps: int = 0
    bytes_sent: int = 0
    averages: int = 0
    left_out: int = 0
    operations: set[str] = field(default_factory=set)
    sent_to: dict[int, int] = field(default_factory=dict)

    def go_on(self, before: Counts) -> None:
        """Take over what was counted before; sets and mappings are shared."""
        for each in fields(Counts):
            setattr(self, each.name, getattr(before, each.name))


@dataclass(frozen=True, slots=True)
class TimeShare:
    """Shares of a worker's wall clock, mean over workers; they add up to ``Run.wall_clock_s``.

    wait: until the last needed peer began; communicate: the rest of every exchange; idle: after the end of
    ``Run.pace``; down: lost by faults and checkpoints (``FaultCost``).
    """

    compute: float
    communicate: float
    wait: float
    idle: float = 0.0
    down: float = 0.0


class FaultCost(TypedDict):
    """Time that faults and checkpoints have cost a run, mean over workers.

    Where all stop for a fault the three add up to ``TimeShare.down``; else work repeated counts as computing,
    and under ``skip`` a fault as a longer computation.

    down_s: without work, with restarts; repeated_s: work done again; writing_s: stops to write checkpoints.
    """

    outages: int
    down_s: float
    repeated_s: float
    writing_s: float


class PaceRecord(TypedDict):
    """JSON form of ``Pace``."""

    time_s: float
    steps: list[float]
    averages: list[float]
    lost: NotRequired[list[int]]
    between: NotRequired[dict[str, dict[str, int]]]


@dataclass(frozen=True)
class Pace:
    """Progress of the workers within a span of time; ``PaceRecord`` is its form in JSON.

    The pace of a run ends when all workers are through where they keep step, else when the first is: the rest
    is an idle end. In a run that is cut off before, it ends with the last step.

    Attributes:
        time_s: length of the span.
        steps: of each worker [n].
        averages: number of steps in which each worker sent anything [n].
        bytes_sent: by all workers.
        lost: ranks of the workers that died, unless all did; they count in no mean.
        between: bytes from each site to each by its end; empty where they are those of the run, or none.
    """

    time_s: float
    steps: tuple[float, ...]
    averages: tuple[float, ...]
    bytes_sent: float = 0.0
    lost: tuple[int, ...] = ()
    between: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @property
    def mean_steps(self) -> float:
        """Steps of a worker, the mean over all that are not lost."""
        there = [steps for rank, steps in enumerate(self.steps) if rank not in self.lost]
        return sum(there) / len(there)

    @property
    def step_s(self) -> float | None:
        """Elapsed time over the mean number of steps; None without steps."""
        return self.time_s / self.mean_steps if self.mean_steps > 0 else None

    @property
    def shares(self) -> list[float | None]:
        """Each worker's part of all steps, adding up to 1; [] without steps, None for lost workers."""
        total = self.mean_steps * (len(self.steps) - len(self.lost))
        return [
            None if rank in self.lost else steps / total for rank, steps in enumerate(self.steps) if total > 0
        ]

    @property
    def average_s(self) -> list[float | None]:
        """Mean time between two averages of each worker; None where it had none."""
        return [self.time_s / averages if averages > 0 else None for averages in self.averages]

    def since(self, earlier: Pace) -> Pace:
        """Progress after an earlier moment of the same run."""
        return Pace(
            self.time_s - earlier.time_s,
            tuple(a - b for a, b in zip(self.steps, earlier.steps, strict=True)),
            tuple(a - b for a, b in zip(self.averages, earlier.averages, strict=True)),
            self.bytes_sent - earlier.bytes_sent,
            self.lost,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine of a worker; its times have at most this error relative to worker 0's (None: not known)."""

    host: str
    clock_error_s: float | None


@dataclass(frozen=True)
class Run:
    """One scheme under one seed, simulated or measured."""

    scheme: str
    label: str
    seed: int
    source: Source
    status: Status
    reached_target: bool
    time_to_target_s: float | None
    wall_clock_s: float
    iterations: float
    bytes_sent: int
    time_s: TimeShare
    evaluations: tuple[Evaluation, ...]
    digest: str
    """SHA-256 over the workers' final parameters in rank order: equal digests are equal bits."""
    events: tuple[Event, ...] = field(default=(), repr=False)
    message: str = ""
    """Why the run is not ``completed``, or a warning about a completed one: lost workers, doubtful scores."""
    machines: tuple[Machine, ...] = ()
    """One per worker; only of measured runs."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """Facts for calibration about the hosts of a measured run: ``kind`` (lab or cluster), ``transport``,
    ``software``, and TCP settings by their names.
    """
    exchanges: tuple[str, ...] | None = None
    """Names of the operations that exchanged anything between workers, sorted, with ``ANY_SOURCE`` where one
    received from anybody, ``HALF_SUM`` and ``UNTIMED_ENCODING``; None: not recorded.
    """
    iterates: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    """Digests of each worker's kept models, in order; only of measured runs, and not in folders."""
    bracket_s: tuple[float, float] | None = None
    """The two scored moments between which the target was met; the second is ``time_to_target_s``."""
    slices: ScoreSlices | None = None
    """How well the score that met the target is known; None: not known, or none met it."""
    steps_between: tuple[float, float] | None = None
    """Steps of a worker between which the target was met, as far as the points of a measured curve tell."""
    engine: str = ""
    """Driver of the virtual clock, ``event`` or ``lockstep``; empty for measured runs."""
    engine_reason: str = ""
    """Why the event driver ran it, in a sentence."""
    left_out: tuple[tuple[int, int], ...] = ()
    """For each worker, how many averages were made without its contribution, which came too late, and how
    many wanted one; empty where averages wait for all.
    """
    pace: Pace | None = None
    """Progress until the first worker is through, or until all are where they keep step; None: unknown."""
    between: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Bytes from each site to each; empty where there is one site."""
    on_links: Mapping[str, int] = field(default_factory=dict)
    """Bytes on each used link beyond the access links."""
    faults: FaultCost | None = None
    """Of a run with faults or checkpoints."""
    gradients: tuple[NoisePoint, ...] = ()
    """Noise, heterogeneity and size of the gradients along the run, where they were measured."""

    @property
    def step_s(self) -> float | None:
        """Time of a step; without a ``pace`` the wall clock over the mean number of steps."""
        if self.pace is not None:
            return self.pace.step_s
        return self.wall_clock_s / self.iterations if self.iterations else None

    @property
    def met(self) -> Evaluation | None:
        """Evaluation that met the target; None if none did."""
        if self.time_to_target_s is None:
            return None
        # The first of that instant: older records also hold a later score of workers that were ahead.
        return next((e for e in self.evaluations if e.time_s >= self.time_to_target_s), None)


def untimed(exchanges: Collection[str]) -> list[str]:
    """Costs missing from simulated steps with these ``Run.exchanges``, as phrases."""
    phrase = "the time to encode and decode values, of which `cluster.compute.encoding` says nothing"
    return [phrase] if UNTIMED_ENCODING in exchanges else []


SUM_TOLERANCE: Final = 1e-5
"""Relative difference of scores that a library's sums, made in another order, may cause."""
HALF_SUM_TOLERANCE: Final = 2e-2
"""Tolerance of sums in 16 bits, and of coarse optimisers: bfloat16 rounds each by up to 0.4 per cent."""

_EXACT_EXCHANGES: Final = frozenset({"mix", "send", "receive", UNTIMED_ENCODING})
"""Exchanges in which the workers themselves make every sum, in the same order on both sides."""


def exact_exchanges(exchanges: Collection[str] | None) -> bool:
    """Whether recorded ``Run.exchanges`` imply equal models to the bit (``mix``, ``send``; no
    ``all_reduce``).
    """
    return exchanges is not None and _EXACT_EXCHANGES.issuperset(exchanges)


def sum_tolerance(exchanges: Collection[str] | None) -> float:
    """Relative tolerance of scores that rest on a library's sums, by a run's recorded exchanges.

    >>> sum_tolerance(("all_reduce",)), sum_tolerance(("all_reduce", "sum_in_16_bits"))
    (1e-05, 0.02)
    """
    return HALF_SUM_TOLERANCE if exchanges is not None and HALF_SUM in exchanges else SUM_TOLERANCE


def score_difference(scores: Mapping[str, float | None], reference: Mapping[str, float | None]) -> float:
    """Largest difference between scores of the same models, without the consensus distance (often near zero).

    Accuracies count in shares of the examples, others relative to the reference.

    >>> round(score_difference({"train_loss": 2.002}, {"train_loss": 2.0}), 9)
    0.001
    >>> score_difference({"test_accuracy": 26 / 256}, {"test_accuracy": 25 / 256}) == 1 / 256
    True
    """
    worst = 0.0
    for name, score in scores.items():
        known = reference.get(name)
        if name == "consensus_distance" or (score is None and known is None):
            continue
        if score is None or known is None:
            return math.inf
        scale = 1.0 if name.startswith("test_accuracy") else max(abs(known), 1e-12)
        worst = max(worst, abs(score - known) / scale)
    return worst
