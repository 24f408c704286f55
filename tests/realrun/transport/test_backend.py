"""Pattern operations in one order, and messages through host memory: the path of NCCL, without a GPU."""

from __future__ import annotations

import contextlib
import io
import threading
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist

from benchmarks.nccl_contract import contract_on
from paceline.extras.replay.replay_driver import replay
from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group.group import Group, leave
from paceline.realrun.transport.device import CPU, device_of
from paceline.realrun.transport.rank_transport import StagingBuffers, unpack
from paceline.sim import topology
from paceline.sim.errors import InputError, PeerLost
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from paceline.sim.records.run import Event
from paceline.sim.training.scoring import digest
from tests.contract import cases as driver_contract
from tests.support import nccl_rules
from tests.support.cluster_jobs import run_scheme
from tests.support.cluster_pool import Pool, ask_once
from tests.support.factory import make_job, make_scheme, run_events, simulated

WORKLOAD: dict[str, Any] = {
    "task": "digits-mlp",
    "compute_s": 0.004,
    "momentum": 0.9,
    "every": 4,
    "max_iterations": 8,
}
PADDED: dict[str, Any] = {"bytes_per_parameter": 37.0}


# --- the rules ----------------------------------------------------------------------------------


def break_rules(group: Group) -> list[str]:
    """In a process of a pool of two: what NCCL does not allow."""
    group.backend(nccl_rules.NAME, CPU, 20.0)  # makes torch's default group
    ours = dist.new_group([0, 1], backend=nccl_rules.NAME)
    other = 1 - group.rank
    x = torch.zeros(4)

    def from_anybody() -> None:
        dist.irecv(x, group=ours)

    def with_a_tag() -> None:
        dist.isend(x, other, group=ours, tag=7)

    def two_at_once() -> None:
        work = dist.all_reduce(x, group=ours, async_op=True)
        try:
            dist.all_reduce(x, group=ours)
        finally:
            assert work is not None
            work.wait()

    def different_collectives() -> None:
        dist.all_reduce(torch.zeros(4 + group.rank), group=ours)

    def in_another_order() -> None:
        """One worker sends before it receives, the other does both at once."""
        send, receive = (dist.P2POp(operation, x, other, ours) for operation in (dist.isend, dist.irecv))
        for batch in ([send], [receive]) if group.rank == 0 else ([receive, send],):
            first, *others = dist.batch_isend_irecv(batch)
            for work in others:  # which hang
                threading.Thread(target=work.wait, daemon=True).start()
            first.wait()
        raise RuntimeError("")

    found = []
    for rule in (from_anybody, with_a_tag, two_at_once, different_collectives, in_another_order):
        with pytest.raises(RuntimeError) as caught:
            rule()
        found.append(str(caught.value))
    return found


def test_what_nccl_refuses_is_refused() -> None:
    pool = Pool(2)
    try:
        one, other = pool.ask(break_rules)
    finally:
        pool.close()
    assert one[:4] == other[:4] == [
        "NCCL has no receive from anybody",
        "NCCL has no tags: 7",
        "NCCL would hang: something else of this process is under way",
        "NCCL would hang: allreduce meets another collective",
    ]  # fmt: skip
    assert one[4] == "NCCL would hang: a receive meets the message of another batch"


# --- one order ----------------------------------------------------------------------------------


def take_turns(group: Group) -> list[int]:
    """In a process of the pool: what is begun first is done first, whoever waits for it when."""
    ordered = group.backend(nccl_rules.NAME, CPU, 20.0)
    done: list[int] = []
    first = ordered.rounds(lambda send_receive: done.append(1), 0)
    second = ordered.rounds(lambda send_receive: done.append(2), 0)
    waiting = threading.Thread(target=second)
    waiting.start()
    first()
    waiting.join()
    return done


def test_operations_take_turns(four: Pool) -> None:
    assert four.ask(take_turns) == [[1, 2]] * 4


def told(group: Group) -> list[Any]:
    """In a process of the pool: what two runs with messages and one without say on standard error."""
    group.shown.clear()
    found = []
    ring = {"topology": "ring"}
    for scheme, options in (("gossip", ring), ("ad_psgd", ring), ("ad_psgd", ring)):
        with contextlib.redirect_stderr(io.StringIO()) as text:
            run_scheme(group, scheme, dict(options), compute_s=0.001, backend=nccl_rules.NAME)
        found.append(text.getvalue())
    return found


def test_staging_is_told_once_on_rank_0(four: Pool) -> None:
    line = (
        "messages are staged in host memory and go over gloo: nccl_rules has neither tags nor receives from "
        "anybody\n"
    )
    assert four.ask(told) == [["", line, ""], *[["", "", ""]] * 3]


def loses_a_neighbour(group: Group) -> list[str]:
    """In a process of a pool of two: worker 1 dies, and worker 0 would go on without it."""

    async def main(worker: Worker, options: Any) -> None:
        for _ in range(2):
            with contextlib.suppress(PeerLost):
                await worker.mix(topology.plan("complete", worker.size, "uniform").at(0), torch.zeros(1))

    job = make_job(make_scheme(main), workers=2)
    measured = run_job(group, job, backend=nccl_rules.NAME, timeout_s=5.0, faults={1: 1})
    return [type(measured.error).__name__, str(measured.error)]


def test_a_pattern_operation_does_not_survive_a_death() -> None:
    """Though the scheme would: a communicator that has lost a member is of no use."""
    answers = ask_once(2, loses_a_neighbour)
    assert answers == [["PeerLost", "worker 1 was lost during mix"], None]


def disagrees_about_the_order(group: Group) -> list[str]:
    """In a process of a pool of two: each worker begins with what the other one does last."""

    async def main(worker: Worker, options: Any) -> None:
        x = torch.zeros(1)
        operations = [ops.AllReduce(x), ops.Mix(topology.plan("complete", 2, "uniform").at(0), x)]
        for operation in operations if worker.rank else reversed(operations):
            await operation

    job = make_job(make_scheme(main), workers=2)
    measured = run_job(group, job, backend=nccl_rules.NAME, timeout_s=1.0)
    return [type(measured.error).__name__, str(measured.error)]


def test_what_would_hang_ends_with_one_message() -> None:
    answers = ask_once(2, disagrees_about_the_order)
    message = "no worker can go on: worker 0 waits in mix; worker 1 waits in all_reduce"
    assert answers == [["Deadlock", message]] * 2


def comes_and_goes(group: Group) -> list[bool]:
    """In a process of a pool of two: whether torch has a default group before, meanwhile and afterwards."""
    found = [dist.is_initialized()]
    group.backend(nccl_rules.NAME, CPU, 20.0)
    found.append(dist.is_initialized())
    leave(group)
    return [*found, dist.is_initialized()]


def test_a_default_group_lasts_as_long_as_an_ordered_backend() -> None:
    answers = ask_once(2, comes_and_goes)
    assert answers == [[False, True, False]] * 2


def makes_more_groups_than_others(group: Group) -> list[float]:
    """In a process of a pool of four: rank 2 comes to its second group, in which rank 3 has its first."""

    async def main(worker: Worker, options: Any) -> None:
        x = torch.tensor([float(worker.rank)])
        for groups in (((0, 1, 2), (3,)), ((0, 1), (2, 3))):
            x = await worker.all_reduce(x, groups)
        await worker.publish(0, x)

    job = replace(make_job(make_scheme(main), workers=4), problem=None)
    return run_job(group, job, backend=nccl_rules.NAME, timeout_s=10.0).final.tolist()


def test_a_group_is_found_whatever_groups_its_members_had_before() -> None:
    answers = ask_once(4, makes_more_groups_than_others)
    assert answers == [[1.0], [1.0], [2.0], [2.0]]


# --- the same values ----------------------------------------------------------------------------


def _measured(pool: Pool, scheme: str, options: dict[str, Any], **job: Any) -> tuple[Any, list[torch.Tensor]]:
    answers = pool.ask(run_scheme, scheme=scheme, options=options, backend=nccl_rules.NAME, **job)
    assert answers[0]["error"] is None
    return answers[0]["run"], [torch.tensor(answer["final"]) for answer in answers]


@pytest.mark.parametrize(
    ("scheme", "options", "payload"),
    [
        ("gossip", {"topology": "ring"}, {}),
        ("gossip", {"topology": "one_peer_exponential"}, PADDED),
        ("sgp", {"topology": "one_peer_exponential", "overlap": 1}, PADDED),
        ("leader_sgd", {"period": 1, "groups": 2, "global_period": 3}, {}),
    ],
)
def test_what_nothing_is_added_up_for_has_the_same_bits(
    four: Pool, scheme: str, options: dict[str, Any], payload: dict[str, Any]
) -> None:
    measured, _ = _measured(four, scheme, options, **WORKLOAD, **payload)
    predicted = simulated(make_job(scheme, options, workers=4, **WORKLOAD, **payload))
    assert (measured["digest"], measured["bytes_sent"]) == (predicted.digest, predicted.bytes_sent)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("easgd", {"period": 3}),
        ("all_reduce", {"overlap": True}),
        ("all_reduce", {"overlap": True, "send_order": "needed_first", "next_forward": True}),
        ("local_sgd", {"period": 3}),
        ("sharded", {}),
    ],
)
def test_sums_differ_by_rounding_only(four: Pool, scheme: str, options: dict[str, Any]) -> None:
    _, finals = _measured(four, scheme, options, **WORKLOAD)
    for found, expected in zip(
        finals, run_events(make_job(scheme, options, workers=4, **WORKLOAD)).finals, strict=True
    ):
        assert ((found - expected).norm() / expected.norm()).item() < 1e-5


def test_hybrid_shards_are_refused(four: Pool) -> None:
    """Their two groups average at once, and in another order on each rank."""
    job: dict[str, Any] = {"sites": {"a": 2, "b": 2}, **WORKLOAD}
    given = {"scheme": "sharded", "options": {"inside": "sites"}, "backend": nccl_rules.NAME}
    with pytest.raises(AssertionError, match="differs by rank, and NCCL would hang: use gloo"):
        four.ask(run_scheme, **given, **job)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("ad_psgd", {}),
        ("easgd", {"period": 2, "asynchronous": True}),
        ("sgp", {"topology": "one_peer_exponential", "asynchronous": True, "overlap": 1}),
    ],
)
def test_an_asynchronous_run_again_in_one_process(four: Pool, scheme: str, options: dict[str, Any]) -> None:
    workload = {**WORKLOAD, "cv": 0.5}
    measured, _ = _measured(four, scheme, options, **workload)
    job = make_job(scheme, options, workers=4, **workload)
    events = [Event(**event) for event in measured["events"]]
    assert digest(replay(job, [job.program(rank) for rank in range(4)], events)) == measured["digest"]


# --- where values are ---------------------------------------------------------------------------


def test_a_staged_value_never_goes_directly() -> None:
    staged, direct = (StagingBuffers(4.0, staging=staging) for staging in (True, False))
    x = torch.arange(4.0)
    assert direct.goes_directly(x)
    assert not staged.goes_directly(x)
    assert not StagingBuffers(8.0).goes_directly(x)
    assert not StagingBuffers(4.0, torch.device("meta")).goes_directly(x)
    assert torch.equal(unpack(staged.pack(x, 16), x), x)


def test_nccl_needs_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert device_of("gloo", 3) == CPU
    with pytest.raises(InputError, match=r"^cluster.backend: nccl needs a CUDA device .*rank 3 has none"):
        device_of("nccl", 3)


def test_a_rank_takes_the_gpu_that_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    monkeypatch.setenv("LOCAL_RANK", "2")
    assert device_of("nccl", 6) == torch.device("cuda", 2)
    monkeypatch.delenv("LOCAL_RANK")
    assert device_of("nccl", 6) == torch.device("cuda", 2)
    assert chosen == [torch.device("cuda", 2)] * 2


def values_on_the_cpu(group: Group) -> str:
    """In a process of the pool: a job for NCCL with its values in host memory."""
    with pytest.raises(InputError) as caught:
        run_job(group, make_job("gossip", {"topology": "ring"}), backend="nccl")
    return str(caught.value)


def test_nccl_does_not_carry_values_of_the_cpu(four: Pool) -> None:
    assert four.ask(values_on_the_cpu) == ["nccl carries values on a GPU, not on cpu: use gloo"] * 4


@pytest.mark.slow
def test_the_contract_can_be_run_on_a_backend_of_choice() -> None:
    """What runs on NCCL where there is a GPU."""
    found = contract_on(nccl_rules.NAME, 2)
    cases = sum(case.workers == 2 for case in driver_contract.GOOD)
    assert (found.passed, found.failed, found.refused) == (cases + 1, (), "")


def test_the_refusal_of_a_backend_is_quoted() -> None:
    found = contract_on("nobody", 2)
    assert (found.passed, found.failed) == (0, ())
    assert found.refused.startswith("nobody does not connect the ranks: ")
