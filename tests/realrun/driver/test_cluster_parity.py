"""The same scheme, simulated and on gloo processes: the same iterates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
import torch
from pydantic import TypeAdapter

from paceline.extras.replay.replay_driver import replay
from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group.group import Group
from paceline.realrun.transport import backend, connections
from paceline.realrun.transport.connections import COLLECTIVES_AT_ONCE
from paceline.realrun.transport.rank_transport import Collectives
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.experiments.parity import Models, Recorder, combinations, compare_iterates, worst_difference
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Worker
from paceline.sim.records.run import HALF_SUM, Event, Run, exact_exchanges
from paceline.sim.training.scoring import as_they_are, digest
from tests.support.cluster_jobs import run_scheme
from tests.support.cluster_pool import Pool, Pools
from tests.support.factory import NoOptions, make_job, make_scheme, run_events, simulated, sites_of
from tests.support.scheme_forms import ASYNCHRONOUS, BF16, FP16, RULED, SYNCHRONOUS, Form, in_turn
from tests.support.small_runs import PADDED, QSGD, WORKLOAD, measure

WAYS = [(4, "own size"), (4, "padded")]
"""Numbers of processes, and whether messages are as long as the values or padded."""
LARGER = [(8, "padded"), (8, "own size")]
"""Those for long tests: each form meets both numbers and both lengths."""
RECORDED = [form for form in ASYNCHRONOUS if form.scheme != "leader_sgd" or "groups" in form.options]
"""Not those of leaders without groups, of whose records two in four cannot be replayed: a message is received
of which the record has no send."""
LIMITS: list[dict[str, Any]] = [{"max_iterations": 15}, {"max_iterations": None, "max_time_s": 0.15}]


def _measured(pool: Pool, scheme: str, options: dict[str, Any], **job: Any) -> dict[str, Any]:
    return measure(pool, scheme, options, **job)[0]


def _off_by(finals: Sequence[torch.Tensor], job: Job, most: float, moved_only: bool = False) -> None:
    """No final model differs by more, relative to its length or to how far it has moved."""
    since = job.start if moved_only else torch.zeros_like(job.start)
    for final, expected in zip(finals, run_events(job).finals, strict=True):
        assert ((final - expected).norm() / (expected - since).norm()).item() < most


def _same_iterates(job: Job, record: dict[str, Any]) -> None:
    """All models that the workers published have the same bits, and the same combinations the same scores."""
    measured = TypeAdapter(Run).validate_python(record)
    assert compare_iterates(job, measured) == {
        "label": job.label, "seed": job.seed, "same": True,
        "says": f"the same bits in all {12 * job.workers} models that the workers published",
    }  # fmt: skip
    recorder = Recorder(
        None, None, 1, "mean", None, as_they_are, models=Models(combinations(measured.evaluations))
    )
    EventDriver(job, [job.program(rank) for rank in range(job.workers)], recorder).run()
    number, worst = worst_difference(job, measured.evaluations, recorder.models)
    assert (number, worst) == (len(measured.evaluations), 0.0)


def test_another_model_is_found(four: Pool) -> None:
    measured = TypeAdapter(Run).validate_python(_measured(four, "gossip", {"topology": "ring"}, **WORKLOAD))
    job = make_job("gossip", {"topology": "ring"}, workers=4, **WORKLOAD)
    changed = (("0" * 16, *measured.iterates[0][1:]), *measured.iterates[1:])
    verdict = compare_iterates(job, replace(measured, iterates=changed))
    assert (verdict["same"], verdict["says"][:39]) == (False, "worker 0's model differs after step 1, ")


@pytest.mark.parametrize(
    ("scheme", "options"), [("gossip", {"topology": "ring"}), ("all_reduce", {"overlap": True})]
)
def test_processes_accumulate_gradients(four: Pool, scheme: str, options: dict[str, Any]) -> None:
    workload = {**WORKLOAD, "accumulate": 4}
    _, finals = measure(four, scheme, options, **workload)
    job = make_job(scheme, options, workers=4, **workload)
    _off_by(finals, job, 1e-6)
    _off_by(finals, make_job(scheme, options, workers=4, **WORKLOAD), 1e-6)


@pytest.mark.parametrize(("form", "way"), in_turn(SYNCHRONOUS, WAYS, slow=LARGER))
def test_processes_do_what_is_simulated(pools: Pools, form: Form, way: tuple[int, str]) -> None:
    """Bit by bit, but for sums that are left to gloo, which adds up in an order of its own.

    Codes travel whole, and are decoded and added up in rank order. Of n values in 16 bits each mean is off by
    2 (n - 1) roundings at most.
    """
    workers, payload = way
    options, workload = form.in_few_steps(), {**WORKLOAD, **(PADDED if payload == "padded" else {})}
    measured, finals = measure(pools.of(workers), form.scheme, options, **workload)
    job = make_job(form.scheme, options, workers=workers, **workload)
    predicted = simulated(job)
    assert measured["digest"] == digest(finals)
    assert measured["bytes_sent"] == predicted.bytes_sent
    assert tuple(measured["exchanges"]) == predicted.exchanges
    if form.encoded or exact_exchanges(predicted.exchanges):
        assert measured["digest"] == predicted.digest
        _same_iterates(job, measured)
    elif HALF_SUM in predicted.exchanges:
        assert "all_reduce" in predicted.exchanges
        rounding = 2**-8 if form.options["compression"] == {"bf16": True} else 2**-11
        _off_by(finals, job, 2 * (workers - 1) * rounding, moved_only=True)
        assert (verdict := compare_iterates(job, TypeAdapter(Run).validate_python(measured)))["same"], verdict
    else:
        _off_by(finals, job, 1e-5)


@pytest.mark.parametrize("form", [form for form in RULED if form.synchronous], ids=str)
def test_two_processes_step_by_any_rule_as_simulated(pools: Pools, form: Form) -> None:
    """To the bit, since a sum of two has no order, which Muon's 16 bits would make much of."""
    options, workload = form.in_few_steps(), {**WORKLOAD, "rule": form.rule}
    measured, finals = measure(pools.of(2), form.scheme, options, **workload)
    predicted = simulated(make_job(form.scheme, options, workers=2, **workload))
    assert measured["digest"] == digest(finals) == predicted.digest
    assert measured["bytes_sent"] == predicted.bytes_sent


@pytest.mark.parametrize("task", ["normed", "dropping"])
def test_own_tasks_have_the_same_bits(four: Pool, task: str) -> None:
    """With buffers of batch norm, and with dropout; each process builds the task itself."""
    workload = {**WORKLOAD, "task": f"tests.support.own_tasks:{task}", "batch_size": 8, "method": "looped"}
    measured = _measured(four, "gossip", {"topology": "ring"}, **workload)
    job = make_job("gossip", {"topology": "ring"}, workers=4, **workload)
    assert measured["digest"] == simulated(job).digest
    _same_iterates(job, measured)


@pytest.mark.parametrize(
    ("scheme", "options"),
    [("tests.support.own_schemes:pairs", {}), ("gossip", {"topology": "tests.support.own_models:path"})],
)
def test_own_schemes_and_topologies_have_the_same_bits(
    four: Pool, scheme: str, options: dict[str, Any]
) -> None:
    measured = _measured(four, scheme, options, **WORKLOAD)
    assert measured["digest"] == simulated(make_job(scheme, options, workers=4, **WORKLOAD)).digest


def test_workers_agree_on_what_is_needed_first(four: Pool) -> None:
    """They fill buckets at different times; how often they ask each other depends on these."""
    options = {"overlap": True, "send_order": "needed_first", "next_forward": True}
    measured, finals = measure(four, "all_reduce", options, **WORKLOAD)
    job = make_job("all_reduce", options, workers=4, **WORKLOAD)
    assert measured["bytes_sent"] == pytest.approx(simulated(job).bytes_sent, rel=0.01)
    _off_by(finals, job, 1e-5)


def test_equal_buckets_of_a_payload_cut_through_layers(four: Pool) -> None:
    """Seven buckets of 4,810 elements: one with parts of both layers, and several in each."""
    options = {"overlap": True, "bucket": "25 kB"}
    measured, finals = measure(four, "all_reduce", options, buckets=7, **WORKLOAD, **PADDED)
    job = make_job("all_reduce", options, workers=4, buckets=7, **WORKLOAD, **PADDED)
    predicted = simulated(job)
    for events in (predicted.events, [Event(**event) for event in measured["events"]]):
        sums = [e for e in events if (e.worker, e.step, e.operation) == (0, 0, "all_reduce")]
        assert len(sums) == 7
        assert max(e.bytes for e in sums) - min(e.bytes for e in sums) <= 2 * 37
    assert measured["bytes_sent"] == predicted.bytes_sent
    _off_by(finals, job, 1e-5)


@pytest.mark.parametrize("half", [BF16, FP16], ids=["bf16", "fp16"])
def test_a_hierarchy_of_workers_adds_up_in_16_bits_too(four: Pool, half: dict[str, Any]) -> None:
    sites, cluster = {"a": 2, "b": 2}, {"all_reduce": "hierarchical", **WORKLOAD}
    measured, finals = measure(four, "all_reduce", half, sites=sites, **cluster)
    job = make_job("all_reduce", half, workers=4, network=sites_of(sites), **cluster)
    assert measured["bytes_sent"] == pytest.approx(simulated(job).bytes_sent, rel=1e-3)  # parts of elements
    _off_by(finals, job, 6 * (2**-8 if half is BF16 else 2**-11), moved_only=True)


def test_the_time_to_encode_padding_passes_on_processes_too(four: Pool) -> None:
    """Codes of 4,810 elements of 37 bytes, of which 4 are encoded by the worker itself: 33 at 10 MB/s."""
    more = {**WORKLOAD, **PADDED, "max_iterations": 3, "encoding": {"qsgd": "10 MB/s"}}
    measured = _measured(four, "all_reduce", QSGD, **more)
    job = make_job("all_reduce", QSGD, workers=4, **more)
    rows = [each for each in measured["events"] if each["operation"] == "encode"]
    assert len(rows) == 4 * 3 * 3
    assert min(each["end_s"] - each["start_s"] for each in rows) >= 4_810 * 33 / 10e6 * 0.99
    assert measured["digest"] == simulated(job).digest
    events = [Event(**each) for each in measured["events"]]
    finals = replay(job, [job.program(rank) for rank in range(4)], events)
    assert digest(finals) == measured["digest"]


def bytes_handed_over(group: Group, **scheme: Any) -> int:
    """In a process of the pool: run a scheme; bytes of all tensors that went to gloo to be sent."""
    counted: list[int] = []
    send, gather = connections.send, Collectives._gather

    def count_sent(gloo: Any, message: torch.Tensor, destination: int, tag: int) -> Any:
        if message.nbytes > 1:  # one byte ends a service after the run
            counted.append(message.nbytes)
        return send(gloo, message, destination, tag)

    def count_gathered(self: Collectives, own: torch.Tensor, members: tuple[int, ...]) -> Any:
        counted.append(own.nbytes * (len(members) - 1))
        return gather(self, own, members)

    with pytest.MonkeyPatch.context() as patch:
        for module in (connections, backend):
            patch.setattr(module, "send", count_sent)
        patch.setattr(Collectives, "_gather", count_gathered)
        answer = run_scheme(group, **scheme)
    assert answer["error"] is None
    return sum(counted)


@pytest.mark.parametrize("payload", [{}, {"bytes_per_parameter": 12_345.6}], ids=["own size", "padded"])
@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("all_reduce", QSGD),
        ("local_sgd", {"period": 3, "momentum": "mixed", **QSGD}),
        ("gossip", {"topology": "ring", **QSGD}),
        ("sgp", {"topology": "one_peer_exponential", "overlap": 1}),
        ("sgp", {"topology": "one_peer_exponential", "asynchronous": True}),
        ("halos", {"period": 2, "exchange": 2, **QSGD}),
    ],
)
def test_gloo_gets_exactly_the_bytes_that_are_priced(
    four: Pool, scheme: str, options: dict[str, Any], payload: dict[str, Any]
) -> None:
    """A model of ten parameters: shards of three elements, the last one of a single one."""
    workload = {**WORKLOAD, "task": "quadratic", "task_options": {"dimension": 10}, **payload}
    answers = four.ask(bytes_handed_over, scheme=scheme, options=options, **workload)
    job = make_job(scheme, options, workers=4, all_reduce="gloo_ring", **workload)
    sent, priced = sum(answers), simulated(job).bytes_sent  # 48 messages, of which some may go on
    assert sent == priced or (options.get("asynchronous") and (sent - priced) % (priced // 48) == 0)


@pytest.mark.parametrize("options", [{"period": 2}, {"period": 1, "groups": 2, "global_period": 3}])
def test_leader_sgd_has_the_same_bits(four: Pool, options: dict[str, Any]) -> None:
    """Broadcasts and gathered losses: nothing is added up by the library."""
    measured = _measured(four, "leader_sgd", options, **WORKLOAD, **PADDED)
    predicted = simulated(make_job("leader_sgd", options, workers=4, **WORKLOAD, **PADDED))
    assert (measured["digest"], measured["bytes_sent"]) == (predicted.digest, predicted.bytes_sent)
    events = [Event(**event) for event in measured["events"]]
    assert _leaders(events) == _leaders(predicted.events)
    rounds = [[e for e in events if e.worker == rank and e.operation == "broadcast"] for rank in range(4)]
    for own in rounds:
        for number, event in enumerate(own):
            root_s = rounds[event.peer][number].start_s
            assert event.peer_s == min(max(root_s, event.start_s), event.end_s)  # nobody else is waited for


def _leaders(events: Sequence[Event]) -> list[tuple[int, int]]:
    """(worker, root) of all broadcasts, each worker's in order."""
    broadcasts = [(e.worker, e.peer) for e in events if e.operation == "broadcast"]
    return sorted(broadcasts, key=lambda pair: pair[0])


@pytest.mark.parametrize(("form", "limit"), in_turn((*RECORDED, RULED[-1]), LIMITS))
def test_a_real_asynchronous_run_again_in_one_process(four: Pool, form: Form, limit: dict[str, Any]) -> None:
    scheme, options = form.scheme, form.in_few_steps(WORKLOAD["compute_s"])
    workload = {**WORKLOAD, "cv": 0.5, "rule": form.rule, **limit}
    measured = _measured(four, scheme, options, **workload)
    workload.pop("max_time_s", None)
    job = make_job(scheme, options, workers=4, **workload)
    events = [Event(**event) for event in measured["events"]]
    finals = replay(job, [job.program(rank) for rank in range(4)], events)
    assert digest(finals) == measured["digest"]


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("all_reduce", {}),
        ("local_sgd", {"period": 3, "momentum": "mixed"}),
        ("diloco", {"period": 3}),
        ("fedavg", {"period": 3}),
    ],
)
def test_a_quorum_of_all_is_the_same_average_on_real_processes(
    four: Pool, scheme: str, options: dict[str, Any]
) -> None:
    """And the simulated run has the same bits.

    The server's last sends may not have been noted when the run is over: what they brought is there.
    """
    measured = _measured(four, scheme, {**options, "quorum": 4}, **WORKLOAD, **PADDED)
    predicted = simulated(make_job(scheme, {**options, "quorum": 4}, workers=4, **WORKLOAD, **PADDED))
    assert measured["digest"] == predicted.digest
    rounds = predicted.left_out[0][1]
    last = 0.5 * predicted.bytes_sent / rounds
    assert predicted.bytes_sent - last <= measured["bytes_sent"] <= predicted.bytes_sent
    assert [tuple(each) for each in measured["left_out"]] == list(predicted.left_out)
    assert {late for late, _ in predicted.left_out} == {0}


def test_who_is_late_is_left_out_of_a_real_average(four: Pool) -> None:
    workload = {**WORKLOAD, "compute_s": 0.02, "stragglers": [{"workers": [2], "slowdown": 20}]}
    measured = _measured(four, "all_reduce", {"quorum": 3}, **workload)
    late, of = zip(*measured["left_out"], strict=True)
    assert of == (12,) * 4
    assert late[2] >= 10
    assert sum(late) == 12


def test_servers_of_two_sites_again_in_one_process(four: Pool) -> None:
    """The visits between the sites, which go on beside the steps, and the polls for their ends."""
    workload, sites = {**WORKLOAD, "cv": 0.5, "max_iterations": 24}, {"a": 2, "b": 2}
    options = {"period": 1, "exchange": 3}
    measured = _measured(four, "halos", options, sites=sites, **workload)
    job = make_job("halos", options, workers=4, network=sites_of(sites), **workload)
    events = [Event(**event) for event in measured["events"]]
    assert any(e.operation == "poll" for e in events)
    assert {(e.worker, e.peer) for e in events if e.operation == "send"} >= {(0, 2), (2, 0), (1, 0), (3, 2)}
    finals = replay(job, [job.program(rank) for rank in range(4)], events)
    assert digest(finals) == measured["digest"]


def test_events_and_times_add_up(four: Pool) -> None:
    measured = _measured(four, "gossip", {"topology": "ring"}, **WORKLOAD)
    events = [Event(**event) for event in measured["events"]]
    kinds = ["gradient", "mix"] * 12 + ["next_step"]
    for rank in range(4):
        own = [event for event in events if event.worker == rank]
        assert [event.operation for event in own] == kinds
        assert all(a.end_s <= b.start_s for a, b in pairwise(own))
        assert all(event.end_s - event.start_s >= 0.004 for event in own if event.operation == "gradient")
        assert all(event.start_s <= event.peer_s <= event.end_s for event in own)
    mixes = [[e for e in events if e.worker == rank and e.operation == "mix"] for rank in range(4)]
    for rank in range(4):
        for k, event in enumerate(mixes[rank]):
            last_s = max(mixes[(rank + 1) % 4][k].start_s, mixes[(rank - 1) % 4][k].start_s)
            assert event.peer_s == max(last_s, event.start_s)
    share = measured["time_s"]
    assert sum(share.values()) == pytest.approx(measured["wall_clock_s"])
    assert min(share.values()) >= 0
    assert share["compute"] >= 12 * 0.004


def sums_at_once(group: Group, count: int) -> dict[str, Any]:
    """In a process of the pool: begin that many sums together."""
    sums: list[float] = []

    async def program(worker: Worker, options: NoOptions) -> None:
        values = [torch.tensor([float(k + worker.rank)]) for k in range(count)]
        begun = [await worker.begin(ops.AllReduce(value)) for value in values]
        sums.extend([float(await worker.wait(handle)) for handle in reversed(begun)])

    measured = run_job(group, make_job(make_scheme(program), workers=group.size))
    return {"sums": sums, "notes": [note for timing in measured.timings for note in timing.notes]}


@pytest.mark.parametrize("more", [0, 3])
def test_more_collectives_at_once_than_are_carried_are_noted(four: Pool, more: int) -> None:
    count = COLLECTIVES_AT_ONCE + more
    answers = four.ask(sums_at_once, count=count)
    note = (
        f"{count} collectives were under way at once, of which gloo carries {COLLECTIVES_AT_ONCE}: with a "
        "larger bucket there are fewer"
    )
    assert answers[0]["notes"] == ([note] * 4 if more else [])
    assert all(answer["sums"] == [k + 1.5 for k in reversed(range(count))] for answer in answers)


def test_what_this_machine_cannot_keep_to_is_counted(four: Pool) -> None:
    """A computation that outlasts its time, and a payload below the tensors' own size, are not hidden."""
    workload = {**WORKLOAD, "compute_s": 1e-6, "bytes_per_parameter": 1.0}
    answers = four.ask(run_scheme, scheme="gossip", options={"topology": "ring"}, **workload)
    for timing in answers[0]["timings"]:
        assert timing["gradients"] == timing["overruns"] == 12
        assert timing["compute_s"] > 12e-6
        assert timing["notes"] == ["payload is smaller than the tensors, which were sent as they are"]
    run = answers[0]["run"]
    assert run["digest"] == simulated(make_job("gossip", {"topology": "ring"}, workers=4, **workload)).digest
    assert all(e["end_s"] - e["start_s"] > 1e-6 for e in run["events"] if e["operation"] == "gradient")
