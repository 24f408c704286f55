"""One answer to one question, whichever command is asked: bytes, seconds, money, goodput and chance."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.sim.experiments.costs.bounds import is_random, measure_bounds
from paceline.sim.experiments.costs.step_cost import step_cost
from paceline.sim.experiments.prepare import resolve
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import Scenario, resolve_scenario
from paceline.sim.training.optimizer import NullOptimizer, Sgd, WithBuffers

HERE = torch.device("cpu")
TOP = ("workload", "seed", "stop", "price", "checkpoint", "collectives")


def scenario(*schemes: Any, **changes: Any) -> Scenario:
    """Resolved; ``changes``: other top-level keys, or keys of the cluster."""
    top = {
        key: changes.pop(key)
        for key in [*changes]
        if key in ("workload", "seed", "stop", "price", "checkpoint")
    }
    cluster = {"workers": 8, "compute": {"time": "100 ms"}}
    cluster["network"] = {"latency": "0.1 ms", "bandwidth": "10 Gbit/s"}
    written = {
        "name": "s", "workload": {"timing_only": True, "payload": "1 MB", "batch_size": 8},
        "stop": {"max_iterations": 24}, "schemes": list(schemes), "cluster": cluster | changes,
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
