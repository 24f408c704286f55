"""What a step costs, before it is run: against closed forms."""

from __future__ import annotations

import io
import itertools
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from paceline.commands.app import app
from paceline.reports.check_tables import render_check
from paceline.sim.config.units import format_bytes
from paceline.sim.drivers.job import Job
from paceline.sim.experiments.costs import step_cost as step_costs
from paceline.sim.experiments.costs.check import check, most_steps, route_kinds
from paceline.sim.experiments.costs.step_cost import StepCost, step_cost
from paceline.sim.experiments.costs.watch import Followed
from paceline.sim.experiments.prepare import clock_only, prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.network.build import build_network
from paceline.sim.scenario.ready import ready_scenarios
from paceline.sim.scenario.schema import parse
from paceline.sim.schemes import find_scheme
from paceline.sim.traffic.clock import Clock
from tests.sim.scenario.test_schema import SITES
from tests.support.markup import MARKUP

TIMING = """\
name: small
workload: {timing_only: true, payload: 1024 B}
cluster:
  workers: 4
  compute: {time: 1 s}
  network: {latency: 125 ms, bandwidth: 64 B/s}
schemes:
  - all_reduce
  - local_sgd: {period: 12}
  - gossip: {topology: ring}
  - ad_psgd
stop: {max_iterations: 100}
collectives: {all_reduce: ring_stop_and_wait}
"""

TRAINED = """\
name: trained
workload: {task: quadratic, dimension: 10, batch_size: 4, optimizer: {lr: 0.1}, payload: 20 MB}
cluster:
  compute: {time: 50 ms, jitter: {gamma: {cv: 0.1}}}
  stragglers: [{workers: [3], slowdown: 3}]
  network:
    sites: {us: 2, eu: 2}
    within: {latency: 0.1 ms, bandwidth: 10 Gbit/s}
    between: {latency: 40 ms, bandwidth: 1 Gbit/s}
schemes: [all_reduce, ad_psgd]
stop: {target: {metric: suboptimality, value: 0.1}, max_time: 1 min}
repeats: 3
"""


@pytest.fixture(autouse=True, scope="module")
def few_steps() -> Iterator[None]:
    """Runs that take milliseconds: the closed forms need two cycles only."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(step_costs, "ENOUGH_WORK", 600)
        patch.setattr(step_costs, "ENOUGH_PART_WORK", 600)
        yield


def costs(text: str, *changes: str) -> dict[str, StepCost]:
    scenario = parse(text, changes=changes)
    return {entry.label: step_cost(scenario, entry) for entry in scenario.schemes}


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["collectives.all_reduce=halving_doubling"],
        ["cluster.network.sharing=none", "cluster.network.transport=gloo"],
        ["cluster.compute.jitter={lognormal: {cv: 0.3}}", "cluster.stragglers=[{workers: [1], slowdown: 2}]"],
    ],
)
def test_many_workers_in_lockstep_cost_what_they_cost_by_events(
    changes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TIMING.replace("collectives: {all_reduce: ring_stop_and_wait}\n", "")
    text = text.replace("gossip: {topology: ring}", "gossip: {topology: one_peer_exponential}")
    if changes:  # events follow it in any case, for the longest
        text = text.replace("  - ad_psgd\n", "")
    by_events = costs(text, *changes)
    monkeypatch.setattr(step_costs, "MANY_WORKERS", 1)
    in_lockstep: list[str] = []
    follow = step_costs._follow_in_lockstep

    def noted(job: Job, *rest: Any) -> Followed:
        in_lockstep.append(job.label)
        return follow(job, *rest)

    monkeypatch.setattr(step_costs, "_follow_in_lockstep", noted)
    for label, cost in costs(text, *changes).items():
        assert (label in in_lockstep) == (label != "ad_psgd")
        expected = by_events[label]
        assert cost.steps == expected.steps
        assert cost.step_s == pytest.approx(expected.step_s, rel=1e-9)
        assert cost.compute_s == pytest.approx(expected.compute_s, rel=1e-9)
        assert cost.latency_s == pytest.approx(expected.latency_s, abs=1e-9)
        assert cost.bytes_per_worker == pytest.approx(expected.bytes_per_worker, rel=1e-9)


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_a_ring_all_reduce_has_its_closed_form(workers: int) -> None:
    found = costs(TIMING, "schemes=[all_reduce]", f"cluster.workers={workers}")["all_reduce"]
    assert found.compute_s == 1.0
    assert found.latency_s == 2 * (workers - 1) * 0.125
    assert found.bandwidth_s == 2 * (workers - 1) * 1024 / workers / 64
    assert found.bytes_per_worker == 2 * (workers - 1) * 1024 / workers
    assert found.random_s is None
    assert found.step_s == found.compute_s + found.latency_s + found.bandwidth_s


def test_other_schemes_have_theirs() -> None:
    found = costs(TIMING)
    rarely, ring = found["local_sgd"], found["gossip"]
    assert rarely.steps % 12 == 0
    assert rarely.latency_s == pytest.approx(found["all_reduce"].latency_s / 12, rel=1e-12)
    assert rarely.bandwidth_s == pytest.approx(found["all_reduce"].bandwidth_s / 12, rel=1e-12)
    # both models leave over the same access link
    assert ring.latency_s == pytest.approx(0.125, rel=1e-12)
    assert ring.bandwidth_s == pytest.approx(2 * 1024 / 64, rel=1e-12)
    assert ring.bytes_per_worker == 2 * 1024
    # a swap takes 2 (16 s + 125 ms), beside which the passive half does 32.25 steps; two active workers that
    # choose one passive neighbour wait for each other
    assert found["ad_psgd"].compute_s == 1.0
    assert 2 / (1 + 1 / 32.25) <= found["ad_psgd"].step_s < 2


def test_what_is_always_slow_counts_and_what_is_random_counts_apart() -> None:
    def costs_of_one(change: str) -> StepCost:
        return costs(TIMING, "schemes=[all_reduce]", change)["all_reduce"]

    always = "cluster.stragglers=[{workers: [1], slowdown: 3}]"
    assert (costs_of_one(always).compute_s, costs_of_one(always).random_s) == (3.0, None)
    for change in (
        "cluster.compute.jitter={gamma: {cv: 0.5}}",
        "cluster.stragglers=[{probability: 0.1, slowdown: 3}]",
        "cluster.compute={trace: {durations: [0.5 s, 1.5 s]}}",
        "cluster.compute={model: 'tests.support.own_models:about_one'}",
    ):
        found = costs_of_one(change)
        assert found.compute_s == 1.0
        assert found.random_s is not None
        assert found.random_s > 0  # everybody waits for the slowest
    jitter = costs_of_one("cluster.network.jitter={gamma: {cv: 0.5}}")
    assert (jitter.latency_s, jitter.compute_s) == (0.75, 1.0)
    assert jitter.random_s is not None
    markov = "{links: '*', markov: {slow: 5 s, fast: 5 s, factor: 0.5}}"
    slow = costs_of_one(f"cluster.network.variation=[{markov}]")
    assert slow.bandwidth_s == 24.0
    assert slow.random_s is not None
    assert slow.random_s > 0
    assert slow.step_s == slow.compute_s + slow.latency_s + slow.bandwidth_s + slow.random_s


SLOW_ONE = """\
name: slow-one
workload: {timing_only: true, payload: 20 MB}
cluster:
  compute: {time: 50 ms, jitter: {lognormal: {cv: 0.1}}}
  stragglers: [{workers: [3], slowdown: 10}]
  network:
    sites: {us: 4, eu: 4}
    within: {latency: 0.1 ms, bandwidth: 10 Gbit/s}
    between: {latency: 40 ms, bandwidth: 1 Gbit/s}
schemes:
  - ad_psgd
  - gossip: {topology: ring}
  - local_sgd: {period: 16}
  - easgd: {period: 4, asynchronous: true}
stop: {max_time: 1 h}
"""
WHOLE_PERIODS, LONG_S = 320, 60.0


def test_a_step_is_that_of_the_simulation() -> None:
    """Elapsed time over the mean number of steps: with a 10x straggler it was the straggler's own step."""
    scenario = parse(SLOW_ONE)
    for entry in scenario.schemes:
        cost = step_cost(scenario, entry)
        job = clock_only(prepare(scenario, entry, scenario.seed))
        limit = {"max_iterations": WHOLE_PERIODS} if job.synchronous else {"max_time_s": LONG_S}
        run = simulate_job(replace(job, **limit))
        assert cost.step_s == pytest.approx(run.wall_clock_s / run.iterations, rel=0.05), entry.label
        sent = run.bytes_sent / run.iterations / job.workers
        assert cost.bytes_per_worker == pytest.approx(sent, rel=0.05), entry.label


def test_whole_periods_count() -> None:
    """One of 64 steps sends a model along a tree, and 4 bytes of loss to each of the others."""
    found = costs(TIMING, "schemes=[{leader_sgd: {period: 64}}]")["leader_sgd"]
    assert found.steps % 64 == 0
    assert found.bytes_per_worker == (0.75 * 1024 + 3 * 4) / 64
    assert found.compute_s == 1.0
    tiers = {"period": 4, "global_period": 12, "groups": 2}
    for name, options, workers, cycle in (
        ("leader_sgd", tiers, 8, 12),
        ("leader_sgd", {"period": 4}, 8, 4),
        ("adaptive_local_sgd", {"initial_period": 6}, 8, 6),
        ("gossip", {"topology": "one_peer_exponential", "global_period": 4}, 8, 12),
        ("sgp", {"topology": "one_peer_exponential"}, 8, 3),
        ("tests.support.own_schemes:lazy", {"period": 5}, 8, 5),
        ("ad_psgd", {}, 8, 1),
    ):
        scheme = find_scheme(name)
        assert scheme.cycle(scheme.options.model_validate(options), workers) == cycle, name


def test_what_a_scheme_does_first_is_left_out() -> None:
    plain = "schemes=[{local_sgd: {period: 4}}]"
    for change in (
        "schemes=[{local_sgd: {period: 4, warmup: 1000, label: local_sgd}}]",
        "schemes=[{post_local_sgd: {period: 4, switch_at: 1000, label: local_sgd}}]",
    ):
        assert replace(costs(TIMING, change)["local_sgd"], clock_s=0.0) == replace(
            costs(TIMING, plain)["local_sgd"], clock_s=0.0
        )


def test_a_period_that_is_too_long_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_costs, "MOST_WORK", 1_000)
    found = costs(TIMING, "schemes=[{local_sgd: {period: 1000}}]")["local_sgd"]
    assert found.problem == "it repeats itself every 1,000 steps, which is more than can be followed"
    assert found.clock_s > 0


def test_a_step_of_too_many_messages_ends_early_and_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    events = itertools.count(1)
    spent_s = 0.0

    def step(clock: Clock, follow: Callable[[Clock], None] = Clock.step) -> None:
        nonlocal spent_s
        spent_s = 1e-4 * next(events)
        follow(clock)

    monkeypatch.setattr(Clock, "step", step)
    monkeypatch.setattr(time, "process_time", lambda: spent_s)
    monkeypatch.setattr(step_costs, "MOST_WORK", 300)
    text = TIMING.replace("latency: 125 ms", "transport: gloo, latency: 125 ms")
    changes = ["schemes=[{all_reduce: {overlap: true, bucket: 64 B}}]", "cluster.workers=8"]
    long = costs(text, *changes)["all_reduce"]
    assert long.problem == "it repeats itself every step, which is more than can be followed"
    found = check(parse(text, changes=changes), torch.device("cpu"))
    (row,) = found["schemes"]
    assert (
        row["simulation_s_expected"] == row["simulation_s_at_most"] == row["simulation_s_per_100_steps"] > 0
    )
    assert found["simulation_s_expected"] == row["simulation_s_expected"] + found["preparation_s"]
    monkeypatch.setattr(step_costs, "MOST_WORK", 10_000)
    whole = costs(text, *changes)["all_reduce"]
    assert whole.problem == ""
    assert whole.clock_s * 0.8 < long.clock_s <= whole.clock_s


def test_no_stopwatch_decides_what_a_step_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    change = "schemes=[gossip: {topology: ring}]"
    quick = costs(SLOW_ONE, change)["gossip"]
    reads = itertools.count()
    for clock in ("perf_counter", "process_time", "monotonic"):
        monkeypatch.setattr(time, clock, lambda: 100.0 * next(reads))
    slow = costs(SLOW_ONE, change)["gossip"]
    assert slow.clock_s > quick.clock_s
    assert replace(slow, clock_s=quick.clock_s) == quick


def test_a_network_without_sharing_and_with_overhead() -> None:
    network = ("cluster.network.sharing=none", "cluster.network.overhead=0.5 s")
    found = costs(TIMING, "schemes=[gossip: {topology: ring}]", *network)["gossip"]
    assert found.bandwidth_s == pytest.approx(1024 / 64, rel=1e-12)
    assert found.latency_s == pytest.approx(0.625, rel=1e-12)


def test_routes_of_one_cost_are_told_once() -> None:
    scenario = parse(
        SITES.replace("default: 90 ms}", "default: 90 ms}, bandwidth: 1 Gbit/s, per_flow: 300 Mbit/s")
    )
    kinds = route_kinds(build_network(scenario.cluster.network, 4))
    assert [(k["from"], k["to"], k["pairs"]) for k in kinds] == [
        ("us", "us", 2), ("us", "eu", 2), ("us", "asia", 2), ("eu", "us", 2), ("eu", "asia", 1),
        ("asia", "us", 2), ("asia", "eu", 1),
    ]  # fmt: skip
    assert (kinds[1]["latency_s"], kinds[1]["bytes_per_s"]) == (0.04, 37.5e6)
    assert kinds[1]["example"] == {"source": 0, "destination": 2, "links": ["us->eu"]}
    assert kinds[0]["bytes_per_s"] is None


def test_pairs_of_many_hosts_are_counted_not_listed() -> None:
    network = build_network(parse(TIMING, changes=["cluster.workers=10000"]).cluster.network, 10_000)
    (kind,) = route_kinds(network)
    assert (kind["pairs"], kind["latency_s"]) == (10_000 * 9_999, 0.125)
    assert (kind["example"]["source"], kind["example"]["destination"]) == (0, 1)
    assert len(network._routes) == 1
    free = step_costs._unlimited(network, latency=True)
    assert (free.route(3, 9_999).latency_s, free.route(3, 9_999).links) == (0.125, ())
    assert math.isinf(free.route(3, 9_999).per_flow_bytes_per_s)
    assert step_costs._unlimited(network, latency=False).route(9, 8).latency_s == 0.0


def test_a_run_has_no_more_steps_than_fit() -> None:
    cost = StepCost("x", compute_s=1.0, latency_s=0.5, bandwidth_s=0.5)
    assert most_steps(parse(TIMING), cost) == 100
    assert most_steps(parse(TIMING, changes=["stop={max_time: 50 s}"]), cost) == 25
    assert most_steps(parse(TIMING, changes=["stop.max_time=1 h"]), cost) == 100


def said(found: dict[str, Any], *, why: bool = True) -> str:
    out = io.StringIO()
    Console(file=out, width=120).print(render_check(found, why=why))
    return out.getvalue()


@pytest.fixture(scope="module")
def trained() -> dict[str, Any]:
    with pytest.MonkeyPatch.context() as patch:  # a slow machine would begin processes, and add their start
        patch.setattr("paceline.sim.experiments.costs.check.MIN_WORK_S", math.inf)
        return check(parse(TRAINED), torch.device("cpu"), forecast=True)


def test_what_is_found_is_plain(trained: dict[str, Any]) -> None:
    assert json.loads(json.dumps(trained, allow_nan=False)) == trained
    assert trained["sites"] == {"us": 2, "eu": 2}
    assert trained["compute_s"] == {"fastest": 0.05, "slowest": pytest.approx(0.15)}
    assert (trained["model_bytes"], trained["parameters"]) == (20_000_000, None)
    assert [row["label"] for row in trained["schemes"]] == ["all_reduce", "ad_psgd"]
    assert all(row["simulation_s_per_100_steps"] > 0 for row in trained["schemes"])
    # a step is at least 150 ms, so that there are no more than 400; three repeats
    steps = [row["steps_at_most"] for row in trained["schemes"]]
    assert 0 < steps[0] < 400
    per_step_s = [row["simulation_s_per_100_steps"] / 100 for row in trained["schemes"]]
    expected_s = 3 * sum(each * n for each, n in zip(per_step_s, steps, strict=True))
    begin_s = trained["preparation_s"]
    assert begin_s > 0
    assert trained["simulation_s_at_most"] == pytest.approx(begin_s + expected_s)
    # the trials are the first of the repeats
    scenario = parse(TRAINED)
    runs = [simulate_job(prepare(scenario, entry, scenario.seed)) for entry in scenario.schemes]
    steps = [row["steps_expected"] for row in trained["schemes"]]
    assert steps == [run.iterations for run in runs]
    expected_s = 3 * sum(each * n for each, n in zip(per_step_s, steps, strict=True))
    assert trained["simulation_s_expected"] == pytest.approx(begin_s + expected_s)
    assert 0 < trained["score_s"] < 100 * sum(per_step_s)
    assert {"name": "us->eu", "bytes_per_s": 125e6, "varies": False} in trained["links"]


@pytest.mark.parametrize(
    ("workload", "parameters", "told"),
    [
        ("{timing_only: true, layer_profile: gpt2}", 124_439_808, "of 124,439,808 parameters is 498 MB"),
        (
            "{task: quadratic, dimension: 10, batch_size: 4, optimizer: {lr: 0.1}}",
            10,
            "of 10 parameters is 40 B",
        ),
        ("{timing_only: true, payload: 1 MB}", None, "a model is 1 MB"),
    ],
)
def test_parameters_are_counted(workload: str, parameters: int | None, told: str) -> None:
    text = TIMING.replace("{timing_only: true, payload: 1024 B}", workload).replace("64 B/s", "1 Gbit/s")
    found = check(parse(text, changes=["schemes=[all_reduce]"]), torch.device("cpu"))
    assert found["parameters"] == parameters
    assert f"a model {told.removeprefix('a model ')}" in " ".join(said(found).split())


def test_what_is_found_is_told(trained: dict[str, Any]) -> None:
    text = said(trained)
    assert (
        "trained: 4 workers (us 2, eu 2); a gradient takes 50 ms to 150 ms on average; a model is 20 MB"
        in text
    )
    assert "0 to 2: host0 up, us->eu, host2 down" in text
    assert "at most for 3 repeats" in " ".join(text.split())
    assert "Estimates of processor time" in text
    assert "if they end as trials say, after" in " ".join(text.split())
    bounded = said(check(parse(TIMING), torch.device("cpu")))
    assert "all of it" in bounded
    assert "Scoring" not in bounded
    assert "between" not in bounded


def test_in_short_pairs_of_sites_come_once_and_memory_as_a_range(trained: dict[str, Any]) -> None:
    text = said(trained, why=False)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    within, between = (line for line in lines if line.startswith(("us, eu", "eu - us")))
    assert within.startswith("us, eu 4 ")
    assert between.startswith("eu - us 8 ")
    held = [row["memory"]["total_bytes"] for row in trained["schemes"]]
    names = ("all_reduce", "ad_psgd")
    ends = f"{format_bytes(held[0])} ({names[0]}) to {format_bytes(held[1])} ({names[1]})"
    assert f"Memory of a device: {ends}; --why has its parts." in lines
    assert "Message by message" not in text
    assert len(lines) <= 25


def test_memory_that_is_tight_is_shown_in_parts(trained: dict[str, Any]) -> None:
    scheme = trained["schemes"][0]
    for share, shown in ((1.9, True), (2.1, False)):
        limit = share * scheme["memory"]["total_bytes"]
        row = {**scheme, "memory": {**scheme["memory"], "limit_bytes": limit}}
        text = said({**trained, "schemes": [row]}, why=False)
        assert ("= parameters" in text) == shown


@pytest.mark.parametrize("name", MARKUP)
def test_names_of_schemes_sites_and_links_are_no_markup(trained: dict[str, Any], name: str) -> None:
    scheme = trained["schemes"][0]
    route = {
        **trained["routes"][0],
        "from": name,
        "example": {"source": 0, "destination": 1, "links": [name]},
    }
    named = {
        **trained,
        "sites": {name: 2, "eu": 2},
        "routes": [route],
        "links": [{"name": name, "bytes_per_s": 1.0, "varies": True}],
        "schemes": [{**scheme, "label": name}, {**scheme, "problem": f"cannot {name}"}],
    }
    text = said(named)
    assert f"({name} 2, eu 2)" in text
    assert f"(varies)  0 to 1: {name}" in text
    assert text.count(name) == 6


@pytest.mark.usefixtures("little_work")
def test_repeats_until_the_answer_is_clear_count_with_the_most() -> None:
    found = check(parse(TRAINED, changes=["repeats=auto"]), torch.device("cpu"))
    assert found["repeats"] == 30
    assert json.dumps(found)


def test_the_command_line(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(TIMING)
    arguments = ["check", str(path), "--set", "schemes=[all_reduce]"]
    found = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).stdout)
    assert found["schemes"][0]["latency_s"] == 0.75
    assert "small: 4 workers" in CliRunner().invoke(app, arguments).stdout


def test_many_schemes_share_the_work_of_a_few() -> None:
    many = "[" + ", ".join(f"{{all_reduce: {{label: a{number}}}}}" for number in range(40)) + "]"
    scenarios = [parse(TRAINED, changes=[f"schemes={schemes}"]) for schemes in ("[all_reduce]", many)]
    alone, among = (step_cost(scenario, scenario.schemes[0]) for scenario in scenarios)
    assert among.steps < alone.steps / 4
    assert among.step_s == pytest.approx(alone.step_s, rel=0.2)


@pytest.mark.parametrize(
    ("without", "told"),
    [(("all_reduce", "local_sgd", "ad_psgd"), False), (("ad_psgd",), True)],
)
def test_an_all_reduce_is_named_where_a_scheme_makes_one(without: tuple[str, ...], told: bool) -> None:
    kept = (line for line in TIMING.splitlines() if not line.startswith(tuple(f"  - {x}" for x in without)))
    found = check(parse("\n".join(kept)), torch.device("cpu"))
    assert {row["label"] for row in found["schemes"] if "all_reduce" in row["exchanges"]} == (
        {"all_reduce", "local_sgd"} if told else set()
    )
    assert ("all-reduce is" in said(found)) == told


@pytest.mark.parametrize(
    ("scheme", "step_s"),
    [
        ("all_reduce: {part_reduce: true}", 12.95),  # 3 x 6.74 GB out and in again, over three pipes each
        ("diloco: {period: 100, compression: {qsgd: {bits: 8}}}", 1.938),
    ],
)
def test_shares_go_over_all_pipes_between_sites(scheme: str, step_s: float) -> None:
    text = ready_scenarios()["llm/four-sites"].read_text()
    before, _, rest = text.partition("schemes:")
    scenario = parse(f"{before}schemes: [{scheme}]\nstop:{rest.partition('stop:')[2]}")
    assert step_cost(scenario, scenario.schemes[0]).step_s == pytest.approx(step_s, rel=1e-3)
