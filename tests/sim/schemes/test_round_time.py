"""What an average costs besides its exchange (``round``), by hand. Times are exact in binary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.extras.recommend.plan import smallest_periods
from paceline.extras.replay.verify import verify_replay
from paceline.realrun.attach.attach import attach
from paceline.realrun.calibration.training_run import round_s
from paceline.sim.errors import InputError
from paceline.sim.experiments.costs.bounds import measure_bounds
from paceline.sim.experiments.costs.check import check
from paceline.sim.experiments.simulate import simulate, simulate_job
from paceline.sim.records.folder import write_results
from paceline.sim.records.run import Event
from paceline.sim.scenario.schema import Scenario, dump, parse, resolve_scenario
from tests.sim.experiments.test_check import said
from tests.support.both_drivers import assert_the_same
from tests.support.cluster_pool import Pool
from tests.support.factory import make_job, simulated
from tests.support.small_runs import WORKLOAD, measure

ROUND = {"round": "500 ms"}
COSTLY = {"local_sgd": {"period": 4, **ROUND}}
HERE = torch.device("cpu")


def scenario(*schemes: Any, **network: str) -> Scenario:
    written = {
        "name": "s",
        "workload": {"task": "quadratic", "dimension": 4, "batch_size": 4, "optimizer": {"lr": 0.1}},
        "cluster": {"workers": 2, "compute": {"time": "1 s"}, "network": {"latency": "0 s", **network}},
        "schemes": list(schemes), "stop": {"max_iterations": 16}, "evaluate": {"every": "4 steps"},
    }  # fmt: skip
    return resolve_scenario(written, None, ())


@pytest.mark.parametrize(
    ("name", "options", "took_s"),
    [
        ("local_sgd", {"period": 2}, 1.0),
        ("local_sgd", {"period": 2, "warmup": 2}, 1.5),
        ("local_sgd", {"period": 2, "quorum": 2}, 1.0),
        ("adaptive_local_sgd", {"initial_period": 2, "calibration": 4}, 1.0),
        ("post_local_sgd", {"switch_at": 2, "period": 2}, 0.5),
        ("slowmo", {"period": 2}, 1.0),
        ("fedavg", {"period": 2}, 1.0),
        ("fedavg", {"period": 2, "participation": 0.5}, 1.0),
        ("fedavg", {"period": 2, "quorum": 2}, 1.0),
        ("diloco", {"period": 2}, 1.0),
        ("diloco", {"period": 2, "deadline": "1 min"}, 1.0),
        ("diloco", {"period": 2, "fragments": 2}, 1.0),  # four parts of a half
        ("diloco", {"period": 2, "delay": 1}, 0.5),  # the last average arrives after the last step
    ],
)
def test_every_worker_stops_after_each_average(name: str, options: dict[str, Any], took_s: float) -> None:
    job = make_job(name, options | ROUND, workers=2)
    plain, costly = simulated(make_job(name, options, workers=2)), simulated(job)
    assert costly.wall_clock_s == plain.wall_clock_s + took_s == 4.0 + took_s
    of_rounds = [each.end_s - each.start_s for each in costly.events if each.operation == "spend_round"]
    assert sum(of_rounds) == 2 * took_s
    if simulate_job(job).engine == "lockstep":
        assert_the_same(job)


@pytest.mark.usefixtures("little_work")
def test_check_has_a_part_for_it_that_simulate_confirms() -> None:
    wanted = scenario(COSTLY, {"all_reduce": {}}, latency="125 ms")
    answer = check(wanted, HERE)
    costly, plain = answer["schemes"]
    assert (costly["compute_s"], costly["round_s"], plain["round_s"]) == (1.0, 0.125, None)
    assert costly["step_s"] == costly["compute_s"] + costly["latency_s"] + 0.125
    assert [row["step_s"] for row in answer["schemes"]] == [run.step_s for run in simulate(wanted)]
    head = next(line for line in said(answer).splitlines() if "a step" in line)
    assert head.split() == ["scheme", "a", "step", "compute", "rounds", "latency", "bandwidth", "sent"]
    assert "rounds" not in said(check(scenario("all_reduce"), HERE))


def test_it_is_software_in_what_bounds_a_scheme_and_part_of_an_average_in_a_period() -> None:
    wanted = scenario(COSTLY)
    bounds = measure_bounds(wanted, wanted.schemes[0])
    assert bounds is not None
    assert bounds["software"] == pytest.approx(0.125 / 1.125)
    (row,) = smallest_periods(wanted)
    assert (row["step_s"], row["average_s"], row["period"]) == pytest.approx((1.0, 0.5, 5))


def test_a_record_of_it_is_replayed(tmp_path: Path) -> None:
    wanted = scenario(COSTLY, {"diloco": {"period": 4, "deadline": "1 min", **ROUND}})
    write_results(tmp_path / "r", dump(wanted), wanted.name, list(simulate(wanted)))
    assert [each.same_bits for each in verify_replay(tmp_path / "r")] == [True, True]


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("local_sgd: {period: 4, round: 5}", "scenario:5: schemes.0.local_sgd.round"),
        ("diloco: {round: -1 s}", "scenario:5: schemes.0.diloco.round"),
        ("all_reduce: {round: 1 s}", "scenario:5: schemes.0.all_reduce.round"),
    ],
)
def test_a_wrong_one_is_named_with_its_line(written: str, says: str) -> None:
    text = (
        "name: s\nworkload: {timing_only: true, payload: 1 MB}\n"
        "cluster: {workers: 2, compute: {time: 1 s}, network: {latency: 0 s}}\n"
        f"schemes:\n  - {written}\nstop: {{max_iterations: 4}}\n"
    )
    with pytest.raises(InputError) as raised:
        parse(text)
    assert says in str(raised.value)


def test_processes_stop_as_long(four: Pool) -> None:
    options = {"period": 4, "round": "50 ms"}
    measured, _ = measure(four, "diloco", options, **WORKLOAD)
    predicted = simulated(make_job("diloco", options, **WORKLOAD))
    lasted = [
        each["end_s"] - each["start_s"] for each in measured["events"] if each["operation"] == "spend_round"
    ]
    assert len(lasted) == len([each for each in predicted.events if each.operation == "spend_round"]) == 12
    assert 0.05 <= min(lasted) <= 0.06
    assert measured["wall_clock_s"] >= predicted.wall_clock_s >= 0.15 + 12 * 0.004


def test_a_loop_of_its_own_takes_its_real_time() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with (
        pytest.raises(InputError, match=r"diloco\.round: a round takes its real time here"),
        attach(model, optimizer, {"diloco": ROUND}, steps=4),
    ):
        pass


def test_it_is_measured_as_what_steps_with_an_average_take_beyond_it() -> None:
    """Steps of 1 s with 0.125 s beside the gradient, and with 0.75 s more after an average of 2 s."""
    events, now_s = [], 0.0
    for step in range(9):
        events.append(Event(0, 0, -1, step, "gradient", now_s, now_s + 1, now_s, 0, -1))
        now_s += 1.125
        if step % 4 == 3:
            events.append(Event(0, 0, -1, step, "all_reduce", now_s, now_s + 2, now_s, 8, -1))
            now_s += 2.75
    assert round_s(events) == 0.75
    assert round_s([each for each in events if each.operation == "gradient"]) is None
