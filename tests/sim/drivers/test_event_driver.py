"""The event driver's laws: determinism, agreement with the lockstep driver, and its refusals."""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from paceline.sim.errors import Deadlock, PeerLost, RunError
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from paceline.sim.traffic.rendezvous import Transfer, forget, take_first
from paceline.sim.training.scoring import digest
from tests.support.factory import NoOptions, make_job, make_scheme, run_events, simulated
from tests.support.lockstep import run_lockstep
from tests.support.scheme_forms import FORMS, SYNCHRONOUS, Form, in_turn, one_each

X = torch.zeros(1)


NOT_STACKED = {"send_order", "next_forward", "participation"}
"""Options with which workers have services, or do not all do the same."""
STACKED = [form for form in SYNCHRONOUS if form.scheme != "sharded" and not NOT_STACKED & set(form.options)]


@pytest.mark.parametrize(
    ("form", "workers"),
    [each for each in in_turn(STACKED, (2, 5, 8), slow=(5, 8, 2)) if each.values[0].fits(each.values[1])],
)
def test_stacked_is_event(form: Form, workers: int) -> None:
    job = make_job(
        form.scheme, form.in_few_steps(), task="digits-mlp", workers=workers, max_iterations=7, cv=0.3,
        momentum=form.momentum, latency_s=0.01, bandwidth_bytes_per_s=1e6,
    )  # fmt: skip
    assert digest(list(run_lockstep(job).unbind())) == digest(run_events(job).finals)


@pytest.mark.parametrize("form", one_each(FORMS))
def test_batched_is_looped(form: Form) -> None:
    job: dict[str, Any] = {"task": "digits-mlp", "workers": 6, "max_iterations": 5, "cv": 0.2}
    both = [
        simulated(make_job(form.scheme, form.in_few_steps(), method=method, **job))
        for method in ("batched", "looped")
    ]
    assert both[0] == both[1]


@pytest.mark.parametrize("form", one_each(SYNCHRONOUS))
def test_order_of_simultaneous_events_changes_nothing(form: Form) -> None:
    def run(permute_seed: int | None) -> tuple[Any, ...]:
        job = make_job(
            form.scheme, form.in_few_steps(), task="quadratic", task_options={"dimension": 6}, workers=8,
            max_iterations=6, latency_s=0.125, bandwidth_bytes_per_s=64.0,
        )  # fmt: skip
        found = simulated(job, permute_seed=permute_seed)
        return found.digest, found.wall_clock_s, found.evaluations, found.time_s, found.bytes_sent

    plain = run(None)
    assert all(run(seed) == plain for seed in range(2))


def test_permutation_really_permutes() -> None:
    """The option shakes what it should: who is served first is a matter of the tie."""

    def served(permute_seed: int | None) -> list[int]:
        order: list[int] = []

        async def program(worker: Worker, options: NoOptions) -> None:
            await worker.sleep(1.0)
            if worker.rank:
                await worker.send(0, X)
            else:
                for _ in range(worker.size - 1):
                    order.append((await worker.receive(ops.ANY, X)).source)

        run_events(make_job(make_scheme(program), workers=6), permute_seed=permute_seed)
        return order

    assert served(None) == [1, 2, 3, 4, 5]
    assert len({tuple(served(seed)) for seed in range(5)}) > 1


@settings(max_examples=25)
@given(
    workers=st.integers(2, 9),
    latency_s=st.sampled_from([0.0, 0.003, 0.5]),
    cv=st.sampled_from([0.0, 0.4]),
    form=st.sampled_from(SYNCHRONOUS),
    sharing=st.sampled_from(["max_min", "none"]),
)
def test_iterates_of_synchronous_schemes_do_not_depend_on_the_clock(
    workers: int, latency_s: float, cv: float, form: Form, sharing: str
) -> None:
    options: dict[str, Any] = dict(
        task="quadratic", task_options={"dimension": 3, "examples": 64}, workers=workers, max_iterations=4
    )
    assume(form.fits(workers))
    which = form.scheme, form.in_few_steps()
    plain = simulated(make_job(*which, **options))
    other = simulated(
        make_job(*which, **options, cv=cv, latency_s=latency_s, bandwidth_bytes_per_s=50.0, sharing=sharing)
    )
    assert other.digest == plain.digest
    # Which models are there when so many steps are done depends on the clock; a combination's scores do not.
    scores = {e.steps: e.metrics for e in plain.evaluations}
    common = [e for e in other.evaluations if e.steps in scores]
    assert {e.steps for e in common} >= {(0,) * workers, (4,) * workers}
    assert all(e.metrics == scores[e.steps] for e in common)
    share = other.time_s
    assert share.compute + share.communicate + share.wait == pytest.approx(other.wall_clock_s, rel=1e-9)
    assert min(share.compute, share.communicate, share.wait) >= -1e-9


@pytest.mark.parametrize("exponent", [1, 2, 3, 4])
def test_one_peer_exponential_averages_exactly(exponent: int) -> None:
    n = 2**exponent

    async def program(worker: Worker, options: NoOptions) -> None:
        from paceline.sim import topology

        plan = topology.plan("one_peer_exponential", worker.size, "uniform")
        x = torch.tensor([float(worker.rank), float(worker.rank**2)])
        async for k in worker.steps():
            x = await worker.mix(plan.at(k), x)
            await worker.publish(k, x)

    job = make_job(
        make_scheme(program),
        task="quadratic",
        task_options={"dimension": 2},
        workers=n,
        max_iterations=exponent,
    )
    mean = torch.tensor([[r, r**2] for r in range(n)], dtype=torch.float32).mean(0)
    assert all(torch.equal(final, mean) for final in run_events(job).finals)


@pytest.mark.parametrize(
    ("scheme", "options", "exchanges"),
    [
        ("gossip", {"topology": "ring"}, ("mix",)),
        ("gossip", {"topology": "ring", "global_period": 2}, ("all_reduce", "mix")),
        ("all_reduce", {"overlap": True}, ("all_reduce",)),
        ("ad_psgd", {}, ("receive", "receive_any", "send")),
        ("tests.support.own_schemes:pairs", {}, ("receive", "send")),
    ],
)
def test_a_run_says_how_workers_exchanged(
    scheme: str, options: dict[str, Any], exchanges: tuple[str, ...]
) -> None:
    assert simulated(make_job(scheme, options, record_events=False)).exchanges == exchanges


def test_ad_psgd_without_learning_conserves_the_mean() -> None:
    """Swaps average two models; nothing else moves them, so that a common start stays where it is."""
    start = torch.arange(1.0, 5.0)
    job = make_job(
        "ad_psgd", task="quadratic", task_options={"dimension": 4}, workers=8, lr=1e-30, start=start, cv=0.5,
        max_iterations=20, latency_s=0.1,
    )  # fmt: skip
    for final in run_events(job).finals:
        assert torch.equal(final, start)


def test_ad_psgd_does_not_wait_for_a_straggler() -> None:
    from dataclasses import replace

    from paceline.sim.compute.compute_settings import Straggler

    slow = [Straggler(workers=(3,), slowdown=10)]
    job = make_job("ad_psgd", workers=8, max_iterations=None, stragglers=slow, latency_s=0.01)
    steps = [a.steps for a in run_events(replace(job, max_time_s=100.5)).breakdowns]
    assert steps[3] == 10
    assert min(steps[:3] + steps[4:]) >= 95
    job = make_job("gossip", {"topology": "ring"}, workers=8, max_iterations=None, stragglers=slow)
    assert max(a.steps for a in run_events(replace(job, max_time_s=100.5)).breakdowns) <= 14


def test_messages_of_one_tag_come_in_the_order_of_their_sends() -> None:
    got: list[float] = []

    async def scheme(worker: Worker, options: NoOptions) -> None:
        if worker.rank == 0:
            sends = [await worker.begin(ops.Send(1, X + number)) for number in range(3)]
            for send in sends:
                await worker.wait(send)
        else:
            await worker.sleep(1.0)
            for _ in range(3):
                got.append(float((await worker.receive(0, X)).value))

    run_events(make_job(make_scheme(scheme), workers=2))
    assert got == [0.0, 1.0, 2.0]


def test_nothing_that_has_met_its_other_side_is_still_posted() -> None:
    posted: dict[int, list[Transfer]] = {}
    first, second = Transfer(), Transfer()
    posted[7] = [first, second]
    assert take_first(posted, 7) is first
    assert take_first(posted, 7) is second
    assert take_first(posted, 7) is None
    assert posted == {}
    posted |= {1: [first], 2: [second, first]}
    forget(posted, lambda each: each is first)
    assert posted == {2: [second]}


def test_a_cyclic_wait_is_reported() -> None:
    async def program(worker: Worker, options: NoOptions) -> None:
        peer = 1 - worker.rank
        await worker.send(peer, X)  # an eager network would let this pass
        await worker.receive(peer, X)

    with pytest.raises(Deadlock) as caught:
        run_events(make_job(make_scheme(program), workers=2))
    assert str(caught.value) == (
        "no worker can go on: worker 0 waits in send to 1; worker 1 waits in send to 0"
    )


@pytest.mark.parametrize("limit_s", [math.inf, 10.0])
def test_waiting_for_someone_who_has_ended_is_reported(limit_s: float) -> None:
    async def program(worker: Worker, options: NoOptions) -> None:
        if worker.rank == 0:
            await worker.barrier()

    with pytest.raises(Deadlock, match="worker 0 waits in barrier"):
        run_events(replace(make_job(make_scheme(program), workers=2), max_time_s=limit_s))


@pytest.mark.parametrize("at", range(11))
def test_a_dead_worker_is_noticed_at_every_operation(at: int) -> None:
    job = make_job("gossip", {"topology": "ring"}, workers=4, max_iterations=3)
    with pytest.raises(PeerLost) as caught:
        run_events(job, faults={2: at})
    assert caught.value.rank in (1, 2, 3)


def test_a_point_to_point_scheme_may_survive_a_lost_peer() -> None:
    log: list[str] = []

    async def program(worker: Worker, options: NoOptions) -> None:
        await worker.sleep(1.0)
        if worker.rank == 0:
            try:
                await worker.receive(1, X)
            except PeerLost as lost:
                log.append(str(lost))
            log.append(f"goes on at {await worker.now()}")

    outcome = run_events(make_job(make_scheme(program), workers=2), faults={1: 0})
    assert log == ["worker 1 was lost during receive", "goes on at 1.0"]
    assert (outcome.status, outcome.message) == ("completed", "worker 1 died")


def test_who_has_survived_a_lost_peer_can_be_lost_itself() -> None:
    async def program(worker: Worker, options: NoOptions) -> None:
        if worker.rank == 2:
            await worker.sleep(1.0)
        else:
            with contextlib.suppress(PeerLost):
                await worker.receive(2, X)
        await worker.sleep(1.0)

    outcome = run_events(make_job(make_scheme(program), workers=3), faults={2: 1, 0: 1})
    assert outcome.message == "worker 0, 2 died"
    assert [account.wait_s for account in outcome.breakdowns] == [1.0, 2.0, 1.0]  # a sleep is a wait too
    assert outcome.wall_s == 2.0


def test_what_a_scheme_raises_when_it_has_lost_a_peer_is_told() -> None:
    async def program(worker: Worker, options: NoOptions) -> None:
        try:
            await worker.receive(1 - worker.rank, X)
        except PeerLost:
            raise ValueError("nobody is left") from None

    with pytest.raises(RunError, match="worker 0, step 0: the scheme raised ValueError: nobody is left"):
        run_events(make_job(make_scheme(program), workers=2), faults={1: 0})
