"""The laws of schemes: all registered ones keep them, and what breaks one is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from paceline import Worker, ops
from paceline.testing import check_scheme
from tests.support.scheme_forms import FORMS, Form, one_each


@pytest.mark.parametrize("form", one_each(FORMS))
def test_registered_schemes_keep_the_laws(form: Form) -> None:
    laws = check_scheme(form.scheme, form.in_few_steps())
    assert {"seed", "replay", "in_place"} <= laws.keys()
    assert ("lockstep" in laws) == form.synchronous


async def _writes_into_its_model(worker: Worker) -> None:
    x = worker.start
    async for k in worker.steps():
        sending = await worker.begin(ops.AllReduce(x))
        x -= 0.1 * await worker.gradient(x + 0.0)
        await worker.publish(k, await worker.wait(sending))


async def _writes_into_a_message(worker: Worker) -> None:
    x, other = worker.start, worker.rank ^ 1
    async for k in worker.steps():
        x = x - 0.1 * await worker.gradient(x)
        receiving = await worker.begin(ops.Receive(other, like=x))
        await worker.send(other, x)
        received: torch.Tensor = (await worker.wait(receiving)).value
        x = x + received.mul_(0.5)
        await worker.publish(k, x)


async def _changes_what_it_has_published(worker: Worker) -> None:
    x = worker.start
    async for k in worker.steps():
        await worker.gradient(x)
        await worker.publish(k, x)
        x.data.mul_(0.5)


async def _awaits_no_average(worker: Worker) -> None:
    async for k in worker.steps():
        worker.all_reduce(worker.start).close()
        await worker.publish(k, worker.start)


async def _publishes_double(worker: Worker) -> None:
    async for k in worker.steps():
        await worker.publish(k, (await worker.all_reduce(worker.start)).double())


async def _leaves_one_out(worker: Worker) -> None:
    async for k in worker.steps():
        if worker.rank and k == 4:
            await worker.barrier()
        await worker.publish(k, worker.start)


async def _goes_on(worker: Worker) -> None:
    async for k in worker.steps():
        await worker.publish(k, worker.start)
    while True:
        await worker.sleep(1.0)


async def _leaves_early(worker: Worker) -> None:
    async for k in worker.steps():
        await worker.publish(k, worker.start)
        if (worker.rank, k) == (2, 3):
            return


async def _raises(worker: Worker) -> None:
    async for k in worker.steps():
        await worker.publish(k, worker.start * [1.0, 1.0][k])


async def _draws_from_torch(worker: Worker) -> None:
    x = worker.start
    async for k in worker.steps():
        x = await worker.all_reduce(x * torch.rand(()))
        await worker.publish(k, x)


_runs = [0]


async def _sends_more_in_later_runs(worker: Worker) -> None:
    """And the same models."""
    async for k in worker.steps():
        _runs[0] += k == 0
        await worker.all_reduce(torch.zeros(*worker.start.shape[:-1], 400 + (_runs[0] > 8) * 40 * k))
        await worker.publish(k, worker.start)


async def _looks_at_the_clock(worker: Worker) -> None:
    x = worker.start
    async for k in worker.steps():
        x = x - 0.1 * await worker.gradient(x)
        await worker.publish(k, x * (await worker.now() > 0.1))


async def _takes_all_norms_as_one(worker: Worker) -> None:
    x = worker.start
    async for k in worker.steps():
        gradient = await worker.gradient(x)
        x = await worker.all_reduce(x - gradient / gradient.norm())
        await worker.publish(k, x)


async def _sends_by_how_many_it_is(worker: Worker) -> None:
    async for k in worker.steps():
        await worker.all_reduce(torch.zeros(*worker.start.shape[:-1], 400 * len(worker.ranks)))
        await worker.publish(k, worker.start)


@pytest.mark.parametrize(
    ("scheme", "law"),
    [
        (
            _writes_into_its_model,
            r"no value is written in place': what worker \d gave away in an exchange after step 0 has",
        ),
        (
            _writes_into_a_message,
            r"no value is written in place': what worker \d gave away in an exchange after step 0 has",
        ),
        (_changes_what_it_has_published, "in place': the model of worker 0 after step 1 has changed since"),
        (_leaves_one_out, "every worker does all its steps and ends': after step 4: no worker can go on"),
        (_goes_on, "every worker does all its steps and ends': worker 0 did 12 of 12 steps, and goes on"),
        (_leaves_early, "every worker does all its steps and ends': worker 2 did 4 of 12 steps"),
        (_raises, r"it runs without an error': after step 0: .* raised IndexError.*test_contract.py, line"),
        (_draws_from_torch, "one seed gives one run, to the bit': after step 1 worker 0 has another model"),
        (_sends_more_in_later_runs, r"one seed .*': after step \d worker 0 has sent \d+ bytes, not \d+"),
        (_looks_at_the_clock, "do not depend on the clock': after step 5 worker 1 has another model"),
        (
            _publishes_double,
            r"it runs without an error': .*\(torch.float64\); value must be .* of torch.float32",
        ),
        (_awaits_no_average, "workers exchange something': in 12 steps nobody sent anything"),
        (_takes_all_norms_as_one, "do what each alone does': after step 1 worker 0 has another model"),
        (
            _sends_by_how_many_it_is,
            "do what each alone does': after step 1 worker 0 has sent 9600 bytes, not",
        ),
    ],
)
def test_what_breaks_a_law_is_told_with_step_and_worker(scheme: Callable[..., Any], law: str) -> None:
    with pytest.raises(AssertionError, match=f"breaks the law '.*{law}.*To go on: "):
        check_scheme(scheme)


def test_a_rank_that_is_read_keeps_a_scheme_from_lockstep() -> None:
    async def by_rank(worker: Worker) -> None:
        async for k in worker.steps():
            await worker.publish(k, await worker.all_reduce(worker.start) * worker.rank)

    assert "by a worker's rank" in check_scheme(by_rank, changes=["cluster.workers=3"])["lockstep"]


def test_what_lockstep_cannot_time_is_not_looked_at_there() -> None:
    """In a user's own scheme, whose errors name the line."""

    async def overlapping(worker: Worker) -> None:
        async for k in worker.steps():
            averaging = await worker.begin(ops.AllReduce(worker.start))
            await worker.gradient(worker.start)
            await worker.publish(k, await worker.wait(averaging))

    assert "all_reduce overlaps something else" in check_scheme(overlapping)["lockstep"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "options", "said"),
    [
        ("gossip", {"topology": "ring"}, "the same bits in all 24"),
        ("tests.support.own_schemes:pairs", None, "the last models"),
        ("tests.support.own_schemes:on_processes_only", None, "after step 7"),
    ],
)
def test_real_processes_keep_them_too(scheme: str, options: dict[str, Any] | None, said: str) -> None:
    try:
        says = check_scheme(scheme, options, changes=["cluster.workers=2"], processes=True)["processes"]
    except AssertionError as error:
        says = str(error)
    assert said in says
