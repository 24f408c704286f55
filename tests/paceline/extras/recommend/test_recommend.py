"""Recommendations: the candidates, their race, what it did not try, and periods by seconds."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from benchmarks.board.diloco_measured.mapping import SCENARIO
from benchmarks.board.tables import HERE
from benchmarks.recommend import BARS, periods
from benchmarks.validation.design import CELLS
from paceline.commands.app import app
from paceline.extras.recommend.candidates import impossible, outdone, with_candidates
from paceline.extras.recommend.plan import SHARE, smallest_period, smallest_periods
from paceline.extras.recommend.recommend import (
    FINALISTS,
    PATIENT,
    Race,
    advise,
    amount_of,
    check_goal,
    only,
    run_race,
)
from paceline.sim.config.csv_tables import read_table
from paceline.sim.config.units import parse_bandwidth, parse_duration
from paceline.sim.errors import InputError, RunError
from paceline.sim.experiments.costs.step_cost import follow_whole
from paceline.sim.experiments.jobs import JobProcesses, PlannedRun
from paceline.sim.experiments.prepare import resolve
from paceline.sim.experiments.simulate import begin
from paceline.sim.records.folder import read_results
from paceline.sim.records.run import Run
from paceline.sim.records.scenario_facts import MEASURED
from paceline.sim.scenario.schema import Scenario, load, parse
from tests.support.made_runs import made_run

TRAINED = """
name: raced
workload: {task: digits-mlp, batch_size: 16, optimizer: {lr: 0.1}, payload: 10 MB}
cluster:
  workers: 4
  compute: {time: 50 ms}
  network: {latency: 10 ms, bandwidth: 100 Mbit/s}
schemes: [all_reduce, local_sgd: {period: 16}]
stop: {target: {metric: test_accuracy, value: 0.9}, max_iterations: 400}
"""
SITES = TRAINED.replace("  workers: 4\n", "").replace(
    "{latency: 10 ms, bandwidth: 100 Mbit/s}",
    "{sites: {us: 2, eu: 2}, within: {latency: 1 ms}, between: {latency: 10 ms, bandwidth: 1 Gbit/s}}",
)
WITHOUT_TARGET = TRAINED.replace("target: {metric: test_accuracy, value: 0.9}, ", "")
TIMED = """
name: timed
workload: {timing_only: true, payload: PAYLOAD MB}
cluster: {workers: 4, compute: {time: 20 ms}, network: {latency: 2 ms, bandwidth: 1 Gbit/s}}
schemes: [all_reduce]
stop: {max_iterations: 1}
"""
SHAPE = "{layers: 1, width: 8, feed_forward: 8, vocabulary: 16, length: 4}"
seconds = st.floats(1e-3, 1e3)


def labels(scenario: Scenario) -> list[str]:
    return [entry.label for entry in scenario.schemes]


def test_own_schemes_come_first_and_none_comes_twice() -> None:
    whole = with_candidates(parse(TRAINED))
    assert labels(whole)[:2] == ["all_reduce", "local_sgd 16"]
    assert len(set(labels(whole))) == len(whole.schemes) == 27
    assert {"gossip ring of sites", "diloco 16 of sites"} <= set(labels(with_candidates(parse(SITES))))


def test_candidates_fit_the_device() -> None:
    memory = TRAINED.replace("workers: 4", "workers: 4\n  memory: 43 MB")
    assert set(labels(with_candidates(parse(memory)))) < set(labels(with_candidates(parse(TRAINED))))


@pytest.mark.parametrize(("memory", "shards"), [("750 MB", True), ("900 MB", False)])
def test_shards_are_tried_where_all_reduce_is_too_large(memory: str, shards: bool) -> None:
    """A model of 102 MB, its gradient, their mean, the replaced one and outputs of layers take 814 MB."""
    text = TRAINED.replace("payload: 10 MB", "layer_profile: resnet-50")
    text = text.replace("workers: 4", f"workers: 4\n  memory: {memory}")
    scenario = parse(text.replace("[all_reduce, local_sgd: {period: 16}]", "[sharded: {prefetch: 0}]"))
    assert ("all_reduce" in labels(with_candidates(scenario))) is not shards
    assert ({"sharded optimizer"} <= set(labels(with_candidates(scenario)))) is shards
    assert ("sharded inside hosts" in impossible(scenario)) is shards  # hosts of one GPU each


def test_where_nothing_is_trained_the_own_schemes_are_all() -> None:
    timed = parse(TIMED.replace("PAYLOAD", "1"))
    assert with_candidates(timed) == timed


def test_a_code_or_a_longer_period_has_to_save_time() -> None:
    whole = with_candidates(parse(TRAINED))
    alike = dict.fromkeys(labels(whole), 1.0)
    gone = outdone(whole, alike)
    assert {"local_sgd 64", "local_sgd 16 8 bit", "gossip ring 8 bit", "all_reduce bf16"} <= gone
    assert not {"local_sgd 4", "diloco 64", "gossip ring", "ad_psgd"} & gone
    assert "local_sgd 64" not in outdone(whole, {**alike, "local_sgd 64": 0.9})


def test_periods_by_time_stay_beside_those_of_steps() -> None:
    """They have fewer examples, so that nothing is outdone by them; the smallest is found with them."""
    timed = TRAINED.replace("period: 16", "period: {by: time, steps: 16}")
    whole = with_candidates(parse(timed))
    assert labels(whole)[1] == "local_sgd"
    gone = outdone(whole, {**dict.fromkeys(labels(whole), 1.0), "local_sgd": 0.5})
    assert not {"local_sgd", "local_sgd 4"} & gone
    assert "local_sgd 64" in gone
    slow = timed.replace("  network", "  stragglers: [{workers: [3], slowdown: 2}]\n  network")
    texts = slow, slow.replace("{by: time, steps: 16}", "16")
    by_time, plain = (smallest_periods(parse(text))[0] for text in texts)
    assert by_time["step_s"] == pytest.approx(0.05, rel=0.05)
    assert plain["step_s"] == pytest.approx(0.1, rel=0.05)


def test_fragments_and_a_longer_delay_have_to_save_time() -> None:
    whole = with_candidates(parse(TRAINED))
    streaming = {x for x in labels(whole) if " late " in x}
    assert len(streaming) == 6
    alike = dict.fromkeys(labels(whole), 1.0)
    assert streaming <= outdone(whole, alike)
    assert not {"diloco 16 outer 0.35", "diloco 64 outer 0.35"} & outdone(whole, alike)
    quick = {
        **alike,
        "diloco 64 in 2 late 3": 0.9,
        "diloco 64 in 2 late 12": 0.89,
        "diloco 64 in 4 late 3": 0.8,
    }
    assert streaming - outdone(whole, quick) == {"diloco 64 in 2 late 3", "diloco 64 in 4 late 3"}


def test_the_answer_says_how_to_run_the_first() -> None:
    answer = advice({"all_reduce": 2.0, "local_sgd 16": 1.0})
    assert answer["text"][1].startswith("To run it, torch ")
    assert "PeriodicModelAverager(period=16)" in answer["text"][1]
    assert [row["framework"] for row in answer["to_run"]] == ["torch", "torchft", "torchtitan", "hivemind"]
    assert advice({"all_reduce": 2.0}, hours=1e-9)["to_run"] == []


RACED = only(
    with_candidates(parse(TRAINED)), ("all_reduce", "local_sgd 4", "diloco 64", "gossip ring", "ad_psgd")
)


class Table:
    """Made runs: a time to the target for each candidate and learning rate, cut at the limit."""

    def __init__(self, times: dict[tuple[str, float], float]) -> None:
        self.times, self.limits, self.seeds = times, list[tuple[float, float]](), set[int]()

    def time_s(self, planned: PlannedRun) -> float:
        rule = planned.entry.optimizer
        assert rule is not None
        assert rule.lr is not None
        return self.times[planned.entry.label, rule.lr]

    def __call__(self, planned: Sequence[PlannedRun]) -> list[Run]:
        runs = []
        for each in planned:
            time_s, limit_s = self.time_s(each), each.scenario.stop.max_time or math.inf
            self.limits.append((time_s, limit_s))
            self.seeds.add(each.seed)
            reached_s = time_s if time_s <= limit_s else None
            runs.append(
                made_run(each.entry.label, each.seed, reached_s=reached_s, wall_s=min(time_s, limit_s))
            )
        return runs


@given(st.data())
@settings(max_examples=10)
def test_without_noise_the_race_ends_with_the_best_values_of_the_best(data: st.DataObject) -> None:
    scenario = RACED
    names, rates = labels(scenario), (0.0333, 0.1, 0.3)
    times = {(name, rate): data.draw(seconds) for name in names for rate in rates}
    table = Table(times)
    race = Race(scenario, {name: data.draw(seconds) for name in names}, table, ("test_accuracy", False))
    tuned = race.finalists()
    best = min(times.values())
    chosen = tuned[0]["label"], float(str(tuned[0]["chosen"]["optimizer.lr"]))
    assert times[chosen] == best
    assert 1 <= len(tuned) <= FINALISTS
    assert race.num_trials == len(table.limits)
    assert len(table.seeds) == 3
    assert not table.seeds & set(range(scenario.seed, scenario.seed + 100))
    assert table.limits[-1][1] == pytest.approx(PATIENT * best)


@given(st.sets(st.sampled_from(labels(RACED)), min_size=2, max_size=4), st.data())
@settings(max_examples=10)
def test_candidates_with_equal_trials_are_one(alike: set[str], data: st.DataObject) -> None:
    """As periods longer than a run are."""
    shared = {rate: data.draw(seconds) for rate in (0.0333, 0.1, 0.3)}
    own = st.floats(2e3, 3e3)  # behind
    times = {
        (name, rate): shared[rate] if name in alike else data.draw(own)
        for name in labels(RACED)
        for rate in shared
    }
    race = Race(RACED, dict.fromkeys(labels(RACED), 1.0), Table(times), ("test_accuracy", False))
    ends = [each["label"] for each in race.finalists()]
    assert ends[0] == next(name for name in labels(RACED) if name in alike)
    assert not alike.intersection(ends[1:])


class AllDiverge(JobProcesses):
    """Processes in which no training succeeds."""

    def run_all(self, planned: Sequence[PlannedRun], *_: Any, **__: Any) -> Iterator[Run]:
        for each in planned:
            yield made_run(each.entry.label, each.seed, reached_s=None, status="diverged")


def test_without_any_score_there_is_no_goal() -> None:
    scenario = resolve(parse(WITHOUT_TARGET), torch.device("cpu"))
    with pytest.raises(RunError, match="all trials diverged; try smaller learning rates"):
        run_race(scenario, hours=1.0, processes=AllDiverge())


def test_runs_beyond_the_money_are_behind() -> None:
    scenario = only(with_candidates(parse(TRAINED)), {"all_reduce", "local_sgd 16"})
    times = {("all_reduce", rate): 1.0 for rate in (0.0333, 0.1, 0.3)}
    table = Table(times | {("local_sgd 16", rate): 2.0 for rate in (0.0333, 0.1, 0.3)})
    race = Race(scenario, dict.fromkeys(labels(scenario), 1.0), table, ("test_accuracy", False))
    race.afford = lambda run: run.label != "all_reduce"
    assert race.finalists()[0]["label"] == "local_sgd 16"


def advice(
    times: dict[str, float], candidates: tuple[str, ...] = (), seeds: int = 6, **limits: Any
) -> dict[str, Any]:
    """Advice after a race of made runs; ``candidates``: further labels that were not tried."""
    raced = only(with_candidates(parse(TRAINED)), times)
    runs = [made_run(label, seed, reached_s=x) for seed in range(seeds) for label, x in times.items()]
    race = Race(
        raced, dict.fromkeys((*times, *candidates), 1.0), lambda planned: [], ("test_accuracy", False)
    )
    return advise(raced, runs, race, **limits)


def test_no_order_is_said_to_hold_where_nothing_was_priced() -> None:
    answer = advice({"all_reduce": 1.1, "local_sgd 16": 1.0}, seeds=1)
    of = "of 2 candidates in 0 trials and 2 runs."
    assert answer["text"][0] == f"Recommended: local_sgd 16 (not settled), {of}"
    assert [row["label"] for row in answer["front"]] == ["local_sgd 16"]
    assert not any("stays ahead" in each or "times the" in each for each in answer["text"])
    assert "(not settled)" not in advice({"all_reduce": 2.0, "local_sgd 16": 1.0})["text"][0]


def test_what_a_few_drawn_averages_decide_is_not_settled() -> None:
    drawn = parse(TRAINED.replace("local_sgd: {period: 16}", "fedavg: {period: 16, participation: 0.5}"))
    times = {"all_reduce": 3.0, "fedavg": 1.0}
    race = Race(drawn, times, lambda planned: [], ("test_accuracy", False))
    answer = advise(drawn, [made_run(label, 0, reached_s=x) for label, x in times.items()], race)
    assert answer["text"][0].startswith("Recommended: fedavg (not settled)")


def test_what_was_not_tried_is_named() -> None:
    answer = advice({"all_reduce": 2.0}, ("local_sgd 64", "all_reduce bf16"))
    said = "Not tried, since a plainer candidate's step is as fast: local_sgd 64, all_reduce bf16."
    assert said in answer["text"]
    assert "of 1 candidates" in answer["text"][0]
    memory = parse(TRAINED.replace("workers: 4", "workers: 4\n  memory: 43 MB"))
    gone, whole = impossible(memory), {*labels(with_candidates(parse(TRAINED)))}
    assert gone.keys() - impossible(parse(TRAINED)) == whole - {*labels(with_candidates(memory))}
    texts = [x for x in advice({"all_reduce": 2.0}, impossible=gone)["text"] if "Not possible" in x]
    assert len(texts) == 2
    assert all(any(label in each for each in texts) for label in gone)
    assert "has 43 MB" in texts[0]
    assert "sites" in texts[1]


def test_the_scenarios_own_schemes_that_fell_out_of_the_race_are_named() -> None:
    whole = with_candidates(parse(TRAINED))
    last = only(whole, {"local_sgd 16", "ad_psgd"})
    race = Race(whole, dict.fromkeys(labels(whole), 1.0), lambda planned: [], ("test_accuracy", False))
    runs = [made_run(label, 0) for label in labels(last)]
    sentence = "Of the scenario's schemes, behind others in the trials and not run: all_reduce."
    assert sentence in advise(last, runs, race, own=2)["text"]  # all_reduce and local_sgd
    kept = only(whole, {"all_reduce", "local_sgd 16"})
    assert not any("behind others" in each for each in advise(kept, runs, race, own=2)["text"])


@pytest.mark.parametrize("unit", ["EUR", "$"])
@pytest.mark.parametrize(
    ("budget", "hours", "first"),
    [
        (math.inf, math.inf, "local_sgd 16"),
        (5.0, math.inf, "all_reduce"),
        (1.0, math.inf, None),
        (math.inf, 1.1 / 3600, "local_sgd 16"),
        (5.0, 1.1 / 3600, None),
    ],
)
def test_what_costs_or_takes_more_than_it_may_is_no_advice(
    budget: float, hours: float, first: str | None, unit: str
) -> None:
    priced = parse(f"{SITES}price: {{worker_hour: 3600 {unit}, egress: 2 {unit}}}\n")
    two, sent = only(with_candidates(priced), ["all_reduce", "local_sgd 16"]), {"us": {"eu": 10**9}}
    runs = [made_run("all_reduce", seed, reached_s=1.2) for seed in range(6)]  # 4.8 EUR
    runs += [replace(made_run("local_sgd 16", seed, reached_s=1.0), between=sent) for seed in range(6)]
    race = Race(two, {"all_reduce": 1.0, "local_sgd 16": 1.0}, lambda planned: [], ("test_accuracy", False))
    answer, paid = advise(two, runs, race, budget, hours=hours), "$5" if unit == "$" else "5 EUR"
    text = " ".join(answer["text"])
    assert answer["first"] == first
    assert (f"Over the {paid} that may be spent: local_sgd 16" in text) == (budget == 5.0)
    assert ("All_reduce takes more than the 0.000305556 h: 1.2 s." in text) == (hours < 1.0)
    assert answer["late"] == ({"all_reduce": 1.2} if hours < 1.0 else {})


@pytest.mark.slow
@pytest.mark.parametrize("other", [["--hours", "2"], ["--budget", "5 EUR"], ["--set", "seed=1"], []])
def test_unfinished_trials_serve_only_the_same_goal(tmp_path: Path, other: list[str]) -> None:
    scenario, out = tmp_path / "raced.yaml", tmp_path / "out"
    scenario.write_text(TRAINED + "price: {worker_hour: 2 EUR}\ncollectives: {all_reduce: ring}\n")
    whole = with_candidates(load(scenario))
    command = "recommend" if other else "recommend --hours 3"
    with begin(whole, torch.device("cpu"), out, force=False, say=print, command=command) as (_, parts):
        parts.keep("trial", 0, made_run(whole.schemes[0].label))
    ended = CliRunner().invoke(
        app, ["recommend", str(scenario), "--out", str(out), "--device", "cpu", *other]
    )
    assert isinstance(ended.exception, InputError)
    assert "holds unfinished runs, but they" in str(ended.exception)
    assert (out / "parts" / "trial-000000").is_dir()


@pytest.mark.slow
def test_the_folder_keeps_the_answer(tmp_path: Path) -> None:
    scenario, out = tmp_path / "raced.yaml", tmp_path / "out"
    scenario.write_text(TRAINED)
    ended = CliRunner().invoke(app, ["recommend", str(scenario), "--out", str(out), "--json", "--jobs", "1"])
    assert ended.exit_code == 0, ended.output
    answer = json.loads((out / "recommend.json").read_text())
    assert json.loads(ended.stdout)["recommendation"] == answer
    assert answer["text"][0].startswith(f"Recommended: {answer['first']} (not settled), of ")
    assert read_results(out).summary["runs"]


@pytest.mark.parametrize("command", ["recommend", "throughput"])
@pytest.mark.usefixtures("little_work")
def test_one_host_needs_no_network(command: str, tmp_path: Path) -> None:
    alone = TIMED.replace("PAYLOAD", "1").replace("workers: 4", "workers: 1")
    alone = alone.replace("[all_reduce]", "[local_sgd: {period: 4}, diloco: {period: 8}]")
    if command == "throughput":
        alone = alone.replace("payload: 1 MB", f"batch_size: 1, layer_profile: {{transformer: {SHAPE}}}")
    (scenario := tmp_path / "alone.yaml").write_text(alone)
    said = CliRunner().invoke(app, [command, str(scenario)]).stdout
    assert "bit/s" not in said
    assert "1 steps" not in said
    advice = "local_sgd, diloco: average in every step. A step takes 20 ms, an average 0 s"
    assert (advice if command == "recommend" else "any") in " ".join(said.split())


@given(seconds, seconds)
def test_the_smallest_period_keeps_to_its_share(step_s: float, average_s: float) -> None:
    period = smallest_period(step_s, average_s)
    assert average_s <= SHARE * (period * step_s + average_s) * (1 + 1e-8)
    assert period == 1 or average_s > SHARE * ((period - 1) * step_s + average_s) * (1 - 1e-8)


@pytest.mark.slow
@given(st.floats(0.1, 20.0))
@settings(max_examples=3)
def test_the_period_is_that_of_the_steps_that_are_followed(payload: float) -> None:
    scenario = resolve(parse(TIMED.replace("PAYLOAD", f"{payload:.3f}")), torch.device("cpu"))
    (row,) = smallest_periods(scenario)
    for period in {row["period"], max(1, row["period"] - 1)}:
        entry = parse(
            TIMED.replace("PAYLOAD", "1").replace("[all_reduce]", f"[local_sgd: {{period: {period}}}]")
        )
        step_s = follow_whole(scenario, entry.schemes[0]).step_s
        assert (step_s <= 0.02 / (1 - SHARE) * (1 + 1e-6)) == (period == row["period"])


@pytest.mark.slow
def test_periods_agree_with_a_strangers_measurements() -> None:
    """Where the network's rate is what was measured, without a run at that rate."""
    apart = {rate: mine / measured - 1 for rate, mine, measured in periods()}
    assert set(BARS) < set(apart)
    assert all(abs(apart[rate]) <= 0.1 for rate in BARS)


@pytest.mark.slow
def test_more_bytes_never_shorten_the_period() -> None:
    rates = ("5 Gbit/s", "1 Gbit/s", "200 Mbit/s")
    least = [
        smallest_periods(load(SCENARIO, [f"cluster.network.bandwidth={rate}"]))[0]["period"] for rate in rates
    ]
    assert least == sorted(least)


def test_the_measured_ranges_are_those_of_the_tables() -> None:
    table = read_table(HERE / "netem_collectives" / "measured.csv")
    rows = [dict(zip(table.names, cells, strict=True)) for _, cells in table.rows]
    for transport, ranges in MEASURED.items():
        mine = [row for row in rows if row["transport"] == transport]
        cells = list(CELLS) if transport == "gloo" else []
        counts = [*(int(row["workers"]) for row in mine), *(cell.workers for cell in cells)]
        latencies = [*(parse_duration(row["latency"]) for row in mine), *(c.latency_ms / 1000 for c in cells)]
        rates = [parse_bandwidth(row["bandwidth"]) for row in mine if row["bandwidth"]]
        rates += [cell.mbit * 1e6 / 8 for cell in cells]
        for name, values in (("workers", counts), ("latency", latencies), ("bandwidth", rates)):
            assert ranges[name] == pytest.approx((min(values), max(values)))


@pytest.mark.parametrize(
    ("text", "hours", "budget", "tokens", "message"),
    [
        (WITHOUT_TARGET, None, None, None, "add one, or say --hours"),
        (TRAINED, 0.0, None, None, "--hours 0: must be more than 0, and finite"),
        (TRAINED, None, "-1 EUR", None, "--budget: '-1 EUR' is no price"),
        (TRAINED, None, "5 EUR", None, "--budget: needs prices in EUR, such as"),
        (TRAINED + "price: {worker_hour: 1 $}\n", None, "5 EUR", None, "needs prices in EUR, such as"),
        (TRAINED, None, None, 1e9, "--tokens: goes with workload.timing_only"),
        (TIMED.replace("PAYLOAD", "1"), 1.0, None, None, "say for how many --tokens"),
        (TIMED.replace("PAYLOAD", "1"), None, "$5", None, "say for how many --tokens"),
    ],
)  # fmt: skip
def test_a_race_needs_a_goal(
    text: str, hours: float | None, budget: str | None, tokens: float | None, message: str
) -> None:
    def check(scenario: Scenario) -> None:
        check_goal(scenario, hours, tokens, hours is not None or budget is not None)
        amount_of(scenario, budget)

    with pytest.raises(InputError, match=message):
        check(parse(text))
