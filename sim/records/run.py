"""What happened in a run: one schema for simulated and measured ones.

A run is one scheme under one seed. A result folder holds all runs of one command:

``scenario.yaml``   the resolved scenario
``summary.json``    per run and per scheme, see ``docs/records.md``
``metrics.parquet`` METRICS, one row per evaluation
``events.parquet``  EVENTS, one row per operation, in the order in which the worker resumed
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, NotRequired

from typing_extensions import TypedDict

On = Literal["mean", "workers", "worst", "leader", "averaged"]
"""What is scored: the mean model, all workers on average, the worst of them, the leader's model, or what the
scheme itself publishes as an average."""

ANY_SOURCE: Final = "receive_any"
"""Stands among ``Run.exchanges`` beside ``receive`` where a worker received from whoever sent first."""

HALF_SUM: Final = "sum_in_16_bits"
"""Stands among ``Run.exchanges`` beside ``all_reduce`` where values were added up in 16 bits."""

UNTIMED_ENCODING: Final = "encode_in_no_time"
"""Stands among ``Run.exchanges`` where values were encoded, and the scenario says nothing of how fast."""

BRACKET: Final = 0.02
"""Share of the time up to which the crossing of the target is narrowed down."""
INSTANT: Final = 1e-9
"""Times that differ by no more than this share of the later one are one instant: they differ by rounding."""

LOST: Final = -1
"""In a step vector: this worker is gone."""

Source = Literal["simulated", "measured"]
Status = Literal["completed", "diverged", "partial"]


RESUMPTIONS: Final = frozenset({"wait", "wait_any"})
"""Names of events in which a coroutine was blocked on a started operation; they carry its handle."""


@dataclass(frozen=True, slots=True)
class Event:
    """One operation of one worker, written when it completes.

    An awaited operation gives one row when the coroutine resumes. A started one gives a row of its own
    (``handle`` >= 0) when it completes and a ``wait`` row when the coroutine resumes with its reply.
    Operations that take no time are left out, except where their reply depends on time (``poll``,
    ``now``, a ``next_step`` that said no), so that a replay can give the same reply.

    Attributes:
        worker: its rank.
        task: 0 for the scheme's main coroutine, 1, 2, ... for its services.
        handle: number of the started operation that this row is about, -1 for an awaited one.
        step: the step that the main coroutine was in when the operation ended; the one that
            ``next_step`` refused.
        operation: ``gradient``, ``mix``, ``all_reduce``, ``send``, ``receive``, ...
        start_s, end_s: on the run's clock.
        peer_s: when the last peer that was needed had started (``start_s`` if none was waited for); of a
            broadcast that is the root.
        bytes: payload that this worker sent in this operation.
        peer: the other side of a point-to-point operation (for ``receive``: who sent), the root of a
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
    """What evaluations call a metric of ``on``: its plain name if ``evaluate.on`` (``own``) is the same."""
    return metric if on == own else f"{metric}_on_{on}"


NO_METRICS: Final = frozenset({"label", "scheme", "seed", "source", "step", "time_s", "bytes_sent", "steps"})
"""Columns of the table of evaluations that are no metrics; no metric may be called so."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The models' scores at one moment; None where the task has no such metric or it is not finite.

    Attributes:
        step: how many steps had been done, the mean over workers, rounded down.
        time_s: when.
        bytes_sent: payload that all workers had sent when they had done these steps.
        metrics: those of what ``evaluate.on`` names under their own names; the target's, where it is on
            something else, as ``test_accuracy_on_worst``. See ``paceline.sim.training.scoring``.
        steps: the step vector: for each worker, how many steps the model had seen that was scored; -1 where
            the worker was gone. Empty in a folder that was written before it was recorded.
    """

    step: int
    time_s: float
    bytes_sent: int
    metrics: dict[str, float | None]
    steps: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TimeShare:
    """How a worker's wall clock was spent, mean over workers; adds up to ``Run.wall_clock_s``.

    wait: until the last needed peer had started; communicate: the rest of every exchange; idle: what came
    after the time that ``Run.pace`` is about.
    """

    compute: float
    communicate: float
    wait: float
    idle: float = 0.0


class PaceRecord(TypedDict):
    """See ``Pace``."""

    time_s: float
    steps: list[float]
    averages: list[float]
    lost: NotRequired[list[int]]


@dataclass(frozen=True)
class Pace:
    """What the workers did within a span of time; ``PaceRecord`` is how it stands in JSON.

    That of a run ends when all workers are through where they keep step, else when the first is: what comes
    after is an idle end. Of a run that is cut off before, it ends with the last step.

    Attributes:
        time_s: its length.
        steps: that each worker did [n].
        averages: in how many of its steps each worker sent anything [n].
        bytes_sent: by all workers.
        lost: ranks of the workers that died, unless all did; they count in no mean.
    """

    time_s: float
    steps: tuple[float, ...]
    averages: tuple[float, ...]
    bytes_sent: float = 0.0
    lost: tuple[int, ...] = ()

    @property
    def mean_steps(self) -> float:
        """Steps of a worker, the mean over all that are there."""
        there = [steps for rank, steps in enumerate(self.steps) if rank not in self.lost]
        return sum(there) / len(there)

    @property
    def step_s(self) -> float | None:
        """Elapsed time over the mean number of steps; None where there were none."""
        return self.time_s / self.mean_steps if self.mean_steps > 0 else None

    @property
    def shares(self) -> list[float | None]:
        """Each worker's part of all steps, adding up to 1; [] where there were none, None of who died."""
        total = self.mean_steps * (len(self.steps) - len(self.lost))
        return [
            None if rank in self.lost else steps / total for rank, steps in enumerate(self.steps) if total > 0
        ]

    @property
    def average_s(self) -> list[float | None]:
        """The time from one average of each worker to its next; None where it had none."""
        return [self.time_s / averages if averages > 0 else None for averages in self.averages]

    def record(self) -> PaceRecord:
        """As plain values."""
        record = PaceRecord(time_s=self.time_s, steps=list(self.steps), averages=list(self.averages))
        return {**record, "lost": list(self.lost)} if self.lost else record

    @classmethod
    def read(cls, record: PaceRecord) -> Pace:
        """The inverse of ``record``."""
        steps, averages = tuple(record["steps"]), tuple(record["averages"])
        return cls(record["time_s"], steps, averages, lost=tuple(record.get("lost", ())))

    def since(self, earlier: Pace) -> Pace:
        """What was done after an earlier moment of the same run."""
        return Pace(
            self.time_s - earlier.time_s,
            tuple(a - b for a, b in zip(self.steps, earlier.steps, strict=True)),
            tuple(a - b for a, b in zip(self.averages, earlier.averages, strict=True)),
            self.bytes_sent - earlier.bytes_sent,
            self.lost,
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """Where a worker ran.

    Attributes:
        host: its name.
        clock_error_s: how far times of this worker may be off those of worker 0, at most; None: not known.
    """

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
    """Why the run is not ``completed``, or what to know of one that is: who died, why scores are doubtful."""
    machines: tuple[Machine, ...] = ()
    """One per worker; of measured runs."""
    hosts: Mapping[str, str] = field(default_factory=dict)
    """What calibration has to know of the hosts of a measured run: ``kind`` (lab or cluster), ``transport``,
    ``software``, and TCP settings by their names; {} in a folder that was written before it was recorded."""
    exchanges: tuple[str, ...] | None = None
    """Names of the operations by which the workers exchanged anything, sorted, with ``ANY_SOURCE`` where one
    received from anybody, ``HALF_SUM`` and ``UNTIMED_ENCODING``; None in a folder that was
    written before they were recorded."""
    iterates: tuple[tuple[str, ...], ...] = field(default=(), repr=False)
    """For each worker the digests of its kept models, in order; of measured runs, and not in folders."""
    bracket_s: tuple[float, float] | None = None
    """Between which two scored moments the target was met; the second is ``time_to_target_s``. None where it
    was not met, and in a folder that was written before it was recorded."""
    engine: str = ""
    """Which driver moved the virtual clock, ``event`` or ``lockstep``; empty for measured runs, and in a
    folder that was written before it was recorded."""
    engine_reason: str = ""
    """Why it was the event driver, in a sentence."""
    left_out: tuple[tuple[int, int], ...] = ()
    """For each worker, how many averages were made without its contribution, which was too late, and how many
    were made that wanted one; empty where averages wait for all, and in a folder that was written before it
    was recorded."""
    pace: Pace | None = None
    """The steps of the workers until the first is through, or all are that keep step; None in a folder that
    was written before it was recorded."""

    @property
    def step_s(self) -> float | None:
        """The time of a step; of older folders the wall clock over the mean number of steps."""
        if self.pace is not None:
            return self.pace.step_s
        return self.wall_clock_s / self.iterations if self.iterations else None

    @property
    def met(self) -> Evaluation | None:
        """The evaluation that met the target; None if none did."""
        if self.time_to_target_s is None:
            return None
        # The first of that instant: older records have a score of workers that were ahead after it.
        return next((e for e in self.evaluations if e.time_s >= self.time_to_target_s), None)


def untimed(exchanges: Collection[str]) -> list[str]:
    """What simulated steps with these ``Run.exchanges`` leave out, as phrases."""
    phrase = "the time to encode and decode values, of which `cluster.compute.encoding` says nothing"
    return [phrase] if UNTIMED_ENCODING in exchanges else []


SUM_TOLERANCE: Final = 1e-5
"""Relative difference of scores up to which a library's sums, made in another order, count as the same."""
HALF_SUM_TOLERANCE: Final = 2e-2
"""The same of sums in 16 bits: bfloat16 rounds each by up to 0.4 per cent."""

_EXACT_EXCHANGES: Final = frozenset({"mix", "send", "receive", UNTIMED_ENCODING})
"""Exchanges in which every sum is made by the workers themselves, in the same order on both sides."""


def exact_exchanges(exchanges: Collection[str] | None) -> bool:
    """Whether ``Run.exchanges`` are recorded, and such that models have to be equal bit by bit.

    >>> exact_exchanges(("mix", "send")), exact_exchanges(("all_reduce", "mix")), exact_exchanges(None)
    (True, False, False)
    """
    return exchanges is not None and _EXACT_EXCHANGES.issuperset(exchanges)


def sum_tolerance(exchanges: Collection[str] | None) -> float:
    """By which share scores may differ that rest on a library's sums, by the recorded exchanges of a run.

    >>> sum_tolerance(("all_reduce",)), sum_tolerance(("all_reduce", "sum_in_16_bits"))
    (1e-05, 0.02)
    """
    return HALF_SUM_TOLERANCE if exchanges is not None and HALF_SUM in exchanges else SUM_TOLERANCE


def score_difference(scores: Mapping[str, float | None], reference: Mapping[str, float | None]) -> float:
    """The largest distance of scores of the same models: of accuracies in shares of the examples, of others
    as a share of the reference. The consensus distance is left out: it may be nearly zero.

    >>> round(score_difference({"train_loss": 2.002}, {"train_loss": 2.0}), 9)
    0.001
    >>> score_difference({"test_accuracy": 26 / 256}, {"test_accuracy": 25 / 256}) == 1 / 256
    True
    """
    return max(
        (
            _difference(name, value, reference.get(name))
            for name, value in scores.items()
            if name != "consensus_distance"
        ),
        default=0.0,
    )


def _difference(metric: str, score: float | None, reference: float | None) -> float:
    if score is None or reference is None:
        return 0.0 if score is reference else math.inf
    counted = metric.startswith("test_accuracy")
    return abs(score - reference) / (1.0 if counted else max(abs(reference), 1e-12))
