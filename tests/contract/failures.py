"""What every driver does with a scheme that breaks the rules, or loses a worker."""

from __future__ import annotations

import re

import torch

from paceline.sim import topology
from paceline.sim.errors import PeerLost
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from tests.contract.case import ONE_APART, UNIT, Case, Log, X


async def _cyclic_wait(worker: Worker, log: Log) -> None:
    peer = (worker.rank + 1) % worker.size
    await worker.send(peer, X)
    await worker.receive((worker.rank - 1) % worker.size, X)


async def _waits_for_one_who_has_ended(worker: Worker, log: Log) -> None:
    if worker.rank == 0:
        await worker.wait(await worker.begin(ops.Receive(1, X, "a")))


async def _mixes_with_a_dead_peer(worker: Worker, log: Log) -> None:
    await worker.mix(topology.plan("complete", worker.size, "uniform").at(0), X)


async def _reduces_with_a_dead_peer(worker: Worker, log: Log) -> None:
    await worker.sleep(UNIT)
    await worker.all_reduce(X)


async def _reduces_beside_a_dead_peer(worker: Worker, log: Log) -> None:
    await worker.sleep(UNIT)
    log.say(await worker.all_reduce(X, ONE_APART))
    try:
        await worker.receive(0, X)
    except PeerLost as lost:
        log.say(str(lost))


async def _groups_leave_one_out(worker: Worker, log: Log) -> None:
    await worker.all_reduce(X, ((0, 1),))


async def _groups_overlap(worker: Worker, log: Log) -> None:
    await worker.barrier(((0, 1), (1, 2)))


async def _a_foreign_root(worker: Worker, log: Log) -> None:
    await worker.broadcast(X, 0, ((0, 1), (2,)))


async def _survives_a_dead_peer(worker: Worker, log: Log) -> None:
    await worker.sleep(UNIT)
    if worker.rank == 0:
        for operation in (ops.Receive(1, X), ops.Send(1, X)):
            try:
                await operation
            except PeerLost as lost:
                log.say(str(lost))
        started = await worker.begin(ops.Receive(1, X, "late"))
        try:
            await worker.wait(started)
        except PeerLost as lost:
            log.say(str(lost))
        log.say((await worker.receive(2, X)).source)
    elif worker.rank == 2:
        await worker.send(0, X)


async def _writes_in_place(worker: Worker, log: Log) -> None:
    x = torch.zeros(1)
    if worker.rank:
        handle = await worker.begin(ops.Send(0, x))
        x += 1
        await worker.wait(handle)
    else:
        await worker.receive(1, x)


async def _writes_into_a_gradient_point(worker: Worker, log: Log) -> None:
    x = worker.start + 0.0
    handle = await worker.begin(ops.Gradient(x))
    x += 1
    await worker.wait(handle)


async def _asks_for_a_loss_too_early(worker: Worker, log: Log) -> None:
    gradient = await worker.begin(ops.Gradient(X))
    await worker.batch_loss()
    await worker.wait(gradient)


async def _leaves_handles(worker: Worker, log: Log) -> None:
    await worker.begin(ops.Gradient(X))
    await worker.begin(ops.Sleep(UNIT))


async def _waits_twice(worker: Worker, log: Log) -> None:
    handle = await worker.begin(ops.Sleep(UNIT))
    await worker.wait(handle)
    await worker.wait(handle)


async def _talks_to_itself(worker: Worker, log: Log) -> None:
    await worker.send(worker.rank, X)


async def _unknown_peer(worker: Worker, log: Log) -> None:
    await worker.receive(7, X)


class _Foreign(ops.Operation[None]):
    pass


async def _unknown_operation(worker: Worker, log: Log) -> None:
    await _Foreign()


async def _segments_of_a_sleep(worker: Worker, log: Log) -> None:
    async for _ in worker.segments(await worker.begin(ops.Sleep(UNIT))):
        pass


async def _raises(worker: Worker, log: Log) -> None:
    raise ValueError("boom")


def _deadlock(*lines: str) -> tuple[str, str]:
    return "Deadlock", re.escape("no worker can go on: " + "; ".join(lines))


def _lost(rank: int, operation: str) -> tuple[str, str]:
    return "PeerLost", f"worker {rank} was lost during {operation}"


def _broken(words: str) -> tuple[str, str]:
    return "SchemeError", words


_LOST_IN_TURN = tuple(_lost(1, operation)[1] for operation in ("receive", "send", "receive"))

FAILURES = [
    Case(
        _cyclic_wait,
        3,
        error=_deadlock(*(f"worker {rank} waits in send to {(rank + 1) % 3}" for rank in range(3))),
    ),
    Case(_waits_for_one_who_has_ended, 2, error=_deadlock("worker 0 waits in wait for receive from 1 (a)")),
    Case(_mixes_with_a_dead_peer, 3, faults=((2, 0),), error=_lost(2, "mix")),
    Case(_reduces_with_a_dead_peer, 4, faults=((1, 1),), error=_lost(1, "all_reduce")),
    Case(_reduces_beside_a_dead_peer, 4, ((), *[(X.tolist(), _lost(0, "receive")[1])] * 3), faults=((0, 0),)),
    Case(_groups_leave_one_out, 3, error=_broken("worker 2 is in no group")),
    Case(_groups_overlap, 3, error=_broken("worker 1 is in more than one group")),
    Case(_a_foreign_root, 3, error=_broken("broadcast from worker 0, which is not in the group .2,.")),
    Case(_survives_a_dead_peer, 3, ((*_LOST_IN_TURN, 2), (), ()), faults=((1, 0),)),
    Case(_writes_in_place, 2, error=_broken("worker 1 wrote in place into a value that was being sent")),
    Case(_writes_into_a_gradient_point, 2, error=_broken("wrote in place into a tensor whose gradient was")),
    Case(_asks_for_a_loss_too_early, 2, error=_broken(r"worker \d asks for the loss of a gradient before")),
    Case(_leaves_handles, 2, error=_broken("without waiting for what it had started: gradient, sleep")),
    Case(_waits_twice, 2, error=_broken("waits twice for one handle")),
    Case(_talks_to_itself, 2, error=_broken(r"worker \d: send with worker \d is not possible")),
    Case(_unknown_peer, 2, error=_broken(r"worker \d: receive with worker 7 is not possible")),
    Case(_unknown_operation, 2, error=_broken(r"which is no operation \(.*failures.py:\d+\)")),
    Case(_segments_of_a_sleep, 2, error=_broken("asks for the segments of sleep, which has none")),
    Case(_raises, 2, error=("RunError", r"worker \d, step 0: the scheme raised ValueError: boom")),
]
OF_PATTERNS = [case for case in FAILURES if re.search("(with|beside)_a_dead_peer|groups|root", case.name)]
"""Those of pattern operations, which a backend carries: all else goes over gloo in any case."""
