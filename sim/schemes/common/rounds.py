"""Averages without stragglers, in rounds: stragglers are left out and take the new average.

A round is from one average to the next. A server on the host of worker 0 collects contributions, and ends the
round after ``quorum`` of them, or at the ``deadline`` with the arrivals so far (at least one). It sends the
mean to all workers. A gradient cannot be aborted: a straggler computes on while rounds pass it by, drops its
result, and joins the current round. Contributions still in transit when a round ends are dropped on arrival.

Bytes of a round: every contribution, and the mean to every worker but the server's own, which is as much in
and out of the server's host as all other workers send and receive together; and 4 bytes beside each (the
round of a contribution, and whether the worker's own is in the mean). Time: the last contribution that counts
and the mean, one after the other, each with its latency. A ring has as many bytes, evenly spread over hosts.

Source: Chen, Pan, Monga, Bengio, Jozefowicz, Revisiting distributed synchronous SGD, arXiv 1604.00981
(backup workers, whose late gradients are dropped).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Annotated, Any, Final

import torch
from pydantic import Field
from torch import Tensor

from ...config.units import BoundedSeconds
from ...errors import InputError, PeerLost
from ...program import operations as ops
from ...program.averaging import mean_model
from ...program.encoding import LIKE_INT, int_message
from ...program.worker import State, Worker
from .local_steps import is_by_time

_SERVER: Final = 0
"""Rank of the host that collects contributions."""

_LEAVES: Final = -1
_LEAVES_WITHIN: Final = -2
"""In the place of a round's number: the worker contributes no more, and has begun no round, or one."""

Chosen = Callable[[int], Sequence[int]]
"""Number of a round -> ranks of its contributors."""

Quorum = Annotated[
    int | None,
    Field(
        ge=1,
        description="average as soon as this many workers have contributed (default: all)",
    ),
]
Deadline = Annotated[
    BoundedSeconds | None,
    Field(
        gt=0,
        description="average at the latest this long after the previous one, over the contributions so far, "
        "at least one (default: no limit)",
    ),
]


def leaves_out(options: Any) -> bool:
    """Whether averages leave out stragglers, so that results depend on timing."""
    return options.quorum is not None or options.deadline is not None


def check_quorum(options: Any, members: int, **others: bool) -> None:
    """Raise ``InputError`` where a quorum of ``members`` is out of reach, or beside one of the ``others``.

    These are options by name, with whether they are given, that need all workers in every average.
    """
    if not leaves_out(options):
        return
    quorum = options.quorum
    mine = "deadline" if quorum is None else "quorum"
    for name, given in {**others, "period: {by: time}": is_by_time(options)}.items():
        if given:
            raise InputError(f"'{name}' needs everybody's part of every average; leave it or '{mine}' out")
    if quorum is not None and quorum > members:
        raise InputError(f"a quorum of {quorum} is more than the {members} who contribute; write {members}")


class Rounds:
    """The rounds as seen by one worker.

    Args:
        quorum: number of contributions that end a round; None: all.
        deadline_s: longest duration of a round that has a contribution by then; None: no limit.
        like: a tensor of a contribution's shape [d].
        chosen: contributors of a round; None: all workers.
    """

    def __init__(
        self,
        worker: Worker,
        quorum: int | None,
        deadline_s: float | None,
        like: Tensor,
        chosen: Chosen | None = None,
    ) -> None:
        self._worker = worker
        self._like = like
        self._chosen = chosen or (lambda _: range(worker.size))
        is_here = worker.rank == _SERVER
        self._server = _Server(worker, quorum, deadline_s, like, self._chosen) if is_here else None
        self._round = 0
        self._busy: ops.Handle | None = None  # a gradient, or a contribution in transit
        self._number: ops.Handle | None = None  # of that contribution
        self._average: ops.Handle | None = None
        self._included: ops.Handle | None = None
        self._notes: dict[str, float] = {}
        self._averaged = False

    def services(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """The server, on its host."""
        return () if self._server is None else (self._server.serve(),)

    async def gradient(self, x: Tensor) -> Tensor | None:
        """The gradient at x [d], after any unfinished one; None where this round's average arrives first."""
        average = await self._expect()
        begun = None
        while not await self._worker.poll(average):
            if self._busy is None:
                begun = self._busy = await self._worker.begin(ops.Gradient(x, droppable=True))
            done = await self._worker.wait_any(average, self._busy)
            if done is self._busy:
                value: Tensor = await self._end_busy()
                if done is begun:
                    return value
        return None

    async def step(self, x: Tensor, state: State) -> tuple[Tensor, State, bool]:
        """Step once from x [d], and say whether in time; a missed step counts for the learning rate."""
        gradient = await self.gradient(x)
        if gradient is None:
            return x, state._replace(updates=state.updates + 1), False
        return *self._worker.optimizer.update(x, gradient, state), True

    async def contribute(self, value: Tensor) -> None:
        """Hand in this worker's part [d] of the round's average without waiting."""
        if self._server is not None:
            self._server.hand_in(self._round, value)
            await self._worker.signal("contribution")
            return
        self._number = await self._worker.begin(ops.Send(_SERVER, int_message(self._round), "round"))
        self._busy = await self._worker.begin(ops.Send(_SERVER, value, "contribution"))

    async def average(self) -> Tensor:
        """Wait for the round's average [d]; a new round begins."""
        answer = await self._worker.wait(await self._expect())
        if self._server is not None:
            included, mean = self._server.averages.popleft()
        else:
            assert self._included is not None
            included = bool((await self._worker.wait(self._included)).value)
            mean = answer.value
        expected = self._worker.rank in self._chosen(self._round)
        self._notes = {"left_out": float(not included)} if expected else {}
        self._average = self._included = None
        self._round += 1
        self._averaged = True
        return mean

    async def publish(self, k: int, x: Tensor) -> None:
        """Publish the model x [d] of step ``k``; with a round's average, whether this worker was left out.

        After an average x is alike on all workers.
        """
        averaged = x if self._averaged else None
        notes, self._notes, self._averaged = self._notes, {}, False
        await self._worker.publish(k, x, averaged=averaged, **notes)  # type: ignore[arg-type]

    async def leave(self) -> None:
        """Contribute no more: complete all sends and receives, and drop a late gradient.

        Within a round the worker waits for its average, of the others or zeros, and does not use it.
        """
        if self._server is not None:
            self._server.leave(_SERVER)
            await self._worker.signal("contribution")
            if self._average is not None:
                await self._worker.signal("average")
        else:
            number = _LEAVES if self._average is None else _LEAVES_WITHIN
            await self._worker.send(_SERVER, int_message(number), tag="round")
        for handle in (self._included, self._average):
            if handle is not None:
                await self._worker.wait(handle)
        if self._busy is not None and not ops.is_droppable(self._busy.operation):
            await self._end_busy()

    async def _expect(self) -> ops.Handle:
        """The receive of the round's average; it can arrive while a gradient is computed."""
        if self._average is not None:
            return self._average
        if self._server is not None:
            self._average = await self._worker.begin(ops.AwaitSignal("average"))
        else:
            self._included = await self._worker.begin(ops.Receive(_SERVER, LIKE_INT, "included"))
            self._average = await self._worker.begin(ops.Receive(_SERVER, self._like, "average"))
        return self._average

    async def _end_busy(self) -> Any:
        assert self._busy is not None
        value = await self._worker.wait(self._busy)
        self._busy = None
        if self._number is not None:
            await self._worker.wait(self._number)
            self._number = None
        return value


class _Server:
    """Collects contributions on the host of one worker.

    ``averages`` are for that worker itself: whether its own part is in the mean, and the mean [d].
    """

    def __init__(
        self, worker: Worker, quorum: int | None, deadline_s: float | None, like: Tensor, chosen: Chosen
    ) -> None:
        self._worker = worker
        self._quorum = worker.size if quorum is None else quorum
        self._deadline_s = deadline_s
        self._like = like
        self._chosen = chosen
        self._members = set(range(worker.size))
        self._leaving: set[int] = set()  # leavers within the round, which get its average
        self._round = 0
        self._there: dict[int, Tensor] = {}
        self._rounds: dict[int, deque[int]] = defaultdict(deque)  # of a worker's next contributions
        self._began_s = 0.0
        self._overdue = False
        self._numbers: dict[ops.Handle, int] = {}
        self._values: dict[ops.Handle, int] = {}
        self._timer: ops.Handle | None = None
        self._own: ops.Handle | None = None
        self._sends: dict[ops.Handle, int] = {}
        self.averages: deque[tuple[bool, Tensor]] = deque()

    def hand_in(self, number: int, value: Tensor) -> None:
        """Take the own worker's contribution [d] to a round."""
        if number == self._round:
            self._there[_SERVER] = value

    def leave(self, rank: int) -> None:
        """Note that a worker neither contributes nor needs an average any more."""
        self._members.discard(rank)

    async def serve(self) -> None:
        """Collect and send until the run is over."""
        for rank in range(self._worker.size):
            if rank != _SERVER:
                await self._expect_number(rank)
                await self._expect_value(rank)
        while True:
            if self._own is None:
                self._own = await self._worker.begin(ops.AwaitSignal("contribution"))
            if self._deadline_s is not None and self._timer is None and not self._overdue:
                due_s = self._began_s + self._deadline_s
                rest_s = max(0.0, due_s - await self._worker.now())
                self._timer = await self._worker.begin(ops.Sleep(rest_s))
            timers = () if self._timer is None else (self._timer,)
            # A worker takes its messages in order: of hundreds on their way to a late one, the first will do.
            sends = {rank: handle for handle, rank in reversed(self._sends.items())}.values()
            done = await self._worker.wait_any(*self._numbers, *self._values, self._own, *timers, *sends)
            await self._take(done)
            while self._is_complete():
                await self._end_round()

    async def _take(self, done: ops.Handle) -> None:
        if done is self._own:
            await self._worker.wait(done)
            self._own = None
        elif done is self._timer:
            await self._worker.wait(done)
            self._timer = None
            if self._deadline_s is not None:  # it may be of an earlier round
                self._overdue = await self._worker.now() >= self._began_s + self._deadline_s
        elif done in self._numbers:
            await self._take_number(done)
        elif done in self._values:
            await self._take_value(done)
        else:
            await self._message(done, self._sends.pop(done))

    async def _take_number(self, done: ops.Handle) -> None:
        rank = self._numbers.pop(done)
        message = await self._message(done, rank)
        if message is None:
            return
        number = int(message.value)
        if number < 0:
            self.leave(rank)
            self._leaving |= {rank} if number == _LEAVES_WITHIN else set()
        else:
            self._rounds[rank].append(number)
            await self._expect_number(rank)

    async def _take_value(self, done: ops.Handle) -> None:
        rank = self._values.pop(done)
        message = await self._message(done, rank)
        if message is None:
            return
        number = next((each for each, of in self._numbers.items() if of == rank), None)
        if not self._rounds[rank] and number is not None:  # it was sent before the value
            await self._take_number(number)
        if self._rounds[rank] and self._rounds[rank].popleft() == self._round:
            self._there[rank] = message.value
        await self._expect_value(rank)

    async def _message(self, handle: ops.Handle, rank: int) -> Any:
        """The message of an exchange with a worker; None where it is lost, and not missed."""
        try:
            return await self._worker.wait(handle)
        except PeerLost:
            self.leave(rank)
            self._leaving.discard(rank)
            return None

    async def _expect_number(self, rank: int) -> None:
        self._numbers[await self._worker.begin(ops.Receive(rank, LIKE_INT, "round"))] = rank

    async def _expect_value(self, rank: int) -> None:
        self._values[await self._worker.begin(ops.Receive(rank, self._like, "contribution"))] = rank

    def _is_complete(self) -> bool:
        """Whether the round ends now; without possible contributors it ends too, if anybody waits."""
        expected = self._members.intersection(self._chosen(self._round))
        if not expected:
            return bool(self._members or self._leaving)
        enough = 1 if self._overdue else min(self._quorum, len(expected))
        return len(self._there) >= enough

    async def _end_round(self) -> None:
        """Send the mean of all arrivals to all workers; of none, zeros."""
        values = [self._there[rank] for rank in sorted(self._there)]
        mean = mean_model(values) if values else torch.zeros_like(self._like)
        if _SERVER in self._members:
            self.averages.append((_SERVER in self._there, mean))
            await self._worker.signal("average")
        for rank in sorted((self._members | self._leaving) - {_SERVER}):
            included = int_message(int(rank in self._there))
            self._sends[await self._worker.begin(ops.Send(rank, included, "included"))] = rank
            self._sends[await self._worker.begin(ops.Send(rank, mean, "average"))] = rank
        self._round += 1
        self._leaving = set()
        self._there = {}
        self._overdue = False
        if self._deadline_s is not None:
            self._began_s = await self._worker.now()
