"""Messages between two workers, waiting for the first of several, services and signals."""

from __future__ import annotations

import torch

from paceline.sim.program import operations as ops
from paceline.sim.program.encoding import decoded, encode
from paceline.sim.program.worker import Program, Worker
from tests.contract.case import CODEC, UNIT, Case, Log, X

ROUGH = encode(CODEC, X, lambda: torch.full((4,), 0.4))


async def _send_waits_for_its_receive(worker: Worker, log: Log) -> None:
    if worker.rank == 0:
        await worker.send(1, X)
    else:
        await worker.sleep(3 * UNIT)
        log.say((await worker.receive(0, X)).value)
    await log.at(worker)


async def _sends_encoded(worker: Worker, log: Log) -> None:
    if worker.rank == 0:
        await worker.send(1, ROUGH)
    else:
        log.say((await worker.receive(0, ROUGH)).value)


async def _tags_keep_messages_apart(worker: Worker, log: Log) -> None:
    if worker.rank == 0:
        a = await worker.begin(ops.Send(1, X, "a"))
        b = await worker.begin(ops.Send(1, X + 1, "b"))
        await worker.wait(a)
        await worker.wait(b)
    else:
        log.say((await worker.receive(0, X, "b")).value)
        log.say((await worker.receive(0, X, "a")).value)


async def _messages_keep_their_order(worker: Worker, log: Log) -> None:
    if worker.rank == 0:
        started = [await worker.begin(ops.Send(1, X + k)) for k in range(5)]
        for handle in started:
            await worker.wait(handle)
    else:
        for _ in range(5):
            log.say((await worker.receive(0, X)).value[0])


async def _receives_from_anybody(worker: Worker, log: Log) -> None:
    if worker.rank == 0:
        for _ in range(worker.size - 1):
            message = await worker.receive(ops.ANY, X)
            log.say([message.source, message.value[0].item()])
            await log.at(worker)
    else:
        await worker.sleep(2 * (worker.size - worker.rank) * UNIT)
        await worker.send(0, X + worker.rank)


async def _swap(worker: Worker, log: Log) -> None:
    peer = 1 - worker.rank
    answer = await worker.begin(ops.Receive(peer, X))
    await worker.send(peer, X + worker.rank)
    log.say((await worker.wait(answer)).source)


async def _wait_any_takes_the_first(worker: Worker, log: Log) -> None:
    slow = await worker.begin(ops.Sleep(4 * UNIT))
    quick = await worker.begin(ops.Sleep(UNIT))
    log.say(await worker.poll(quick))
    log.say((await worker.wait_any(slow, quick)) is quick)
    await log.at(worker)
    log.say([await worker.poll(quick), await worker.poll(slow)])
    await worker.wait(quick)
    await worker.wait(slow)
    await log.at(worker)


async def _a_message_beats_a_sleep(worker: Worker, log: Log) -> None:
    if worker.rank == 1:
        await worker.sleep(UNIT)
        await worker.send(0, X)
        return
    letter = await worker.begin(ops.Receive(1, X))
    alarm = await worker.begin(ops.Sleep(8 * UNIT))
    log.say((await worker.wait_any(alarm, letter)) is letter)
    await worker.wait(letter)
    await worker.wait(alarm)
    await log.at(worker)


def _serves_while_computing(worker: Worker, log: Log) -> Program:
    async def main() -> None:
        if worker.rank == 0:
            await worker.gradient(worker.start)
            await log.at(worker)
        else:
            for k in range(3):
                await worker.send(0, X + k, "ask")
                log.say((await worker.receive(0, X, "answer")).value[0])

    async def service() -> None:
        while True:
            request = await worker.receive(ops.ANY, X, "ask")
            await worker.send(request.source, 2 * request.value, "answer")

    return Program(main(), (service(),))


def _leaves_services_waiting(worker: Worker, log: Log) -> Program:
    """Services end wherever they are: in a receive from anybody, from one peer, or in a send."""
    peer = (worker.rank + 1) % worker.size

    async def main() -> None:
        log.say("done")

    async def listens() -> None:
        await worker.receive(ops.ANY, X, "never")

    async def expects() -> None:
        await worker.receive(peer, X, "never from you")

    async def calls() -> None:
        await worker.send(peer, X, "nobody listens")

    return Program(main(), (listens(), expects(), calls()))


def _is_woken_by_its_service(worker: Worker, log: Log) -> Program:
    """A signal is kept until it is awaited, each is for one who waits, and names are apart."""

    async def main() -> None:
        await worker.await_signal("now")
        await log.at(worker)
        await worker.sleep(4 * UNIT)
        waiting = await worker.begin(ops.AwaitSignal("now"))
        other = await worker.begin(ops.AwaitSignal("other"))
        log.say((await worker.wait_any(waiting, other)) is waiting)
        await log.at(worker)
        await worker.wait(other)
        await worker.wait(waiting)
        await log.at(worker)

    async def service() -> None:
        await worker.sleep(2 * UNIT)
        await worker.signal("now")
        await worker.sleep(UNIT)
        await worker.signal("now")
        await worker.sleep(5 * UNIT)
        await worker.signal("other")

    return Program(main(), (service(),))


POINT_TO_POINT = [
    Case(_send_waits_for_its_receive, 2, ((), (X.tolist(),)), times=((3,), (3,))),
    Case(_sends_encoded, 2, ((), (decoded(ROUGH).tolist(),))),
    Case(_tags_keep_messages_apart, 2, ((), ((X + 1).tolist(), X.tolist()))),
    Case(_messages_keep_their_order, 2, ((), (0.0, 1.0, 2.0, 3.0, 4.0))),
    Case(
        _receives_from_anybody, 4, (([3, 3.0], [2, 2.0], [1, 1.0]), (), (), ()), times=((2, 4, 6), (), (), ())
    ),
    Case(_swap, 2, ((1,), (0,))),
    Case(_wait_any_takes_the_first, 2, ((False, True, [True, False]),) * 2, times=((1, 4),) * 2),
    Case(_a_message_beats_a_sleep, 2, ((True,), ()), times=((8,), ())),
    Case(_serves_while_computing, 2, ((), (0.0, 2.0, 4.0)), times=((2,), ())),
    Case(_leaves_services_waiting, 3, (("done",),) * 3),
    Case(_is_woken_by_its_service, 2, ((True,),) * 2, times=((2, 6, 8),) * 2),
]
