"""One scoring rule for all schemes: what is kept, what is scored, and how little the answer hangs on it."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.drivers.event import EventDriver
from paceline.sim.errors import InputError
from paceline.sim.experiments.parity import Recorder, compare_iterates
from paceline.sim.experiments.prepare import prepare, resolve, resolved_in
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.run import BRACKET, Run
from paceline.sim.scenario.schema import Scenario, dump, parse
from paceline.sim.training import snapshots
from paceline.sim.training.scoring import as_they_are
from paceline.sim.training.snapshots import KEPT_BYTES, Keep, keep_rule
from tests.support.factory import scored

SCENARIO = """\
name: one-rule
workload: {task: digits-mlp, batch_size: 16, optimizer: {lr: 0.1}}
cluster:
  workers: 4
  compute: {time: 10 ms, jitter: {lognormal: {cv: 0.3}}}
  stragglers: [{workers: [3], slowdown: 3}]
  network: {latency: 5 ms, bandwidth: 20 Mbit/s}
evaluate: {every: EVERY steps}
schemes: [SCHEME]
stop: {max_time: 1 min, target: {metric: test_accuracy, value: 0.7}}
gradients: looped
"""
SCHEMES = ("all_reduce", "{local_sgd: {period: 8}}", "{gossip: {topology: ring}}", "ad_psgd",
           "{easgd: {period: 4, pull: 0.5, asynchronous: true}}")  # fmt: skip


def scenario(scheme: str, every: int = 10, **evaluate: str) -> Scenario:
    changes = [f"evaluate.{key}={value}" for key, value in evaluate.items()]
    return parse(SCENARIO.replace("SCHEME", scheme).replace("EVERY", str(every)), "scenario", changes)


def simulated(asked: Scenario) -> Run:
    (run,) = simulate(asked)
    return run


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_time_to_target_hardly_depends_on_how_often_models_are_scored(scheme: str) -> None:
    times = [simulated(scenario(scheme, every)).time_to_target_s or 0.0 for every in (1, 10, 30)]
    assert times[0] > 0
    # A score may go up and down across the target: a coarse look may miss a first, short visit.
    assert times[1] <= times[0] * 1.05 + 10 * 0.06
    assert times[2] <= times[0] * 1.05 + 30 * 0.06
    assert times[0] <= min(times[1:]) * 1.02 + 1e-9


@pytest.mark.parametrize("scheme", SCHEMES)
def test_synchronous_and_asynchronous_schemes_are_scored_by_one_rule(scheme: str) -> None:
    """At each scoring the workers have done ``every`` steps on average once more; all models are of then."""
    run = simulated(scenario(scheme))
    for each in run.evaluations:
        assert sum(each.steps) // 4 == each.step
    regular = [e for e in run.evaluations if e.step % 10 == 0]
    assert {e.step for e in regular} >= set(range(0, 10 * ((len(regular) - 1) // 2), 10))
    assert run.time_to_target_s is not None
    low_s, high_s = run.bracket_s or (0.0, 0.0)
    assert low_s < high_s == run.time_to_target_s


def test_models_are_kept_by_a_rule_that_follows_from_the_scenario() -> None:
    assert keep_rule(8, 20_000, 1000, 10) == Keep(10)
    assert keep_rule(8, KEPT_BYTES // 8, 1000, 12) == Keep(12, 12)  # at least one in every 12
    assert keep_rule(8, KEPT_BYTES // 8 // 12, 1000, 12) == Keep(12, 1, 0.005)
    assert keep_rule(8, KEPT_BYTES // 8 // 6, 1000, 12) == Keep(12, 2, 0.005)  # six fit between two scorings
    assert keep_rule(256, 4_000_000, None, 10) == Keep(10, 10)  # of one step more than 0.9 GiB
    assert keep_rule(16, 4_000_000, None, 10) == Keep(10, 1, 0.005)


@given(
    every=st.integers(1, 300),
    apart=st.integers(1, 20),
    share=st.sampled_from([0.0, 0.005, 0.01, 0.1]),
    first=st.integers(0, 20),
)
def test_what_is_kept_is_close_enough_and_no_more_than_is_reckoned_with(
    every: int, apart: int, share: float, first: int
) -> None:
    """Models after a multiple of ``every`` are kept; two of them lie ``apart``, or a share of the steps."""
    rule = Keep(every, max(each for each in snapshots.divisors(every) if each <= apart), share)
    kept = [done for done in range(1, (first + 1) * every + 1) if rule.at(done)]
    assert set(kept) >= set(range(every, (first + 1) * every + 1, every))
    for earlier, later in pairwise([0, *kept]):
        assert later - earlier <= max(rule.apart, share * later)
    assert sum(first * every < done for done in kept) <= rule.between
    if first == 0:
        assert len(kept) == rule.between


LARGER = """name: larger
workload: {task: digits-mlp, hidden: 150, batch_size: 16, optimizer: {lr: 0.3}}
cluster: {workers: 16, compute: {time: 300 ms, jitter: {lognormal: {cv: 0.2}}}, network: {latency: 5 ms}}
schemes: [SCHEME]
stop: {max_time: 30 min, target: {metric: test_accuracy, value: 0.9}}
"""


@pytest.mark.parametrize(
    "scheme",
    [
        "all_reduce",
        "ad_psgd",
        pytest.param("{gossip: {topology: ring}}", marks=pytest.mark.slow),
        pytest.param("{easgd: {period: 4, pull: 0.5, asynchronous: true}}", marks=pytest.mark.slow),
    ],
)
def test_the_time_to_target_of_larger_models_is_as_well_known(scheme: str) -> None:
    """16 workers with 11,260 parameters each: all models of 2,000 steps do not fit into what is kept."""
    times, kept = [], []
    for changes in ([], ["evaluate.keep=all"]):
        asked = resolve(parse(LARGER.replace("SCHEME", scheme), "s", changes), torch.device("cpu"))
        run = simulated(asked)
        low_s, high_s = run.bracket_s or (0.0, 0.0)
        assert high_s - low_s <= BRACKET * high_s
        times.append(high_s)
        kept.append(asked.evaluate.keep)
    assert kept[1] == "all"
    assert times[0] == pytest.approx(times[1], rel=0.02)


def test_models_that_are_kept_now_and_then_are_compared_step_by_step() -> None:
    """Against those of a measured run, whose digests have no steps beside them."""
    asked = scenario("all_reduce", keep="every 2 steps, then 9 %")
    job = replace(scored(prepare(asked, asked.schemes[0], 0), target=None), max_iterations=40)
    recorder = Recorder(None, None, job.scoring.every, job.scoring.on, None, as_they_are)
    EventDriver(job, [job.program(rank) for rank in range(job.workers)], recorder).run()
    kept = [2, 4, *range(6, 55, 2), *range(60, 120, 5)]
    steps = [step for step in range(1, 41) if job.scoring.keeps.at(step)]
    assert steps == [step for step in kept if step <= 40]
    iterates = tuple(tuple(recorder.digests[rank, step] for step in steps) for rank in range(4))
    (run,) = simulate(asked)
    verdict = compare_iterates(job, replace(run, iterates=iterates))
    assert verdict["says"] == "the same bits in all 80 models that the workers published"


def test_the_rule_is_written_into_the_resolved_scenario_and_obeyed() -> None:
    asked = scenario("ad_psgd")
    resolved = resolve(asked, torch.device("cpu"))
    assert resolved.evaluate.keep == "all"
    assert parse(dump(resolved)) == resolved
    assert resolved_in(dump(resolved), asked) == resolved
    closer = scenario("ad_psgd", keep="every 2 steps, then 0.5 %")
    assert parse(dump(closer)).evaluate.kept == Keep(10, 2, 0.005)
    seldom = scenario("ad_psgd", keep="every 5 steps")
    assert resolve(seldom, torch.device("cpu")).evaluate.keep == "every 5 steps"
    run = simulated(seldom)
    assert all(step % 5 == 0 for each in run.evaluations for step in each.steps)
    # the staleness that it causes: two steps of each worker on average
    regular = [e for e in run.evaluations if e.step and e.step % 10 == 0]
    stale = sum(e.step - sum(e.steps) / 4 for e in regular) / len(regular)
    assert 1.0 <= stale <= 3.0


@pytest.mark.parametrize("value", ["sometimes", "every 0 steps", "every -1 steps", "every 2 steps, then 0 %"])
def test_an_unknown_rule_is_refused(value: str) -> None:
    with pytest.raises(InputError, match="choose from: all, every K steps"):
        scenario("all_reduce", keep=f"'{value}'")


@pytest.mark.parametrize(
    "scheme", ["all_reduce", "{local_sgd: {period: 8}}", "{easgd: {period: 4, pull: 0.5}}"]
)
def test_the_averages_of_a_scheme_are_scored(scheme: str) -> None:
    run = simulated(scenario(scheme, on="averaged"))
    assert run.status == "completed"
    assert run.reached_target


def test_outer_is_the_average_that_a_scheme_publishes() -> None:
    outer = scenario("{diloco: {period: 4}}", on="outer")
    assert dump(outer) == dump(scenario("{diloco: {period: 4}}", on="averaged"))
    assert simulated(outer).status == "completed"


@pytest.mark.parametrize(
    "scheme",
    [
        "{gossip: {topology: ring}}",
        "ad_psgd",
        "{sgp: {topology: ring}}",
        "{easgd: {period: 4, asynchronous: true}}",
    ],
)
def test_a_scheme_without_averages_refuses_to_be_scored_on_them(scheme: str) -> None:
    with pytest.raises(InputError, match="publishes no average of all workers"):
        scenario(scheme, on="averaged")


def test_an_own_scheme_without_averages_says_so_at_the_end() -> None:
    asked = scenario("'tests.support.own_schemes:pairs'", on="averaged")
    run = simulated(parse(dump(asked), "scenario", ["stop.max_iterations=12"]))
    assert run.status == "partial"
    assert "published no average in 12 steps" in run.message


def test_only_what_counts_is_scored() -> None:
    run = simulated(scenario("all_reduce"))
    assert set(run.evaluations[-1].metrics) == {"train_loss", "test_accuracy", "consensus_distance"}
    both = parse(dump(scenario("all_reduce")), "scenario", ["stop.target.on=worst"])
    assert "test_accuracy_on_worst" in simulated(both).evaluations[-1].metrics
