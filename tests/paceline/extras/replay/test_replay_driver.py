"""A recorded run again in one process: the same bits."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest
import torch

from paceline.extras.replay.replay_driver import replay
from paceline.sim.drivers.job import Job
from paceline.sim.errors import RunError
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Program, Worker
from paceline.sim.records.run import Event
from paceline.sim.training.scoring import digest
from tests.contract import cases
from tests.contract.case import Case, Log, contract_job, says
from tests.support.factory import NoOptions, make_job, make_scheme, run_events, simulated


def _programs(job: Job) -> list[Program]:
    return [job.program(rank) for rank in range(job.workers)]


def test_the_order_is_the_records(recorded: tuple[Job, tuple[Event, ...], str]) -> None:
    """Other swaps, another result: the order matters, and it is taken from the record."""
    job, events, found = recorded
    assert digest(replay(job, _programs(job), events)) == found
    other = simulated(changed(job, compute=make_job("ad_psgd", cv=0.9).compute))
    assert other.digest != found
    assert digest(replay(job, _programs(job), other.events)) == other.digest


@pytest.fixture
def recorded() -> tuple[Job, tuple[Event, ...], str]:
    job = make_job("ad_psgd", task="digits-mlp", workers=4, max_iterations=6, cv=0.5)
    run = simulated(job)
    return job, run.events, run.digest


def one_by_one(job: Job) -> Job:
    """``job`` with gradients that are computed one by one, as replay does: batches may differ in bits."""
    assert job.problem is not None
    return changed(job, problem=changed(job.problem, method="looped"))


@pytest.mark.parametrize("case", cases.GOOD, ids=lambda case: case.name)
def test_every_case_of_the_contract_again(case: Case) -> None:
    first: dict[int, Log] = {}
    outcome = run_events(one_by_one(contract_job(case, first)))
    again: dict[int, Log] = {}
    job = one_by_one(contract_job(case, again))
    finals = replay(job, _programs(job), outcome.events)
    assert digest(finals) == digest(outcome.finals)
    for rank in range(case.workers):
        assert says(again[rank]) == says(first[rank])
        assert again[rank].times == first[rank].times


def test_a_run_that_ended_by_time_ends_again_at_the_same_step() -> None:
    async def program(worker: Worker, options: NoOptions) -> None:
        async for k in worker.steps():
            await worker.sleep(1.0 + worker.rank)
            await worker.publish(k, torch.full((1,), float(k)))

    job = make_job(make_scheme(program), workers=2, max_iterations=3)
    outcome = run_events(job)
    assert [f.item() for f in replay(changed(job, max_iterations=None), _programs(job), outcome.events)] == [
        2.0,
        2.0,
    ]


def test_a_record_of_another_program_is_refused(recorded: tuple[Job, tuple[Event, ...], str]) -> None:
    job, events, _ = recorded
    other = make_job("gossip", {"topology": "ring"}, task="digits-mlp", workers=4, max_iterations=6)
    with pytest.raises(RunError, match="does not fit"):
        replay(job, _programs(other), events)


def test_a_record_cut_short_is_refused(recorded: tuple[Job, tuple[Event, ...], str]) -> None:
    job, events, _ = recorded
    with pytest.raises(RunError, match=r"the record ends before worker|waits for what nobody has sent"):
        replay(job, _programs(job), events[: len(events) // 2])


def test_a_receive_from_anybody_gets_the_recorded_sender() -> None:
    def make(order: list[int]) -> Job:
        async def program(worker: Worker, options: NoOptions) -> None:
            if worker.rank:
                await worker.sleep(float(order.index(worker.rank)))
                await worker.send(0, torch.tensor([float(worker.rank)]))
            else:
                got = [(await worker.receive(ops.ANY, torch.zeros(1))).value for _ in order]
                await worker.publish(0, torch.cat(got))

        return make_job(make_scheme(program), workers=4)

    job = make([2, 3, 1])
    outcome = run_events(job)
    # the same program, in which nobody sleeps in that order, follows the record all the same
    assert replay(make([1, 2, 3]), _programs(make([1, 2, 3])), outcome.events)[0].tolist() == [2.0, 3.0, 1.0]
