"""Shares of the wall clock that hold when the cluster is changed and simulated again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from paceline.sim.experiments.costs import bounds as bounding
from paceline.sim.experiments.costs import step_cost
from paceline.sim.experiments.costs.bounds import describe_schemes, measure_bounds
from paceline.sim.experiments.prepare import clock_only, prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.records.summary import Bounds
from paceline.sim.scenario.schema import Scenario, resolve_scenario
from paceline.sim.schemes import find_scheme

COSTS = ("compute", "waiting", "latency", "bandwidth", "software")


def scenario(
    scheme: Any,
    cluster: Mapping[str, Any] | None = None,
    stop: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | None = None,
) -> Scenario:
    network = {"latency": "10 ms", "bandwidth": "1 Gbit/s"}
    return resolve_scenario(
        {
            "name": "s",
            "workload": {"task": "quadratic", "payload": "10 MB", **(training or {"timing_only": True})},
            "cluster": {"workers": 4, "compute": {"time": "50 ms"}, "network": network, **(cluster or {})},
            "schemes": [scheme],
            "stop": dict(stop or {"max_iterations": 96}),
            "collectives": {"all_reduce": "ring_stop_and_wait"},
        },
        None,
        (),
    )


def bounds_of(scheme: Any, **cluster: Any) -> Bounds:
    wanted = scenario(scheme, cluster)
    bounds = measure_bounds(wanted, wanted.schemes[0])
    assert bounds is not None
    assert sum(bounds[cost] for cost in COSTS) == pytest.approx(1.0)  # type: ignore[literal-required]
    return bounds


@pytest.mark.parametrize("jitter", [None, {"lognormal": {"cv": 0.2}}])
def test_the_share_of_computing_counts_every_batch(jitter: Any) -> None:
    training = {"timing_only": True, "accumulate": 4}
    four = scenario("all_reduce", {"compute": {"time": "50 ms", "jitter": jitter}}, training=training)
    bounds = measure_bounds(four, four.schemes[0])
    assert bounds is not None
    exchange_s = 6 * (0.01 + 0.02)
    assert bounds["compute"] == pytest.approx(0.2 / bounds["step_s"], rel=0.01)
    assert bounds["step_s"] >= (0.2 + exchange_s) * (1 - 1e-9)
    assert (bounds["waiting"] > 0) == (jitter is not None)


def test_a_ring_all_reduce_by_hand() -> None:
    # 50 ms of computing, then 2 (n - 1) = 6 messages one after the other: 10 ms and 2.5 MB at 125 MB/s each.
    bounds = bounds_of("all_reduce")
    step_s = 0.05 + 6 * (0.01 + 0.02)
    assert bounds["step_s"] == pytest.approx(step_s)
    assert bounds["compute"] == pytest.approx(0.05 / step_s)
    assert bounds["latency"] == pytest.approx(0.06 / step_s)
    assert bounds["bandwidth"] == pytest.approx(0.12 / step_s)
    assert (bounds["waiting"], bounds["software"], bounds["waits_for"]) == (0, 0, [])
    assert not bounds["random"]
    assert bounds["by_bandwidth"] == []


def test_other_bandwidths_are_followed_where_there_is_a_target() -> None:
    stop = {"target": {"metric": "train_loss", "value": 0.1}, "max_iterations": 96}
    training = {"batch_size": 4, "optimizer": {"lr": 0.1}}
    wanted = scenario("all_reduce", stop=stop, training=training)
    bounds = measure_bounds(wanted, wanted.schemes[0])
    assert bounds is not None
    by_hand = [[x, pytest.approx(0.05 + 6 * (0.01 + 0.02 / x))] for x in (0.1, 0.3, 1.0, 3.0, 10.0)]
    assert bounds["by_bandwidth"] == by_hand


def test_overheads_of_software_have_a_share_of_their_own() -> None:
    network = {"latency": "10 ms", "bandwidth": "1 Gbit/s", "overhead": "5 ms"}
    bounds = bounds_of("all_reduce", network=network)
    assert bounds["software"] == pytest.approx(0.03 / (0.05 + 6 * 0.035))


def test_who_is_waited_for_has_a_name() -> None:
    stragglers = [{"workers": [2], "slowdown": 3}]
    bounds = bounds_of("all_reduce", stragglers=stragglers)
    step_s = 0.15 + 6 * 0.03
    assert bounds["compute"] == pytest.approx(0.05 / step_s)
    assert bounds["waiting"] == pytest.approx(0.1 / step_s)
    assert bounds["waits_for"] == [2]
    assert bounds["slow_workers"] == pytest.approx(bounds["waiting"])
    # Moments at which anybody is slow are nobody's own.
    moments = bounds_of("all_reduce", stragglers=[{"probability": 0.2, "slowdown": 5}])
    assert moments["waiting"] > 0.2
    assert (moments["waits_for"], moments["slow_workers"], moments["random"]) == ([], 0, True)


def test_a_step_is_elapsed_time_over_the_mean_number_of_steps() -> None:
    # Without barriers a worker that takes ten times as long costs a quarter of the pace, not nine tenths.
    bounds = bounds_of("ad_psgd", stragglers=[{"workers": [3], "slowdown": 10}])
    assert bounds["step_s"] < 0.15
    assert bounds["waiting"] < 0.5


def test_whole_periods_are_followed() -> None:
    bounds = bounds_of({"local_sgd": {"period": 40}})
    assert bounds["steps"] == 40  # of two periods the first counts as the start
    assert bounds["step_s"] == pytest.approx(0.05 + 0.18 / 40)


def test_a_graph_that_is_drawn_is_random_though_no_time_is() -> None:
    assert bounds_of({"gossip": {"topology": "ring"}})["random"] is False
    between = {"latency": "50 ms", "bandwidth": "1 Gbit/s"}
    network = {"sites": {"a": 2, "b": 2}, "within": {"latency": "1 ms", "bandwidth": "1 Gbit/s"}}
    drawn = bounds_of({"gossip": {"topology": "random_matching"}}, network={**network, "between": between})
    assert drawn["random"] is True


def test_what_cannot_be_followed_has_no_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounding, "MAX_CYCLE_WORK", 10)
    wanted = scenario("all_reduce")
    assert measure_bounds(wanted, wanted.schemes[0]) is None
    wanted = scenario({"local_sgd": {"period": 5000}})
    assert measure_bounds(wanted, wanted.schemes[0]) is None


def test_workers_that_crash_are_followed_without_crashing() -> None:
    stragglers = [{"workers": [2], "at": "3 steps", "crash": True}]
    assert bounds_of("all_reduce", stragglers=stragglers)["step_s"] == pytest.approx(0.05 + 6 * 0.03)


def test_a_scheme_says_what_it_does() -> None:
    wanted = scenario({"gossip": {"topology": "ring", "label": "ring"}})
    facts = describe_schemes(wanted, with_bounds=False)
    memory = facts["ring"].pop("memory")
    assert memory is not None
    assert memory["total_bytes"] == sum(memory["parts"].values())
    assert memory["parts"]["parameters"] == memory["parts"]["gradients"] == memory["parts"]["in flight"] / 4
    assert facts == {
        "ring": {
            "does": "Decentralised SGD: average with the neighbours of a topology at every step.",
            "bounds": None,
            "draws": False,
            "random": False,
        }
    }


def test_a_users_scheme_says_what_its_docstring_says() -> None:
    assert find_scheme("tests.support.own_schemes:lazy").does == "Local SGD, written again."
    assert find_scheme("tests.support.own_schemes:with_a_service").does == ""
    assert find_scheme("local_sgd").does.endswith("averaged every 'period' steps.")


def test_the_same_scenario_gives_the_same_bounds() -> None:
    cluster = {"compute": {"time": "50 ms", "jitter": {"lognormal": {"cv": 0.2}}}}
    assert bounds_of("ad_psgd", **cluster) == bounds_of("ad_psgd", **cluster)


CHANGED: Mapping[str, Mapping[str, Any]] = {
    "nothing": {"time": 50.0, "latency": 20.0, "rate": 1.0, "excess": 1.0},
    "latency": {"time": 50.0, "latency": 18.0, "rate": 1.0, "excess": 1.0},
    "bandwidth": {"time": 50.0, "latency": 20.0, "rate": 1 / 0.9, "excess": 1.0},
    "waiting": {"time": 50.0, "latency": 20.0, "rate": 1.0, "excess": 0.9},
    # The whole of every gradient: what an undisturbed worker takes, and what slow ones add.
    "compute and waiting": {"time": 45.0, "latency": 20.0, "rate": 1.0, "excess": 1.0},
}


def changed_scenario(name: str, scheme: Any, how: Mapping[str, Any]) -> Scenario:
    """A scenario as a user would write it with one cost a tenth smaller."""
    stragglers = [{"workers": [3], "slowdown": 1 + how["excess"] * 2}]
    network: dict[str, Any] = {
        "latency": f"{how['latency']} ms",
        "bandwidth": f"{400 * how['rate']!r} Mbit/s",
    }
    jitter: dict[str, Any] = {}
    if name == "two sites":
        network = {
            "sites": {"a": 3, "b": 3},
            "within": {"latency": f"{how['latency'] / 100} ms", "bandwidth": f"{10 * how['rate']!r} Gbit/s"},
            "between": {"latency": f"{2 * how['latency']} ms", "bandwidth": f"{how['rate']!r} Gbit/s"},
        }
    if name == "jitter":
        stragglers = []
        jitter = {"jitter": {"lognormal": {"cv": 0.3}}}
    return scenario(
        scheme,
        {
            "workers": 6,
            "compute": {"time": f"{how['time']} ms", **jitter},
            "stragglers": stragglers,
            "network": network,
        },
        {"max_iterations": 96},
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "scheme"),
    [
        ("switch", "all_reduce"),
        ("two sites", {"local_sgd": {"period": 8}}),
        ("two sites", {"gossip": {"topology": "ring"}}),
        ("jitter", {"gossip": {"topology": "one_peer_exponential"}}),
    ],
)
def test_a_tenth_less_of_a_cost_saves_a_tenth_of_its_share(name: str, scheme: Any) -> None:
    def wall_s(how: Mapping[str, Any]) -> float:
        wanted = changed_scenario(name, scheme, how)
        return simulate_job(clock_only(prepare(wanted, wanted.schemes[0], wanted.seed))).wall_clock_s

    plain = changed_scenario(name, scheme, CHANGED["nothing"])
    bounds = measure_bounds(plain, plain.schemes[0])
    assert bounds is not None
    whole_s = wall_s(CHANGED["nothing"])
    shares = {
        "latency": bounds["latency"],
        "bandwidth": bounds["bandwidth"],
        "compute and waiting": bounds["compute"] + bounds["waiting"],
    }
    if name != "jitter":
        shares["waiting"] = bounds["waiting"]
    for cost, share in shares.items():
        saved = (whole_s - wall_s(CHANGED[cost])) / whole_s
        assert saved == pytest.approx(0.1 * share, rel=0.2, abs=1e-3), cost


@pytest.mark.parametrize(
    ("cluster", "runs"),
    [
        ({}, 5),  # a first cycle, the whole, gradients, latencies, bytes
        ({"stragglers": [{"workers": [1], "slowdown": 3}]}, 7),  # and what makes workers slow, or a worker
    ],
)
def test_a_cost_that_a_cluster_has_not_is_not_followed(
    monkeypatch: pytest.MonkeyPatch, cluster: dict[str, Any], runs: int
) -> None:
    followed: list[Any] = []

    def follow(job: Any, *others: Any) -> Any:
        followed.append(job)
        return step_cost.follow(job, *others)

    monkeypatch.setattr(bounding, "follow", follow)
    bounds_of("all_reduce", **cluster)
    assert len(followed) == runs
