"""Runs whose remaining workers continue after a fault: ``on_fault: shrink``.

A *view* is the workers that take part; a job of these alone runs on an event driver of its own. It ends

- when the others notice a fault: what each is doing is discarded;
- when somebody is back: at the next step that ends with an exchange, for which everybody stops.

All resume from what they published (``Worker.kept``) after the same number of exchanges, the fewest of
anybody: one that is further goes back. Who returns is healed by the closest of them, which sends all that it
resumes from before its next step. Averages, topologies and weights are those of a job of that many workers.
Where workers act as one (``inside``), a host or site that lacks one of them waits as a whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from ..errors import InputError, RunError
from ..faults.outages import WorkerOutage, check_number, outage_of
from ..program import operations as ops
from ..program.operations import Operation
from ..program.worker import Program
from ..records.accounting import TimeBreakdown
from ..records.run import FaultCost, Pace
from ..training.scoring import Scorer
from .event import EventDriver
from .job import Job
from .membership import AVERAGING, Resumed, healers_of, tensors_of
from .outcome import Outcome
from .tasks.clocked import Pending
from .tasks.runner import SUSPENDED, CoroutineTask


class _Whole:
    """The run as a whole.

    Attributes:
        back_s: who has failed, and until when.
        absent_s: who takes no part, and since when.
        states: what the others resume from; who has none is to be healed.
    """

    def __init__(self, job: Job) -> None:
        assert job.churn is not None
        ranks = range(job.workers)
        self.job = job
        self.now_s = 0.0
        self.back_s: dict[int, float] = {}
        self.absent_s: dict[int, float] = {}
        self.states = dict.fromkeys(ranks, Resumed())
        self.breakdowns = [TimeBreakdown() for _ in ranks]
        self.averages = [0.0] * job.workers
        self.finals = [job.start] * job.workers
        self.log = job.recording.log()
        self.outages = self.published = 0
        self.repeated_s = 0.0
        self.at_steps = {step: list(faults) for step, faults in job.churn.at_steps().items()}
        self._coming = job.churn.outages()
        self.next = next(self._coming, None)

    def take(self) -> WorkerOutage:
        """The next outage."""
        assert self.next is not None
        outage, self.next = self.next, next(self._coming, None)
        return outage

    def strike(self, outage: WorkerOutage) -> None:
        """Note who fails, and until when."""
        self.outages += 1
        check_number(self.outages)
        for rank in outage.workers:
            self.back_s[rank] = max(self.back_s.get(rank, 0.0), outage.back_s)
            self.states.pop(rank, None)

    def leave(self, rank: int, time_s: float, scorer: Scorer[Tensor]) -> None:
        """Note who takes no part from now on."""
        self.absent_s[rank] = time_s
        scorer.lose(rank, time_s)

    def next_view(self, scorer: Scorer[Tensor]) -> tuple[int, ...]:
        """The workers of the next view, once there are any; () where the run's time is over before.

        Raises ``RunError`` where nobody has a model any more.
        """
        while True:
            self.back_s = {rank: back_s for rank, back_s in self.back_s.items() if back_s > self.now_s}
            if not self.states:
                raise RunError(
                    "all workers have failed, so that nobody can heal those that return; write a checkpoint, "
                    "with 'on_fault: restart'"
                )
            members = self.members()
            for rank in set(range(self.job.workers)) - self.absent_s.keys() - set(members):
                self.leave(rank, self.now_s, scorer)
            if not self.states.keys().isdisjoint(members):
                for rank in self.absent_s.keys() & set(members):
                    self.breakdowns[rank].down_s += self.now_s - self.absent_s.pop(rank)
                return members
            self.now_s = min(self.back_s.values())
            if self.now_s > self.job.max_time_s:
                self.now_s = self.job.max_time_s
                return ()
            while self.next is not None and self.next.at_s <= self.now_s:
                self.strike(self.take())

    def members(self) -> tuple[int, ...]:
        """The workers of the next view, ascending: those present, but for incomplete units.

        () where the scheme is not for that few: all wait.
        """
        network, inside = self.job.transfer.network, self.job.scheme.inside(self.job.options)
        here = [rank for rank in range(self.job.workers) if rank not in self.back_s]
        places = (
            network.nodes if inside == "hosts" else network.site_of if inside else range(self.job.workers)
        )
        whole, there = Counter(places), Counter(places[rank] for rank in here)
        units = [place for place in there if there[place] == whole[place]]
        try:
            self.job.scheme.check(self.job.options, len(units))
        except InputError:
            return ()
        return tuple(rank for rank in here if places[rank] in units)


class _View(EventDriver):
    """A view, from ``whole.now_s`` until it changes or the run ends."""

    def __init__(
        self, whole: _Whole, members: tuple[int, ...], scorer: Scorer[Tensor], **driver_options: Any
    ) -> None:
        job = whole.job.among(members)
        self._whole, self._members = whole, members
        healers = healers_of(whole.job, members, whole.states)
        states, before = _healed(whole, members, healers)
        self._states = [{} if rank in healers else {0: states[rank]} for rank in members]
        self._exchanges = [0] * len(members)
        self._exchanged = [False] * len(members)
        self._hold_at: int | None = None
        self._held_s: dict[int, float] = {}
        self._struck: set[int] = set()
        self.changes = False
        programs = [
            self._program(job, place, states[rank], before[rank]) for place, rank in enumerate(members)
        ]
        super().__init__(job, programs, scorer, start_s=whole.now_s, **driver_options)
        self.gradients.begun = [states[rank].gradients for rank in members]
        self._event_log = whole.log
        self._published = whole.published
        for place, rank in enumerate(members):
            breakdown = self.tasks[place][0].breakdown
            breakdown.go_on(replace(whole.breakdowns[rank], steps=states[rank].step, sent_to={}))
            self._pace.begin(place, breakdown.bytes_sent)
            self._finals[place] = whole.finals[rank]
        self._await_outage()
        if whole.back_s:
            self._clock.at(max(min(whole.back_s.values()), whole.now_s), self._hold, None)

    def _program(self, job: Job, place: int, state: Resumed, before: Sequence[Operation[Any]]) -> Program:
        program = job.program(place, first_step=state.step, kept=state.kept)

        def ready() -> None:
            self._states[place].setdefault(0, state)

        return replace(program, main=_after(before, ready, program.main)) if before else program

    @property
    def _living(self) -> list[int]:
        return [place for place in self.tasks if place not in self._struck]

    # --- faults ---------------------------------------------------------------------------------

    def _await_outage(self) -> None:
        if self._whole.next is not None:
            self._clock.at(max(self._whole.next.at_s, self._clock.now), self._outage, None)

    def _outage(self, _: None) -> None:
        self._strike(self._whole.take())
        self._await_outage()

    def _strike(self, outage: WorkerOutage) -> None:
        now_s = self._clock.now
        self._whole.strike(outage)
        struck = [place for place in self._living if self._members[place] in outage.workers]
        for place in struck:
            self._struck.add(place)
            self._whole.leave(self._members[place], now_s, self._scorer)
            self._mains_alive -= self.tasks[place][0].alive
            self._held_s.pop(place, None)
            self.close(place)
        if not self._living:
            self._change(None)
        elif struck:
            self._clock.at(max(outage.seen_s, now_s), self._change, None)

    def _change(self, _: None) -> None:
        """End the view."""
        self.changes = self._over = True

    def _hold(self, _: None) -> None:
        """Let everybody stop at the first exchange that nobody has done: somebody is back."""
        if self._hold_at is None:
            self._hold_at = 1 + max((self._exchanges[place] for place in self._living), default=0)

    @override
    def _next_step(self, task: CoroutineTask[Pending], operation: ops.NextStep) -> Any:
        if not super()._next_step(task, operation):
            return False
        rank, faults = self._members[task.rank], self._whole.at_steps.get(operation.step, [])
        for fault, workers in [each for each in faults if rank in each[1]]:
            faults.remove((fault, workers))
            self._strike(outage_of(fault, self._clock.now, workers))
        if not task.alive:
            return SUSPENDED
        if self._hold_at is not None and self._exchanges[task.rank] >= self._hold_at:
            task.waiting = operation
            self._held_s[task.rank] = self._clock.now
            if len(self._held_s) == len(self._living):
                self._clock.at(self._clock.now, self._change, None)
            return SUSPENDED
        return True

    # --- what workers resume from ----------------------------------------------------------------

    @override
    def issue(self, task: CoroutineTask[Pending], operation: Operation[Any], handle: Any) -> Pending:
        self._exchanged[task.rank] |= type(operation) in AVERAGING
        return super().issue(task, operation, handle)

    @override
    def _wait(self, task: CoroutineTask[Pending], operation: ops.Wait) -> Any:
        self._exchanged[task.rank] |= type(operation.handle.operation) in AVERAGING
        return super()._wait(task, operation)

    @override
    def publish(self, task: CoroutineTask[Pending], operation: ops.Publish) -> None:
        super().publish(task, operation)
        place = task.rank
        self._exchanges[place] += self._exchanged[place]
        self._exchanged[place] = False
        self._states[place][self._exchanges[place]] = Resumed(
            operation.step + 1, operation.kept, self.gradients.begun[place], self._clock.now
        )
        needed = min(self._exchanges[each] for each in self._living)
        for each in self._living:
            for number in [number for number in self._states[each] if number < needed]:
                del self._states[each][number]

    @override
    def _loop(self) -> None:
        super()._loop()
        whole, now_s = self._whole, self._clock.now
        ready = [place for place in self._living if self._states[place]]
        exchanges = min((self._exchanges[place] for place in ready), default=0)
        whole.states = {self._members[place]: self._states[place][exchanges] for place in ready}
        if self.changes:
            going = [self._members[place] for place in ready if place not in self._held_s]
            whole.repeated_s += sum(now_s - whole.states[rank].at_s for rank in going) / whole.job.workers
        for place, since_s in self._held_s.items():
            self.tasks[place][0].breakdown.wait_s += now_s - since_s
        whole.now_s, whole.published = now_s, self._published


async def _after(
    operations: Iterable[Operation[Any]], ready: Callable[[], None], main: Coroutine[Any, Any, None]
) -> None:
    try:
        for operation in operations:
            await operation
        ready()
        await main
    finally:
        main.close()


def _healed(
    whole: _Whole, members: Sequence[int], healers: Mapping[int, int]
) -> tuple[dict[int, Resumed], dict[int, list[Operation[Any]]]]:
    """What each member resumes from, and how those that are healed get it."""
    states = {rank: whole.states[rank] for rank in members if rank not in healers}
    before: dict[int, list[Operation[Any]]] = {rank: [] for rank in members}
    for rank, healer in healers.items():
        state = states[healer]
        states[rank] = states[healer] = replace(state, kept=whole.job.scheme.split(state.kept))
        payload = torch.cat([each.flatten() for each in tensors_of(states[rank].kept or (whole.job.start,))])
        before[healer].append(ops.Send(members.index(rank), payload, "heal"))
        before[rank].append(ops.Receive(members.index(healer), payload, "heal"))
    return states, before


class Views:
    """Runs a job with ``on_fault: shrink`` in virtual time.

    Args:
        job, scorer: as for an ``EventDriver``, as are the other options.
    """

    def __init__(self, job: Job, scorer: Scorer[Tensor], **driver_options: Any) -> None:
        self._whole, self._scorer, self._options = _Whole(job), scorer, driver_options
        self._leader: Tensor | None = None

    def run(self) -> Outcome:
        """Run to the end; raises as ``EventDriver.run``."""
        while members := self._whole.next_view(self._scorer):
            view = _View(self._whole, members, self._scorer, **self._options)
            try:
                view.run()
            finally:
                self._count(view, members)
            if not view.changes:
                break
        return self.outcome()

    def _count(self, view: _View, members: Sequence[int]) -> None:
        outcome = view.outcome()
        self._leader = outcome.leader if outcome.leader is not None else self._leader
        for rank, part, x, averages in zip(
            members, outcome.breakdowns, outcome.finals, outcome.pace.averages, strict=True
        ):
            self._whole.breakdowns[rank].add(part, members)
            self._whole.finals[rank] = x
            self._whole.averages[rank] += averages

    def outcome(self, failure: str = "") -> Outcome:
        """The outcome so far; ``failure`` says why it is partial."""
        whole = self._whole
        for rank, since_s in whole.absent_s.items():
            whole.breakdowns[rank].down_s += whole.now_s - since_s
        lost = whole.absent_s.keys() if len(whole.absent_s) < whole.job.workers else frozenset[int]()
        steps = tuple(float(each.steps) for each in whole.breakdowns)
        sent = sum(each.bytes_sent for each in whole.breakdowns)
        return Outcome(
            wall_s=whole.now_s,
            breakdowns=whole.breakdowns,
            finals=[x for rank, x in enumerate(whole.finals) if rank not in lost],
            leader=self._leader,
            events=whole.log.events if whole.log else [],
            status="partial" if failure else "completed",
            message=failure
            or (f"worker {', '.join(map(str, sorted(lost)))} away at the end" if lost else ""),
            lost=lost,
            pace=Pace(whole.now_s, steps, tuple(whole.averages), sent, tuple(sorted(lost))),
            faults=FaultCost(
                outages=whole.outages,
                down_s=sum(each.down_s for each in whole.breakdowns) / whole.job.workers,
                repeated_s=whole.repeated_s,
                writing_s=0.0,
            ),
        )
