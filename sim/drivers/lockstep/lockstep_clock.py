"""The clocks of workers, moved by operations that all workers do together.

Jobs that differ in speeds alone are moved at once: times are [jobs, n], each job a row.

The messages of a mix are max-plus sums of vectors. A message from j to i leaves b / r after both sides are
ready, and arrives one latency later:

    left = max(t_j, t_i + announcement) + overhead + b / r,    arrived = left + latency

A worker continues when all its own messages have left and all that it waits for have arrived. That holds
where a message has its links for itself.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import lru_cache, partial
from itertools import chain
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ... import seeds
from ...collectives.collective import Sends
from ...compute.model import ComputeModel
from ...errors import NotInLockstep
from ...network.transport import AUTO_ALGORITHM, TransferModel, route_pairs
from ...program import operations as ops
from ...program.encoding import message_bytes
from ...program.operations import Mix, name_of
from ...program.pattern import Pattern
from ...records.run import INSTANT, UNTIMED_ENCODING
from ...seeds import Floats, Integers
from ...traffic.placing import Placed
from ...traffic.selection import BY_PRICE
from ...training.scoring import Scorer
from ..job import Job
from ..outcome import Outcome
from .accounts import StackedAccounts, StackedOperation
from .collective_times import CollectiveTimes
from .stacked import PublishedRows, PublishedSteps

STRIP: Final = 32
"""Gradients per strip of rows [n], transposed from rows by worker; a strip fits into a cache."""


class Durations:
    """Durations of all workers' gradients, in order, for jobs in rows."""

    def __init__(self, models: Sequence[ComputeModel], workers: int) -> None:
        self._models = models
        self._ranks = range(workers)
        self._taken = 0
        self._steady: Floats | None = None
        if not any(model.varies for model in models):
            self._steady = self._blocks_s(0)[..., 0].copy()
        self._block = self._strip = np.empty((0, len(models), workers))

    def _blocks_s(self, number: int) -> Floats:
        return np.stack([model.blocks_s(self._ranks, number) for model in self._models])

    def next_s(self) -> Floats:
        """Seconds of the next gradient on each worker [jobs, n]."""
        if self._steady is not None:
            return self._steady
        number, offset = divmod(self._taken, seeds.BLOCK)
        if offset == 0:
            self._block = self._blocks_s(number)
        if offset % STRIP == 0:
            self._strip = np.ascontiguousarray(np.moveaxis(self._block[..., offset : offset + STRIP], -1, 0))
        self._taken += 1
        durations_s: Floats = self._strip[offset % STRIP]
        return durations_s


class LockstepClock:
    """The times of all workers of jobs ``moved_alike``, and the consequences: accounts, scores, the end.

    Attributes:
        messages: sent so far by each job.
        work: messages, of which a collective counts as few for each member, as in ``EventDriver.work``.
        refusal: why the event driver is needed after all; "" so far.
        running: rows of the jobs that go on.
        outcomes: by row, of those that have ended.
    """

    def __init__(self, jobs: Sequence[Job], scorers: Sequence[Scorer[Tensor]]) -> None:
        n = jobs[0].workers
        self._job = jobs[0]
        self._limit_s = np.array([job.max_time_s for job in jobs])
        self._may_be_cut = may_be_cut = _may_be_cut(jobs[0], scorers[0])
        self._accounts = StackedAccounts((len(jobs), n), jobs[0].recording.log(), may_be_cut)
        self._steps = PublishedSteps(jobs, scorers, may_be_cut)
        self._durations = Durations([job.computing for job in jobs], n)
        self._mixes = MixTimes([job.transfer for job in jobs], may_be_cut)
        self._collectives = CollectiveTimes(jobs)
        self._now_s: Floats = np.zeros((len(jobs), n))
        self._sent: Integers = np.zeros(n, np.int64)  # bytes, by each worker of every job
        self._done = 0
        self._begun: dict[int, StackedOperation] = {}  # by handle, until waited for
        self.messages = self.work = 0
        self.refusal = ""
        self.running: Integers = np.arange(len(jobs))
        self.outcomes: dict[int, Outcome] = {}
        self.end_others(self.running[~self._over])

    @property
    def _over(self) -> NDArray[np.bool_]:
        """Whether a score has ended each of the running jobs."""
        return self._steps.over_s[self.running] < math.inf

    def published(self) -> Iterator[tuple[float, int]]:
        """Each worker's current time and bytes sent, in the first job."""
        return zip(self._now_s[0].tolist(), self._sent.tolist(), strict=True)

    # --- operations that take time --------------------------------------------------------------

    def complete(self, operation: ops.Operation[Any]) -> None:
        """Advance to the end of an operation that all workers await; ``NotInLockstep`` ends lockstep here."""
        now_s, name = self._now_s, ops.name_of(type(operation))
        took_s: float | Tensor | Floats | None
        if isinstance(operation, ops.Gradient):
            took_s = self._durations.next_s()
        elif isinstance(operation, ops.Encode):
            if (took_s := self._job.encode_s(operation)) is None:
                name, took_s = UNTIMED_ENCODING, 0.0
        elif isinstance(operation, ops.Evaluate | ops.SpendRound | ops.Sleep):
            took_s = operation.duration_s
        else:
            self._now_s = self._exchange(operation, handle=-1).end_s
            return
        self._now_s = now_s + np.asarray(took_s)
        sleeps = isinstance(operation, ops.Sleep)
        peer_s = self._now_s if sleeps else now_s
        self._accounts.add(StackedOperation(name, self._done, now_s, self._now_s, peer_s, peer_s, sleeps))

    def collectives(self, operation: ops.Operation[Any]) -> Iterator[tuple[Placed, tuple[float, ...]]]:
        """The collectives that workers of a single job are about to join, and each one's joining times."""
        with suppress(NotInLockstep):  # which is raised when they join
            for each in self._collectives.joined(operation, self._now_s) if len(self._now_s) == 1 else ():
                yield each.on_each.each[0], tuple(each.ready_s[0].tolist())

    def check_one_begun(self) -> None:
        """Raise ``NotInLockstep`` if a started exchange has not been waited for."""
        if self._begun:
            raise NotInLockstep("several exchanges are under way at once on each worker")

    def start(self, operation: ops.Mix, handle: int) -> None:
        """Begin a mix on all workers, which they wait for by this handle."""
        self._begun[handle] = self._exchange(operation, handle)

    def wait(self, handle: int) -> None:
        """Advance each worker to the end of its started mix."""
        begun = self._begun.pop(handle)
        end_s = np.maximum(self._now_s, begun.end_s)
        waited = StackedOperation(
            "wait", self._done, self._now_s, end_s, begun.peer_s, begun.known_s, peer=begun.peer,
            handle=handle,
        )  # fmt: skip
        self._accounts.add(waited)
        self._now_s = end_s

    def _exchange(self, operation: Any, handle: int) -> StackedOperation:
        if isinstance(operation, ops.Mix):
            self.check_one_begun()
            self._collectives.check_idle(self._now_s)
            num_bytes = message_bytes(_row(operation.value), self._job.bytes_per_parameter)
            entry, messages, work = self._mixes.times(
                operation.pattern, self._now_s, num_bytes, self._done, handle
            )
        else:
            entry, messages, work = self._collectives.times(operation, self._now_s, self._done)
        self.messages += messages
        self.work += work
        self._sent = self._sent + entry.num_bytes
        self._accounts.add(entry)
        return entry

    # --- steps ----------------------------------------------------------------------------------

    def next_step(self, step: int, goes_on: bool) -> Integers:
        """Rows of the running jobs that need another step, if the scheme ``goes_on``."""
        if not goes_on:
            now_s = self._now_s
            self._accounts.add(StackedOperation("next_step", step, now_s, now_s, now_s, now_s, blocks=False))
            return self.running[:0]
        is_late = (self._now_s.min(axis=1) > self._limit_s)[self.running]
        is_over = self._over | (is_late & self._may_be_cut)
        needing: Integers = self.running[~is_over]
        return needing

    def end_others(self, rows: Integers) -> None:
        """Let the jobs in ``rows`` go on alone; the other running ones have ended."""
        ended = self.running[~np.isin(self.running, rows)]
        self.outcomes |= {row: self._outcome(row) for row in ended.tolist()}
        self._steps.forget(ended)
        self.running = rows

    def publish(self, published: PublishedRows) -> None:
        """Take a publication of all workers."""
        if self._begun:
            raise NotInLockstep("an exchange is under way from one step to the next")
        self._done = published.operation.step + 1
        self._steps.add(self._now_s, self._sent, published)
        if not self._may_be_cut:
            return
        earliest_s = self._now_s.min(axis=1)
        until_s = np.minimum(earliest_s, self._limit_s)
        for row in self.running.tolist():
            self._steps.hand_over(row, float(until_s[row]), float(earliest_s[row]))
        self._steps.forget(self.running[:0])
        # A job that is over is cut off at an instant that may lie before.
        settled_s = np.full(len(until_s), math.inf)
        settled_s[self.running] = np.where(self._over, -math.inf, until_s[self.running])
        self._accounts.settle(settled_s)

    def _outcome(self, row: int) -> Outcome:
        now_s, limit_s = self._now_s[row], float(self._limit_s[row])
        last_s = float(now_s.max())
        if self._steps.over_s[row] == math.inf:
            self._steps.hand_over(row, min(last_s, limit_s), last_s)
        over_s = float(self._steps.over_s[row])
        wall_s = min(over_s, limit_s, last_s)
        # A score ends the run after everything that happens at its instant.
        instant_s = wall_s / (1 - INSTANT) if wall_s == over_s else wall_s
        accounts = self._accounts.of_job(row)
        if wall_s < last_s:
            accounts.cut(wall_s, instant_s)
        else:
            accounts.settle(last_s)
        finals, leader, steps, pace = self._steps.finals(row, instant_s)
        return Outcome(
            wall_s=wall_s,
            breakdowns=accounts.breakdowns(steps, now_s, instant_s),
            finals=finals,
            leader=leader,
            events=accounts.events(),
            status="completed",
            pace=pace,
            step_ends_s=[float(each[row]) for each in self._steps.ends_s],
        )


def moved_alike(job: Job, scorer: Scorer[Tensor]) -> Hashable:
    """All in which jobs with the same mathematics must agree to be moved at once; else an object of its own.

    They may differ in compute times, latencies, bandwidths and limits of time, where links are not shared.
    """
    chosen, all_reduce = job.collectives.chosen.names, job.collectives.all_reduce
    open_yet = all_reduce == AUTO_ALGORITHM and not chosen
    by_price = BY_PRICE in chosen.values() or (open_yet and job.scheme.collectives(job.options))
    if job.transfer.sharing != "none" or by_price:
        return object()
    names = [each.name for each in fields(job.transfer) if each.name != "network"]
    return (
        tuple(getattr(job.transfer, name) for name in names), all_reduce, tuple(chosen.items()),
        job.recording, _may_be_cut(job, scorer),
        job.compute.compute.encoding,
    )  # fmt: skip


def _may_be_cut(job: Job, scorer: Scorer[Tensor]) -> bool:
    return scorer.scores or job.max_time_s < math.inf


def _row(value: Any) -> Any:
    return value[0] if isinstance(value, Tensor) else value.row(0)


KEPT_PATTERNS: Final = 64
"""Patterns whose messages are cached; a sequence of graphs seldom has more in one period."""

Numbers = float | Floats
"""One number for all messages, or one for each."""


class _Ends:
    """Senders and receivers of one pattern's m messages, receiver by receiver, on any network.

    Attributes:
        source, destination: of each [m].
        by_source: the messages' places, sender by sender.
        receivers, senders: workers whose in- or out-degree is not 0, ascending.
        received_from, sent_from: where the messages of these begin, in ``source`` and in ``by_source``.
        one_peer: every worker receives one message and sends one.
        at_most_one: no worker receives more than one, or sends more than one.
        num_sent: by each worker [n].
        last_source: the last source of each worker if all begin at once, -1 where it receives nothing.
    """

    def __init__(self, pattern: Pattern) -> None:
        n = pattern.workers
        in_degrees = np.fromiter(map(len, pattern.sources), np.int64, n)
        self.destination = np.repeat(np.arange(n), in_degrees)
        self.source = np.fromiter(chain.from_iterable(pattern.sources), np.int64, len(self.destination))
        self.by_source = np.argsort(self.source, kind="stable")
        out_degrees = np.bincount(self.source, minlength=n)
        self.receivers, self.senders = np.flatnonzero(in_degrees), np.flatnonzero(out_degrees)
        self.received_from = (np.cumsum(in_degrees) - in_degrees)[self.receivers]
        self.sent_from = (np.cumsum(out_degrees) - out_degrees)[self.senders]
        self.at_most_one = bool(in_degrees.max() <= 1 and out_degrees.max() <= 1)
        self.one_peer = self.at_most_one and len(self.source) == n
        self.num_sent: int | Integers = 1 if self.one_peer else out_degrees
        self.last_source = np.full(n, -1)
        self.last_source[self.receivers] = self.source[np.cumsum(in_degrees)[self.receivers] - 1]


_ends_of = lru_cache(maxsize=KEPT_PATTERNS)(_Ends)


@lru_cache(maxsize=KEPT_PATTERNS)
def _sends_of(ends: _Ends, num_bytes: int) -> Sends:
    return Sends(ends.source, ends.destination, np.full(len(ends.source), num_bytes))


@dataclass(frozen=True, slots=True, eq=False)
class _Messages:
    """The messages of one pattern on each job's network; a number is for all of them."""

    ends: _Ends
    latency_s: Numbers
    announced_s: Numbers
    rate_bytes_per_s: Numbers


class MixTimes:
    """Times the mixes of runs, each on a network without variation; their models differ in nothing else.

    ``may_be_cut``: the run may end before its operations do, so that ``known_s`` counts.
    """

    def __init__(self, models: Sequence[TransferModel], may_be_cut: bool) -> None:
        self._may_be_cut, model = may_be_cut, models[0]
        self._shared = model.sharing != "none"
        self._meeting = shared_links(model)
        self._overhead_s = model.block_overhead_s
        self._announcement = 0.0 if model.plain_patterns else model.announcement
        self._messages = lru_cache(maxsize=KEPT_PATTERNS)(partial(_place, models, self._announcement))

    def times(
        self, pattern: Pattern, begin_s: Floats, num_bytes: int, step: int, handle: int
    ) -> tuple[StackedOperation, int, int]:
        """A mix begun at ``begin_s`` [jobs, n], its number of messages, and its work, which is the same.

        ``peer``: each worker's last source, -1 where it received nothing. ``NotInLockstep``: shared links.
        """
        if self._meeting:
            raise NotInLockstep(self._meeting)
        messages = self._messages(pattern)
        ends = messages.ends
        if self._shared and not ends.at_most_one:
            raise NotInLockstep(
                "a worker has several messages under way at once, which share its link (network.sharing)"
            )
        sends, by_links = _sends_of(ends, num_bytes), self._shared and self._may_be_cut
        sender_s = begin_s.take(ends.source, axis=-1)
        receiver_s = begin_s if ends.one_peer else begin_s.take(ends.destination, axis=-1)
        together_s = np.maximum(sender_s, receiver_s)
        announced_s = together_s
        if self._announcement:
            announced_s = np.maximum(sender_s, receiver_s + messages.announced_s)
        # Added in the event driver's order, for the same bits.
        left_s = announced_s + self._overhead_s if self._overhead_s else announced_s
        left_s = left_s + num_bytes / messages.rate_bytes_per_s
        arrived_s = left_s + messages.latency_s
        if ends.one_peer:
            sent_s = left_s.take(ends.by_source, axis=-1)
            end_s = np.maximum(arrived_s, sent_s, out=arrived_s)
            sent_together_s = together_s.take(ends.by_source, axis=-1)
            peer_s = np.maximum(together_s, sent_together_s, out=sent_together_s)
            known_s = np.maximum(left_s, sent_s) if by_links else peer_s
            last = ends.source
        else:
            end_s = _latest(ends, begin_s, arrived_s, left_s)
            peer_s = _latest(ends, begin_s, together_s, together_s)
            known_s = _latest(ends, begin_s, left_s, left_s) if by_links else peer_s
            last = _last_sources(ends, together_s)
        mixed = StackedOperation(
            name_of(Mix), step, begin_s, end_s, peer_s, known_s, handle < 0, num_bytes * ends.num_sent, last,
            handle, sends=sends,
        )  # fmt: skip
        return mixed, len(ends.source), len(ends.source)


def _place(models: Sequence[TransferModel], announcement: float, pattern: Pattern) -> _Messages:
    ends, hosts = _ends_of(pattern), tuple(range(pattern.workers))
    there = [route_pairs(ends.source, ends.destination, hosts, model) for model in models]
    back_s = np.zeros((1, 1))
    if announcement:
        back = [route_pairs(ends.destination, ends.source, hosts, model) for model in models]
        back_s = np.stack([each.latency_s for each in back])
    return _Messages(
        ends=ends,
        latency_s=_one_if_equal(np.stack([each.latency_s for each in there])),
        announced_s=_one_if_equal(announcement * back_s),
        rate_bytes_per_s=_one_if_equal(np.stack([each.bytes_per_s for each in there])),
    )


def _one_if_equal(values: Floats) -> Numbers:
    """``values`` [jobs, m] as one number, or one for each job, if they are equal."""
    if not values.shape[-1] or not (values == values[:, :1]).all():
        return values
    return float(values[0, 0]) if len(values) == 1 else values[:, :1]


def _latest(ends: _Ends, begin_s: Floats, received_s: Floats, sent_s: Floats) -> Floats:
    """Latest time of each worker [jobs, n]: its own begin, received and sent messages [jobs, m]."""
    latest_s = begin_s.copy()
    if len(ends.source):
        for ranks, first, values in (
            (ends.receivers, ends.received_from, received_s),
            (ends.senders, ends.sent_from, sent_s.take(ends.by_source, axis=-1)),
        ):
            among_s = np.maximum.reduceat(values, first, axis=-1)
            latest_s[:, ranks] = np.maximum(latest_s[:, ranks], among_s)
    return latest_s


def _last_sources(ends: _Ends, together_s: Floats) -> Integers:
    """Each worker's last source: of several that came together, the one of highest rank."""
    if ends.at_most_one or not len(ends.source):
        return ends.last_source
    last = np.tile(ends.last_source, (len(together_s), 1))
    latest_s = np.full(last.shape, -np.inf)
    latest_s[:, ends.receivers] = np.maximum.reduceat(together_s, ends.received_from, axis=-1)
    rows, among = np.nonzero(together_s == latest_s[:, ends.destination])
    last[rows, ends.destination[among]] = ends.source[among]  # the last one wins
    return last


def shared_links(model: TransferModel) -> str:
    """Why messages can share links though every worker has at most one in flight; "" if they cannot."""
    network = model.network
    if model.sharing == "none":
        return ""
    if network.routes or network.node_of or network.pipe or network.leave or network.enter:
        return "messages of different workers share links (network.sharing)"
    if model.streams and not model.plain_patterns:
        return "messages and announcements share TCP streams (network.transport)"
    return ""
