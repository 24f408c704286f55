"""What is said of workers that differ in speed."""

from __future__ import annotations

import pytest

from paceline.sim.config.units import format_seconds
from paceline.sim.experiments.costs.step_cost import follow_whole
from paceline.sim.experiments.costs.unevenness import about_speeds
from paceline.sim.scenario.schema import Scenario, parse


def scenario(
    stragglers: str, scheme: str = "all_reduce", batch_size: str = "12", workers: int = 4
) -> Scenario:
    return parse(f"""\
name: uneven
workload: {{timing_only: true, payload: 1 MB, batch_size: {batch_size}}}
cluster:
  workers: {workers}
  compute: {{time: 120 ms}}
  stragglers: [{stragglers}]
  network: {{latency: 1 ms, bandwidth: 80 Mbit/s}}
schemes: [{scheme}]
stop: {{max_iterations: 5}}
""")


SLOW = "{workers: [3], slowdown: 3}"


def test_who_computes_and_what_shares_by_speed_would_save() -> None:
    """48 examples of speeds 3, 3, 3, 1: 15, 14, 14 and 5, which take 150 ms in place of 360."""
    waits, saves = about_speeds(scenario(SLOW), {"all_reduce": 0.5})
    assert waits == (
        "Of a step of all_reduce, 500 ms, computing takes 3 workers 120 ms (24 %), worker 3 360 ms (72 %); "
        "the rest is waiting."
    )
    assert "{by: speed, mean: 12}}', 5 to 15 examples" in saves
    given = scenario(SLOW)
    step_s = follow_whole(given, given.schemes[0]).step_s
    assert step_s > 0.5
    saves = about_speeds(given, {"all_reduce": step_s})[1]
    assert saves.endswith(f"it takes {format_seconds(step_s - 0.210)}, 210 ms less.")


def test_what_periods_by_time_would_save() -> None:
    """10 steps of 120 ms, and 3 of 360 ms in place of 10: 1.2 s in place of 3.6 s."""
    given = scenario(SLOW, "diloco: {period: 10}")
    step_s = follow_whole(given, given.schemes[0]).step_s
    _, _, saves = about_speeds(given, {"diloco": step_s})
    assert saves == (
        "With 'period: {by: time, steps: 10}', 3 to 10 local steps and 82 % of the examples, it takes "
        f"{format_seconds(step_s - 0.240)}, 240 ms less."
    )
    timed = scenario(SLOW, "diloco: {period: {by: time, steps: 10}}")
    assert follow_whole(timed, timed.schemes[0]).step_s == pytest.approx(step_s - 0.240)
    assert about_speeds(timed, {"diloco": step_s - 0.240}) == []


@pytest.mark.parametrize(
    ("stragglers", "scheme", "batch_size", "number"),
    [
        ("", "all_reduce", "12", 0),
        ("{workers: [3], slowdown: 1.02}", "all_reduce", "12", 0),
        ("{workers: [3], slowdown: 30, at: 5 steps, duration: 2 steps}", "all_reduce", "12", 0),
        (SLOW, "all_reduce: {quorum: 3}", "12", 0),
        (SLOW, "ad_psgd", "12", 0),
        (SLOW, "all_reduce", "1", 1),
        (SLOW, "all_reduce", "{by: speed, mean: 120}", 0),
    ],
)
def test_nothing_is_said_where_nothing_would_change(
    stragglers: str, scheme: str, batch_size: str, number: int
) -> None:
    given = scenario(stragglers, scheme, batch_size)
    assert len(about_speeds(given, {given.schemes[0].label: 0.5})) == number


def test_of_many_kinds_the_fastest_and_the_slowest_are_named() -> None:
    each = ", ".join(f"{{workers: [{rank}], slowdown: {1 + rank}}}" for rank in range(8))
    waits, saves = about_speeds(scenario(each, workers=8), {"all_reduce": 1.0})
    assert "worker 2 360 ms (36 %), worker 7 960 ms (96 %); the rest is waiting." in waits
    assert "4 to 35 examples" in saves


def test_the_shortest_step_is_told_and_a_scheme_without_one_left_out() -> None:
    given = scenario(SLOW, "all_reduce, diloco: {period: 10}")
    waits, *_ = about_speeds(given, {"all_reduce": 0.6, "diloco": 0.4})
    assert waits.startswith("Of a step of diloco, 400 ms, ")
    assert about_speeds(given, {}) == []
