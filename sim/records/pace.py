"""The time of a step, by one rule for every command and scheme.

A step takes the elapsed time over the mean number of steps that the workers did in it, until all of them are
through where they keep step, else until the first is: what comes after is an idle end. Of a run that is cut
off before, it is the time up to the last step. At the moment in which the first is through the others are
within a step, of which the part counts that has passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from typing_extensions import TypedDict

INSTANT: Final = 1e-9
"""Times that differ by no more than this share of the later one are one instant: they differ by rounding."""

UNEVEN: Final = 2.0
"""Steps of the fastest worker over those of the slowest beyond which a mean step names no winner."""


class PaceRecord(TypedDict):
    """See ``Pace``."""

    time_s: float
    steps: list[float]
    averages: list[float]


@dataclass(frozen=True)
class Pace:
    """What the workers did within a span of time; ``PaceRecord`` is how it stands in JSON.

    Attributes:
        time_s: its length.
        steps: that each worker did [n].
        averages: in how many of its steps each worker sent anything [n].
        bytes_sent: by all workers.
    """

    time_s: float
    steps: tuple[float, ...]
    averages: tuple[float, ...]
    bytes_sent: float = 0.0

    @property
    def mean_steps(self) -> float:
        """Steps of a worker, the mean over all."""
        return sum(self.steps) / len(self.steps)

    @property
    def step_s(self) -> float | None:
        """Elapsed time over the mean number of steps; None where there were none."""
        return self.time_s / self.mean_steps if self.mean_steps > 0 else None

    @property
    def shares(self) -> list[float]:
        """Each worker's part of all steps, adding up to 1; [] where there were none."""
        total = sum(self.steps)
        return [steps / total for steps in self.steps] if total > 0 else []

    @property
    def average_s(self) -> list[float | None]:
        """The time from one average of each worker to its next; None where it had none."""
        return [self.time_s / averages if averages > 0 else None for averages in self.averages]

    def record(self) -> PaceRecord:
        """As plain values."""
        return PaceRecord(time_s=self.time_s, steps=list(self.steps), averages=list(self.averages))

    @classmethod
    def read(cls, record: PaceRecord) -> Pace:
        """The inverse of ``record``."""
        return cls(record["time_s"], tuple(record["steps"]), tuple(record["averages"]))

    def since(self, earlier: Pace) -> Pace:
        """What was done after an earlier moment of the same run."""
        return Pace(
            self.time_s - earlier.time_s,
            tuple(a - b for a, b in zip(self.steps, earlier.steps, strict=True)),
            tuple(a - b for a, b in zip(self.averages, earlier.averages, strict=True)),
            self.bytes_sent - earlier.bytes_sent,
        )


def unevenness(shares: Sequence[float]) -> float:
    """Steps of the fastest worker over those of the slowest, 1 where nothing is known."""
    return 1.0 if not shares else max(shares) / min(shares) if min(shares) > 0 else float("inf")


@dataclass(frozen=True, slots=True)
class _Done:
    """What a worker had done when it published a step."""

    time_s: float = 0.0
    steps: float = 0.0
    averages: float = 0.0
    bytes_sent: float = 0.0

    def towards(self, later: _Done, time_s: float) -> _Done:
        """What it had done by a time in between, as if it went on evenly."""
        part = (time_s - self.time_s) / (later.time_s - self.time_s)
        return _Done(
            time_s,
            self.steps + part * (later.steps - self.steps),
            self.averages + part * (later.averages - self.averages),
            self.bytes_sent + part * (later.bytes_sent - self.bytes_sent),
        )


@dataclass(slots=True)
class _Mark:
    time_s: float
    done: list[_Done | None]
    lacking: int


@dataclass
class PaceMarks:
    """Marks the end of every ``cycle`` steps: of all workers where they keep step, else of the first.

    Attributes:
        workers: how many there are.
        cycle: steps from one mark to the next.
        in_step: whether the workers keep step.
    """

    workers: int
    cycle: int
    in_step: bool
    _marks: list[_Mark] = field(default_factory=list)
    _latest: list[_Done] = field(default_factory=list)
    _next: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        start = _Done()
        self._marks = [_Mark(0.0, [start] * self.workers, 0)]
        self._latest = [start] * self.workers
        self._next = [1] * self.workers

    @property
    def complete(self) -> int:
        """How many cycles have ended."""
        return len(self._marks) - 1 - (self.in_step and self._marks[-1].lacking > 0)

    def is_known(self, number: int) -> bool:
        """Whether all is known of the end of so many cycles."""
        return number < len(self._marks) and not self._marks[number].lacking

    def publish(self, rank: int, step: int, time_s: float, bytes_sent: int) -> None:
        """A worker has done a step, and sent so many bytes so far. Called in the order of time."""
        before = self._latest[rank]
        averages = before.averages + (bytes_sent > before.bytes_sent)
        now = self._latest[rank] = _Done(time_s, step + 1.0, averages, bytes_sent)
        cycles, rest = divmod(step + 1, self.cycle)
        if not rest:
            while len(self._marks) <= cycles:
                self._marks.append(_Mark(time_s, [None] * self.workers, self.workers))
            if self.in_step:
                mark = self._marks[cycles]
                mark.time_s = max(mark.time_s, time_s)
                self._enter(mark, rank, now)
        if self.in_step:
            return
        for mark in self._marks[self._next[rank] :]:
            if mark.time_s > time_s:
                break
            at_once = time_s * (1 - INSTANT) <= mark.time_s
            self._enter(mark, rank, now if at_once else before.towards(now, mark.time_s))
            self._next[rank] += 1

    def _enter(self, mark: _Mark, rank: int, done: _Done) -> None:
        mark.lacking -= mark.done[rank] is None
        mark.done[rank] = done

    def at(self, number: int) -> Pace:
        """All from the beginning to the end of so many cycles; who is within a step has done none of it
        where its end was not seen."""
        mark = self._marks[number]
        done = [each or latest for each, latest in zip(mark.done, self._latest, strict=True)]
        return _pace(mark.time_s, done)

    def last(self) -> Pace:
        """All up to the end of the last cycle; up to the last step where none has ended."""
        if self.complete:
            return self.at(self.complete)
        return _pace(max(each.time_s for each in self._latest), self._latest)


def _pace(time_s: float, done: Sequence[_Done]) -> Pace:
    return Pace(
        time_s,
        tuple(each.steps for each in done),
        tuple(each.averages for each in done),
        sum(each.bytes_sent for each in done),
    )
