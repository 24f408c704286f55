"""One scoring rule for all schemes: what is kept, what is scored, and how little the answer hangs on it."""

from __future__ import annotations

import pytest
import torch

from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import is_resolved_from, resolve
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import Scenario, dump, parse
from paceline.sim.training.snapshots import KEPT_BYTES, keep_every

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
    assert keep_every(8, 20_000, 1000, 10) == 1
    assert keep_every(8, KEPT_BYTES // 8, 1000, 12) == 12  # at least one in every 12
    assert keep_every(8, KEPT_BYTES // 8 // 500, 1000, 12) == 2  # twice too many
    assert keep_every(8, KEPT_BYTES // 8 // 200, 1000, 12) == 6  # five times: the next divisor


def test_the_rule_is_written_into_the_resolved_scenario_and_obeyed() -> None:
    asked = scenario("ad_psgd")
    resolved = resolve(asked, torch.device("cpu"))
    assert resolved.evaluate.keep == "all"
    assert parse(dump(resolved)) == resolved
    assert is_resolved_from(resolved, asked)
    seldom = scenario("ad_psgd", keep="every 5 steps")
    assert resolve(seldom, torch.device("cpu")).evaluate.keep == "every 5 steps"
    run = simulated(seldom)
    assert all(step % 5 == 0 for each in run.evaluations for step in each.steps)
    # the staleness that it causes: two steps of each worker on average
    regular = [e for e in run.evaluations if e.step and e.step % 10 == 0]
    stale = sum(e.step - sum(e.steps) / 4 for e in regular) / len(regular)
    assert 1.0 <= stale <= 3.0


@pytest.mark.parametrize("value", ["sometimes", "every 0 steps", "every -1 steps"])
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
    assert "published no average" in run.message


def test_only_what_counts_is_scored() -> None:
    run = simulated(scenario("all_reduce"))
    assert set(run.evaluations[-1].metrics) == {"train_loss", "test_accuracy", "consensus_distance"}
    both = parse(dump(scenario("all_reduce")), "scenario", ["stop.target.on=worst"])
    assert "test_accuracy_on_worst" in simulated(both).evaluations[-1].metrics
