"""One time of a step, whichever command is asked: check, simulate, throughput and bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, replace
from random import Random
from typing import Any

import pytest

from paceline.sim.experiments.costs import step_cost as step_costs
from paceline.sim.experiments.costs import watch
from paceline.sim.experiments.costs.bounds import measure_bounds
from paceline.sim.experiments.costs.step_cost import follow, follow_whole, step_cost, whole_job
from paceline.sim.experiments.costs.tokens import Utilisation
from paceline.sim.experiments.costs.watch import Span
from paceline.sim.experiments.prepare import clock_only, prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.records.run import Run
from paceline.sim.records.summarise import summarise
from paceline.sim.scenario.schema import Scenario, resolve_scenario
from tests.support.scheme_forms import DISTINCT, FORMS, WORKERS, Form

ONE_SLOW = {"workers": [3], "slowdown": 10}


@pytest.fixture(autouse=True, scope="module")
def few_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_costs, "ENOUGH_WORK", 1_500)
        patch.setattr("paceline.sim.experiments.costs.tokens.ENOUGH_PART_WORK", 600)
        patch.setattr("paceline.sim.experiments.costs.bounds.BOUNDS_WORK", 2_000)
        yield


def scenario(*schemes: Any, **changes: Any) -> Scenario:
    cluster = {
        "workers": 8, "compute": {"time": "50 ms"}, "stragglers": [ONE_SLOW],
        "network": {"latency": "1 ms", "bandwidth": "10 Gbit/s"},
    }  # fmt: skip
    written = {
        "name": "s",
        "workload": {"timing_only": True, "payload": changes.pop("payload", "1 MB"), "batch_size": 8},
        "schemes": list(schemes),
        "stop": changes.pop("stop", {"max_iterations": 400}),
        "seed": changes.pop("seed", 0),
        "evaluate": changes.pop("evaluate", {}),
        "cluster": cluster | changes,
    }
    return resolve_scenario(written, None, ())


def run_of(wanted: Scenario, number: int = 0) -> Run:
    return simulate_job(clock_only_but_for_time(wanted, number))


def clock_only_but_for_time(wanted: Scenario, number: int) -> Any:
    job = prepare(wanted, wanted.schemes[number], wanted.seed)
    return replace(clock_only(job), max_time_s=job.max_time_s)


BIG = {
    "payload": "2 GB", "workers": 4, "compute": {"time": "100 ms"}, "stragglers": [],
    "network": {"latency": "10 ms", "bandwidth": "10 Gbit/s"},
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "step_s"),
    [
        ({}, 8 / (7 / 0.05 + 1 / 0.5)),
        ({"stop": {"max_time": "20 s"}}, 8 / (7 / 0.05 + 1 / 0.5)),
        (BIG | {"stop": {"max_iterations": 200}}, 0.1954),
    ],
)
def test_workers_that_wait_for_nobody_have_one_time_per_step(changes: dict[str, Any], step_s: float) -> None:
    wanted = scenario("ad_psgd", **changes)
    cost, bounds = step_cost(wanted, wanted.schemes[0]), measure_bounds(wanted, wanted.schemes[0])
    assert bounds is not None
    assert cost.step_s == pytest.approx(step_s, rel=6e-3)
    run = run_of(wanted)
    assert run.step_s == pytest.approx(step_s, rel=6e-3)
    assert bounds["step_s"] == pytest.approx(step_s, rel=6e-3)
    assert Utilisation(wanted, wanted.schemes[0]).step.step_s == cost.step_s
    run_shares = summarise("s", [run])["runs"][0]["step_shares"]
    assert run_shares == pytest.approx(cost.shares, rel=0.25)


def test_an_idle_end_is_neither_waiting_nor_time_per_step() -> None:
    slow = {"workers": [3], "slowdown": 3}
    changes = {"workers": 4, "stragglers": [slow], "network": {"latency": "1 ms", "bandwidth": "1 Gbit/s"}}
    wanted = scenario("ad_psgd", "all_reduce", stop={"max_iterations": 40}, **changes)
    runs = [run_of(wanted, number) for number in range(2)]
    summary = summarise("s", runs)
    free, synchronous = summary["summary"]
    assert runs[0].time_s.wait == 0
    assert runs[0].time_s.idle == pytest.approx(4.0)
    assert sum(astuple(runs[0].time_s)) == pytest.approx(runs[0].wall_clock_s)
    assert free["step_s"]["median"] == pytest.approx(0.06)
    assert free["step_shares"] == pytest.approx([0.3, 0.3, 0.3, 0.1])
    assert free["average_s"][0] == pytest.approx(0.05)
    assert free["leaves_out"] == ["an idle end of 4 s, after the first worker was through"]
    assert synchronous["leaves_out"] == []
    assert summary["winner"] is None
    assert not summary["verdict"]["settled"]
    assert summary["verdict"]["text"] == (
        "no winner by time per step alone: ad_psgd is ahead, 2.7x as fast as all_reduce, by one repeat, but "
        "its fastest worker does 3.0x the steps of its slowest"
    )


@pytest.mark.slow
def test_no_part_of_a_step_is_below_zero() -> None:
    """FedAvg draws who takes part, and workers that wait for nobody are within a step at the end."""
    fedavg = {"fedavg": {"period": 16, "participation": 0.5}}
    halos = {"halos": {"period": 8}}
    for payload in ("1 MB", "100 MB"):
        wanted = scenario(fedavg, "ad_psgd", halos, payload=payload)
        for entry in wanted.schemes:
            cost = step_cost(wanted, entry)
            assert cost.compute_s > 0
            assert min(cost.latency_s, cost.bandwidth_s) >= -1e-12, entry.label
    wanted = scenario(fedavg, payload="100 MB")
    assert step_cost(wanted, wanted.schemes[0]).bandwidth_s == pytest.approx(0.0125, rel=0.05)


def test_what_a_step_leaves_out_is_said_and_moves_no_random_number() -> None:
    chance = {"probability": 0.02, "slowdown": 10}
    crash, pause = {"workers": [1], "at": "5 steps", "crash": True}, {"at": "9 steps", "pause": "1 min"}
    warm = {"local_sgd": {"period": 4, "warmup": 20}}
    plain, once = scenario(warm, stragglers=[chance]), scenario(warm, stragglers=[crash, pause, chance])
    moved = scenario(warm, stragglers=[ONE_SLOW | {"slowdown": 1}, ONE_SLOW | {"slowdown": 1}, chance])
    costs = [step_cost(each, each.schemes[0]) for each in (plain, once, moved)]
    assert costs[1].step_s == costs[2].step_s
    assert costs[0].leaves_out == ["start-up, a quarter of the steps", "the scheme's own beginning"]
    assert costs[1].leaves_out == [*costs[0].leaves_out, "crashes", "slow periods that come once"]


def test_what_is_random_counts_for_throughput_and_its_bandwidths() -> None:
    chance, calm = (
        scenario("all_reduce", stragglers=[{"probability": 0.02, "slowdown": 10}]),
        scenario("all_reduce", stragglers=[]),
    )
    found, plain = (Utilisation(each, each.schemes[0]) for each in (chance, calm))
    assert found.step.step_s > 1.5 * plain.step.step_s
    assert found.share < plain.share  # who is not slow waits
    free = scenario("ad_psgd", stragglers=[], payload="100 MB")
    needed = Utilisation(free, free.schemes[0]).needed(0.5)
    assert needed is not None
    assert needed > 1e8  # half the workers are never held up: on any network they do half of all steps


# --- the law ------------------------------------------------------------------------------------------------

SOMETIMES: list[Any] = [
    {"probability": 0.05, "slowdown": 5},
    {"probability": 0.03, "pause": "200 ms", "duration": "3 steps"},
    {"markov": {"slow": "4 steps", "fast": "16 steps"}, "slowdown": 6},
    {"workers": [1, 4], "slowdown": 3},
    {"workers": [2], "probability": 0.2, "slowdown": 8},
]
JITTERS: list[Any] = [None, {"lognormal": {"cv": 0.3}}, {"gamma": {"cv": 0.1}}, {"pareto": {"shape": 3}}]
BUCKETS = {"1 MB": "200 kB", "10 MB": "2 MB", "60 MB": "12 MB"}
"""Of each payload, five: of many more a step is so many messages that only one or two would be followed."""

EVALUATIONS: list[dict[str, str]] = [{}, {"every": "6 steps", "time": "70 ms"}]

BESIDE_STEPS = {"overlap", "delay", "exchange"}
"""Options with exchanges beside the steps."""


def draw_cluster(random: Random) -> dict[str, Any]:
    jitter = random.choice(JITTERS)
    return {
        "workers": WORKERS,
        "compute": {"time": "50 ms"} | ({} if jitter is None else {"jitter": jitter}),
        "stragglers": random.choices(SOMETIMES, k=random.randrange(3)),
        "payload": random.choice(list(BUCKETS)),
        "evaluate": random.choice(EVALUATIONS),
        "network": {
            "latency": f"{random.choice([0.1, 2, 40])} ms",
            "bandwidth": f"{random.choice([100, 1000, 10000])} Mbit/s",
        },
    }


def agree(form: Form, cluster: dict[str, Any]) -> None:
    """``check`` and ``throughput`` say what ``simulate`` does, over the same steps; some need values."""
    wanted = scenario({form.scheme: form.of_payload(BUCKETS[cluster["payload"]])}, **cluster)
    entry, job = wanted.schemes[0], whole_job(wanted, wanted.schemes[0])
    with pytest.MonkeyPatch.context() as patch:
        if not form.synchronous or form.scheme == "sharded" or BESIDE_STEPS & set(form.options):
            # The last step of a run has nothing after it to overlap with: it has to be one of many.
            patch.setattr(step_costs, "ENOUGH_WORK", 12_000)
        cost = step_cost(wanted, entry)
        if cost.problem:
            return
        whole = follow_whole(wanted, entry)
    cycle = job.cycle
    to_first, to_last = (
        simulate_job(replace(job, max_iterations=max(1, end * cycle))).pace
        for end in (whole.span.first, whole.span.last)
    )
    assert to_first is not None
    assert to_last is not None
    assert cost.step_s == pytest.approx(whole.step_s, rel=1e-9)
    assert cost.step_s == pytest.approx(to_last.since(to_first).step_s, rel=0.02), (form, cluster)
    assert min(cost.compute_s, cost.latency_s, cost.bandwidth_s) >= -1e-9 * cost.step_s, (form, cluster)


@pytest.mark.parametrize("number", range(2))
def test_all_commands_agree(number: int) -> None:
    random = Random(f"any form {number}")
    agree(random.choice(FORMS), draw_cluster(random))


SITES = {
    "sites": {"a": 4, "b": 2},
    "within": {"latency": "0.1 ms", "bandwidth": "10 Gbit/s"},
    "between": {"latency": {"default": "20 ms"}, "bandwidth": {"default": "1 Gbit/s"}},
}
PARTS = ("compute_s", "latency_s", "bandwidth_s", "round_s", "random_s")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_parts_that_end_once_they_repeat_are_those_of_whole_runs(number: int) -> None:
    random = Random(f"repeats {number}")
    form, cluster = random.choice([each for each in FORMS if each.synchronous]), draw_cluster(random)
    wanted = scenario(
        {form.scheme: form.of_payload(BUCKETS[cluster["payload"]])},
        **cluster | random.choice([{}, {"network": SITES}]),
    )
    cost = step_cost(wanted, wanted.schemes[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_costs, "repeats", lambda job: False)
        whole = step_cost(wanted, wanted.schemes[0])
    for part in PARTS:
        expected = getattr(whole, part)
        assert getattr(cost, part) == (expected and pytest.approx(expected, abs=1e-12 * whole.step_s)), part
    left_out: dict[str, Any] = dict.fromkeys((*PARTS, "clock_s"))
    assert replace(cost, **left_out) == replace(whole, **left_out)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(3))
def test_a_step_without_chance_is_that_of_a_whole_run(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_costs, "ENOUGH_WORK", 12_000)
    random = Random(f"ends {number}")
    steady = draw_cluster(random) | {"compute": {"time": "50 ms"}, "stragglers": [ONE_SLOW]}
    cluster = steady | random.choice([{}, {"network": SITES}])
    drawn = (
        scenario({form.scheme: form.of_payload(BUCKETS[cluster["payload"]])}, **cluster)
        for form in random.sample(FORMS, len(FORMS))
    )
    wanted = next(each for each in drawn if step_costs.repeats(whole_job(each, each.schemes[0])))
    soon = follow_whole(wanted, wanted.schemes[0])
    monkeypatch.setattr(step_costs, "repeats", lambda job: False)
    monkeypatch.setattr(watch, "STANDARD_ERROR", -1.0)
    late = follow_whole(wanted, wanted.schemes[0])
    assert soon.error == 0.0
    assert soon.work < late.work / 2
    assert soon.span.last == pytest.approx(late.span.last, rel=0.02, abs=1)
    fractions = 2e-3 if soon.span != late.span else 1e-12  # of a period
    assert soon.step_s == pytest.approx(late.step_s, rel=fractions)
    assert soon.bytes_per_worker == pytest.approx(late.bytes_per_worker, rel=fractions)
    assert soon.ends_s[-1] / len(soon.ends_s) == pytest.approx(late.step_s, rel=2e-3)
    for receivers, of_whole in zip(soon.sent_to, late.sent_to, strict=True):
        assert receivers.keys() == of_whole.keys()


@pytest.mark.slow
def test_what_repeats_is_not_followed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what is random is; draws without an effect end after the means behind an error."""
    monkeypatch.setattr(step_costs, "ENOUGH_WORK", 20_000)
    works: dict[bool, list[int]] = {}
    for name, jitter, again in (
        ("all_reduce", {}, True),
        ({"local_sgd": {"period": 4}}, {}, True),
        ("all_reduce", {"jitter": {"gamma": {"cv": 0.1}}}, False),
        ({"gossip": {"topology": {"random_matching": {}}}}, {}, False),
        ("ad_psgd", {}, False),
        ("ad_psgd", {"jitter": {"gamma": {"cv": 0.1}}}, False),
    ):
        wanted = scenario(name, compute={"time": "50 ms"} | jitter)
        job = whole_job(wanted, wanted.schemes[0])
        assert step_costs.repeats(job) == again
        followed = follow(job, Span(100, 400))
        works.setdefault(again or not jitter, []).append(followed.work)
        assert (followed.error < 1e-12) == (not jitter)
    assert max(works[True]) < 1_000 < min(works[False])


@pytest.mark.slow
@pytest.mark.parametrize("form", DISTINCT, ids=str)
def test_all_commands_agree_for_every_form(form: Form) -> None:
    """Each on a cluster of its own."""
    agree(form, draw_cluster(Random(str(form))))


def test_a_card_carries_what_leaves_its_host() -> None:
    """Two hosts of two GPUs, 8 MB: FSDP 3 x 3/4 of a model, hybrid shards a whole one, all GPUs' together."""
    network = {
        "sites": {"room": 4}, "host": {"gpus": 2, "bandwidth": "100 GB/s"}, "transport": "nccl",
        "within": {"latency": "10 us", "bandwidth": "10 Gbit/s"},
    }  # fmt: skip
    shards = [{"sharded": {"unit": "2 MB", **more}} for more in ({"label": "full"}, {"inside": "hosts"})]
    wanted = scenario(*shards, payload="8 MB", network=network, stragglers=[], workers=4)
    costs = [step_cost(wanted, entry) for entry in wanted.schemes]
    assert [cost.card_bytes for cost in costs] == pytest.approx([18e6, 8e6], rel=1e-3)
    plain = scenario("all_reduce", stragglers=[])
    assert step_cost(plain, plain.schemes[0]).card_bytes is None
