"""An honest run in which other messages were first than predicted passes, and a slow one does not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import median

import pytest
from rich.console import Console
from typing_extensions import override

from paceline.realrun.calibration import validate
from paceline.realrun.calibration.validate import DRAWS, simulate_again, with_chance
from paceline.realrun.driver.rank_log import Timing
from paceline.realrun.launch.cells import Result, RunRequest, requested_job
from paceline.reports.tables import render_comparison
from paceline.sim.network.profile import Profile
from paceline.sim.records.comparison import Comparison, compare, judge
from paceline.sim.records.intervals import of_runs
from paceline.sim.scenario.schema import parse
from tests.realrun.calibration.test_validate import SimulatedRanks
from tests.sim.records.test_comparison import run as made
from tests.support.made_measurements import exact_fit

SCENARIO = """
name: small
seed: 3
workload: {task: quadratic, dimension: 20, examples: 64, batch_size: 1, optimizer: {lr: 0.05}}
cluster: {workers: 4, compute: {time: 5 ms}, network: {latency: 1 ms, bandwidth: 1 Gbit/s}}
evaluate: {every: 1 step}
schemes: [ad_psgd]
stop: {target: {metric: train_loss, value: 6.5}, max_iterations: 14}
repeats: 2
"""


@cache
def unsteady() -> Profile:
    """A machine that wakes up late, by 8 ms every fourth time."""
    late_s = tuple(1e-4 + 8e-3 * (k % 4 == 0) for k in range(200))
    return exact_fit().profile.model_copy(update={"lateness_s": late_s})


class OtherMood(SimulatedRanks):
    """Ranks whose machine is in a mood of its own, and takes ``slower`` times as long."""

    def __init__(self, mood: int, slower: float = 1.0) -> None:
        super().__init__()
        self._mood, self._by = mood, slower

    @override
    def run(self, request: RunRequest, progress: Callable[[int], None] | None = None) -> Result:
        run = simulate_again(requested_job(request, 0), unsteady(), self._mood)
        assert run.time_to_target_s is not None
        met_s, end_s = self._by * run.time_to_target_s, self._by * run.wall_clock_s
        run = replace(run, source="measured", wall_clock_s=end_s, time_to_target_s=met_s)
        return Result(run, (Timing(18),))


def validated(ranks: OtherMood) -> Comparison:
    return validate.validate(parse(SCENARIO), ranks, unsteady(), None, lambda _: None, 1.5).comparison


def table(comparison: Comparison) -> str:
    console = Console(width=200)
    with console.capture() as captured:
        console.print(render_comparison(comparison))
    return captured.get()


@pytest.mark.slow
def test_an_honest_run_whose_messages_came_in_another_order_passes() -> None:
    found = validated(OtherMood(4))
    assert max(abs(cell["error_pct"]) for cell in found["cells"]) > 3.5
    typical = [cell["error_pct"] for cell in found["cells"] if cell["metric"] == "time_to_target_s"]
    assert abs(median(typical)) > 1.5  # what the tolerance alone would have failed
    assert found["verdict"]["outcome"] == "pass", found["verdict"]["text"]
    assert "inside what 30 runs give: " in table(found)
    assert {(row["label"], row["metric"]) for row in found["means"]} >= {("ad_psgd", "time_to_target_s")}


@pytest.mark.slow
def test_a_run_that_chance_does_not_explain_fails() -> None:
    found = validated(OtherMood(2, 1.4))
    assert found["verdict"]["outcome"] == "fail"
    assert "outside what 30 runs give: " in table(found)


def test_what_chance_does_not_decide_keeps_its_limit() -> None:
    predicted = [made(label, 10.0) for label in ("gossip", "ad_psgd")]
    real = [made("gossip", 10.8, source="measured"), made("ad_psgd", 11.4, source="measured")]
    again = {("ad_psgd", 1): [made("ad_psgd", 9.0 + draw / 10) for draw in range(30)]}
    found = judge(with_chance(compare("s", predicted, real), real, again), [])
    assert found["verdict"]["outcome"] == "fail"
    assert "off by up to 7.41 % (gossip)" in found["verdict"]["text"]
    later = [made("gossip", 10.3, source="measured"), real[1]]
    assert (
        judge(with_chance(compare("s", predicted, later), later, again), [])["verdict"]["outcome"] == "pass"
    )


def test_a_mean_fails_where_each_of_its_values_may_be_chance() -> None:
    predicted = [made("ad_psgd", 10.0, seed) for seed in range(4)]
    real = [made("ad_psgd", 11.9, seed, source="measured") for seed in range(4)]
    again = {
        ("ad_psgd", seed): [
            made("ad_psgd", 8.0 + (7 * draw + 11 * seed) % 30 * 4 / 29, seed) for draw in range(30)
        ]
        for seed in range(4)
    }
    compared = compare("s", predicted, real, asynchronous=["ad_psgd"])
    assert judge(compared, [])["verdict"]["outcome"] == "fail"
    found = judge(with_chance(compared, real, again), [])
    assert "inside what 30 runs give: 8 to 12 s" in table(found)
    (mean,) = (row for row in found["means"] if row["metric"] == "time_to_target_s")
    assert mean["simulated_s"][1] < 11.3
    assert found["verdict"]["outcome"] == "fail"


def test_the_range_of_thirty_runs_and_its_nine_tenths() -> None:
    values = [float(k) for k in range(1, 31)]
    assert len(DRAWS) == 30
    assert of_runs(values) == [1.0, 30.0]
    assert of_runs(values, 0.9) == pytest.approx([1.55, 29.45])
