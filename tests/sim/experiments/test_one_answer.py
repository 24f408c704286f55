"""One answer to one question, whichever command is asked: bytes, seconds, money, goodput and chance."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.extras.explore.export import export
from paceline.sim.experiments.costs import bounds, tokens
from paceline.sim.experiments.costs import step_cost as step_costs
from paceline.sim.experiments.costs.bounds import is_random, measure_bounds
from paceline.sim.experiments.costs.step_cost import step_cost
from paceline.sim.experiments.prepare import prepare, resolve
from paceline.sim.experiments.simulate import simulate, simulate_job
from paceline.sim.records.run import Run
from paceline.sim.records.summarise import summarise_resolved
from paceline.sim.scenario.schema import Scenario, dump, resolve_scenario
from paceline.sim.training.optimizer import NullOptimizer, Sgd, WithBuffers

HERE = torch.device("cpu")
SIZES = {"layers": 1, "width": 8, "feed_forward": 16, "vocabulary": 50, "length": 8, "positions": 8}
LANGUAGE = {"timing_only": True, "batch_size": 8, "layer_profile": {"transformer": SIZES}}
TOP = ("workload", "seed", "stop", "price", "checkpoint", "collectives", "evaluate", "repeats")


@pytest.fixture(autouse=True)
def in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer steps are followed, and no bandwidths looked for."""
    monkeypatch.setattr(step_costs, "ENOUGH_WORK", 1_000)
    monkeypatch.setattr(bounds, "BOUNDS_WORK", 2_000)
    monkeypatch.setattr(tokens, "UTILISATIONS", ())


def scenario(*schemes: Any, **changes: Any) -> Scenario:
    """Resolved; ``changes``: other top-level keys, or keys of the cluster."""
    top = {key: changes.pop(key) for key in [*changes] if key in TOP}
    cluster: dict[str, Any] = {"workers": 8, "compute": {"time": "100 ms"}}
    cluster["network"] = {"latency": "0.1 ms", "bandwidth": "10 Gbit/s"}
    written = {
        "name": "s", "workload": {"timing_only": True, "payload": "1 MB", "batch_size": 8},
        "stop": {"max_iterations": 24}, "schemes": list(schemes),
        "cluster": {key: value for key, value in (cluster | changes).items() if value is not None},
    }  # fmt: skip
    return resolve(resolve_scenario(written | top, None, ()), HERE)


def simulated(wanted: Scenario) -> dict[str, Run]:
    return {run.label: run for run in simulate(wanted)}


# --- what a scheme sends ------------------------------------------------------------------------------------

MIXED = [
    {"gossip": {"topology": "one_peer_exponential"}},
    {"gossip": {"topology": "one_peer_exponential", "momentum": "mixed"}},
    {"local_sgd": {"period": 4, "momentum": "mixed"}},
    {"slowmo": {"period": 4, "momentum": "mixed"}},
]
TRAINED = {"batch_size": 8, "optimizer": {"lr": 0.05, "momentum": 0.9}, "payload": "102 MB"}


def test_mixed_momentum_is_sent_in_every_command() -> None:
    wanted = scenario(*MIXED, workload={"task": "quadratic"} | TRAINED)
    runs = simulated(wanted)
    costs = {entry.label: step_cost(wanted, entry) for entry in wanted.schemes}
    steps = [cost.step_s for cost in costs.values()]
    assert steps == pytest.approx([0.1817, 0.2633, 0.1714, 0.1714], abs=1e-4)
    for entry in wanted.schemes:
        run, bounds = runs[entry.label], measure_bounds(wanted, entry)
        assert bounds is not None
        assert costs[entry.label].step_s == pytest.approx(run.step_s) == bounds["step_s"]
        assert costs[entry.label].bytes_per_worker == pytest.approx(run.bytes_sent / 8 / run.iterations)


def test_running_buffers_have_no_momentum_to_send() -> None:
    x, rule = torch.zeros(5), WithBuffers(Sgd(0.1, momentum=0.9), 2)
    sizes = [
        [len(each) for each in NullOptimizer.like(like, x).init(x).moments] for like in (rule, rule.rule)
    ]
    assert sizes == [[3], [5]]


# --- chance -------------------------------------------------------------------------------------------------

DRAWN: list[tuple[Any, dict[str, Any]]] = [
    ("all_reduce", {"faults": [{"mean_time_between": "1000 s", "back_after": "5 s"}]}),
    ("all_reduce", {"compute": {"time": "1 s", "spread": 0.2}}),
    ("all_reduce", {"compute": {"time": "1 s", "jitter": {"lognormal": {"cv": 0.01}}}}),
    ("all_reduce", {"stragglers": [{"probability": 0.01, "slowdown": 2}]}),
    ({"gossip": {"topology": "random_matching"}}, {}),
    ({"sgp": {"topology": {"erdos_renyi": {"probability": 0.7}}}}, {}),
    ({"gossip": {"topology": {"matcha": {"budget": 0.5}}}}, {}),
    ({"fedavg": {"period": 2, "participation": 0.5}}, {}),
    ("ad_psgd", {}),
]


@pytest.mark.parametrize(("scheme", "changes"), DRAWN)
def test_chance_is_asked_of_the_scenario(scheme: Any, changes: dict[str, Any]) -> None:
    """Whatever the two next seeds would draw."""
    wanted = scenario(scheme, **changes)
    assert is_random(wanted, wanted.schemes[0])


@pytest.mark.parametrize(
    ("scheme", "changes"),
    [
        ("all_reduce", {"faults": [{"at": "2 s", "back_after": "5 s"}]}),
        ("all_reduce", {"stragglers": [{"workers": [1], "slowdown": 2}]}),
        ({"gossip": {"topology": "one_peer_exponential"}}, {}),
        ({"fedavg": {"period": 2}}, {}),
    ],
)
def test_where_nothing_is_drawn_nothing_is_random(scheme: Any, changes: dict[str, Any]) -> None:
    wanted = scenario(scheme, **changes)
    assert not is_random(wanted, wanted.schemes[0])


# --- money --------------------------------------------------------------------------------------------------

ONE_SLOW = {
    "stragglers": [{"workers": [7], "slowdown": 10}],
    "network": {"latency": "1 ms", "bandwidth": "10 Gbit/s"},
}
TWO_SITES = {
    "workers": None, "stragglers": [{"workers": [0], "slowdown": 3}],
    "network": {
        "sites": {"us": 1, "eu": 3}, "within": {"latency": "0.1 ms", "bandwidth": "10 Gbit/s"},
        "between": {"latency": "20 ms", "bandwidth": "1 Gbit/s"}, "sharing": "none",
    },
    "price": {"worker_hour": "$3", "egress": {"us-eu": "$1", "eu-us": "$2"}},
}  # fmt: skip


def test_the_money_of_a_step_pays_no_idle_end() -> None:
    wanted = scenario(
        "ad_psgd", {"all_reduce": {"quorum": 7, "label": "quorum 7"}}, "all_reduce",
        compute={"time": "50 ms"}, price={"worker_hour": "$3"}, stop={"max_iterations": 60}, **ONE_SLOW,
        collectives={"all_reduce": "ring"},
    )  # fmt: skip
    summary = summarise_resolved(dump(wanted), "s", [*simulated(wanted).values()])
    costs = {row["label"]: row["cost"]["median"] or 0.0 for row in summary["summary"]}
    assert costs["ad_psgd"] == pytest.approx(0.000376, rel=0.01)
    assert costs["quorum 7"] > costs["ad_psgd"]
    assert summary["verdict"]["cheapest"] == "ad_psgd"


@pytest.mark.parametrize(
    "scheme",
    [
        "ad_psgd",
        {"downpour": {"period": 2}},
        {"halos": {"period": 2, "exchange": 2}},
        {"local_sgd": {"period": 2}},
    ],
)
def test_a_step_costs_the_same_in_throughput(scheme: Any) -> None:
    wanted = scenario(scheme, stop={"max_iterations": 200}, workload=LANGUAGE, **TWO_SITES)
    summary = summarise_resolved(dump(wanted), "s", [*simulated(wanted).values()])
    (row,) = tokens.throughput(wanted)["schemes"]
    assert summary["summary"][0]["cost"]["median"] == pytest.approx(row["costs"]["a step"], rel=0.02)


def test_the_page_of_explore_pays_for_bytes_between_sites() -> None:
    wanted = scenario(
        "all_reduce", {"local_sgd": {"period": 4}}, **TWO_SITES, workload={"task": "quadratic"} | TRAINED,
        stop={"max_iterations": 40, "target": {"metric": "train_loss", "value": 21.5}},
    )  # fmt: skip
    summary = summarise_resolved(dump(wanted), "s", [*simulated(wanted).values()])
    for own, row in zip(export(wanted, HERE)["schemes"], summary["runs"], strict=True):
        rent = 12 * (row["time_to_target_s"] or 0.0) / 3600
        assert own["runs"][0]["egress"] > 0.1
        assert rent + own["runs"][0]["egress"] == pytest.approx(row["cost_to_target"])


# --- goodput ------------------------------------------------------------------------------------------------

SLOW = [{"workers": [3], "slowdown": 8}]
WRITES = {"checkpoint": {"every": "2 steps", "write": "1 s"}, "stragglers": SLOW}
SKIPS = {"quorum": 3, "on_fault": "skip"}


@pytest.mark.parametrize(
    ("scheme", "between", "changes"),
    [
        ("ad_psgd", "150 s", WRITES),
        ({"downpour": {"period": 2}}, "150 s", WRITES),
        ("ad_psgd", "300 s", {"checkpoint": {"every": "10 steps"}, "stragglers": SLOW}),
        ({"local_sgd": {"period": 8, **SKIPS}}, "40 s", {}),
        ({"local_sgd": {"period": 1, **SKIPS}}, "40 s", {"stragglers": SLOW}),
        ({"gossip": {"topology": "ring", "global_period": 4, "on_fault": "shrink"}}, "60 s", {}),
        ("all_reduce", "20 s", {"stragglers": [{"probability": 0.05, "slowdown": 12}]}),
    ],
)
def test_goodput_is_that_of_simulated_runs(
    scheme: Any, between: str, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_costs, "ENOUGH_WORK", 4_000)
    fault = {"mean_time_between": between, "back_after": "2 s", "workers": [1, 2, 3]}
    wanted = scenario(
        scheme, workers=4, compute={"time": "1 s"}, workload=LANGUAGE, faults=[fault],
        stop={"max_iterations": 250}, collectives={"all_reduce": "ring"}, **changes,
    )  # fmt: skip
    (row,) = tokens.throughput(wanted)["schemes"]
    (own,) = summarise_resolved(dump(wanted), "s", [*simulate(wanted)])["summary"]
    assert 1 - own["goodput"] == pytest.approx(1 - row["goodput"], rel=0.2)
    assert own["step_s"]["median"] == pytest.approx(row["step_s"] / row["goodput"], rel=0.1)


# --- engines


def test_gpus_of_a_host_that_share_its_link_are_one_number_on_both_drivers() -> None:
    """A collective begins on some while the last one's bytes of others are still on their way."""
    network: dict[str, Any] = {"latency": "10 ms", "bandwidth": "1 Gbit/s"}
    network |= {"host": {"gpus": 3, "latency": "1 us", "bandwidth": "10 Gbit/s"}}
    wanted = scenario(
        "all_reduce", workers=9, compute={"time": "10 ms"}, network=network, stop={"max_iterations": 3},
        workload={"timing_only": True, "payload": "10 MB"}, collectives={"all_reduce": "halving_doubling"},
    )  # fmt: skip
    job = prepare(wanted, wanted.schemes[0], 0)
    runs = [simulate_job(job), simulate_job(job, engine="event")]
    assert [run.wall_clock_s for run in runs] == pytest.approx([1.4322] * 2, rel=1e-4)


# --- sites of unequal speed, and connections --------------------------------------------------------------


def test_sites_of_unequal_speed_compute_what_both_together_compute() -> None:
    """A fast site that waits for one 2.2 times slower computes 1 / 2.2 of the time, on any network."""
    slow = [{"workers": [1], "slowdown": 2.2}]
    wanted = scenario("all_reduce", "ad_psgd", workers=2, workload=LANGUAGE, stragglers=slow)
    both, free = (row["utilisation"] for row in tokens.throughput(wanted)["schemes"])
    assert both == pytest.approx((1 + 1 / 2.2) / 2, rel=2e-3)
    assert free == pytest.approx(1, rel=2e-3)
    assert both == pytest.approx(simulated(wanted)["all_reduce"].time_s.compute / (24 * 0.2202), rel=1e-3)


PIPE: dict[str, Any] = {
    "sites": {"us": 1, "eu": 1}, "within": {"latency": "0.01 ms", "bandwidth": "200 Gbit/s"},
    "between": {"latency": "35 ms", "bandwidth": "10 Gbit/s"}, "hosts": "stock",
    "tcp": {"connections": 8, "send_buffer": "512 MB", "receive_buffer": "512 MB"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("per_flow", "step_s"), [(None, 2.640), ("1.31 Gbit/s", 2.640), ("0.5 Gbit/s", 5.674)]
)
def test_a_limit_of_a_connection_is_of_each_of_several(
    per_flow: str | None, step_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_costs, "ENOUGH_WORK", 4_000)
    network = PIPE | {"between": PIPE["between"] | ({"per_flow": per_flow} if per_flow else {})}
    wanted = scenario(
        "all_reduce", workers=None, compute={"time": "375.799 ms"}, network=network,
        workload={"timing_only": True, "payload": "2.63163904 GB"}, collectives={"all_reduce": "ring"},
        stop={"max_iterations": 2},
    )  # fmt: skip
    assert step_cost(wanted, wanted.schemes[0]).step_s == pytest.approx(step_s, rel=1e-3)
