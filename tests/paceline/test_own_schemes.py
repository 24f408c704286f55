"""Schemes given in Python: functions and names, with options and topologies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import paceline
from paceline import InputError, TopologyEntry, Worker, topology_plan

SCENARIO = {
    "name": "own",
    "workload": {"task": "quadratic", "batch_size": 4, "optimizer": {"lr": 0.1}},
    "cluster": {
        "workers": 8,
        "compute": {"time": "10 ms"},
        "network": {"latency": "20 ms", "bandwidth": "100 Mbit/s"},
    },
    "stop": {"max_iterations": 12},
    "evaluate": {"every": "4 steps"},
}


async def own_gossip(worker: Worker, topology: TopologyEntry, weights: str = "auto") -> None:
    """Average with neighbours."""
    plan = topology_plan(topology, worker.size, weights, worker.seed)
    x = worker.start
    state = worker.optimizer.init(x)
    async for k in worker.steps():
        x, state = worker.optimizer.update(x, await worker.gradient(x), state)
        x = await worker.mix(plan.at(k), x)
        await worker.publish(k, x)


def simulate(schemes: Any) -> paceline.Study:
    return paceline.simulate(SCENARIO, schemes=schemes, progress=False)


@pytest.mark.parametrize("topology", ["ring", "one_peer_exponential", {"ring_lattice": {"degree": 4}}])
def test_an_own_gossip_is_that_of_paceline(topology: Any) -> None:
    options = {"topology": topology}
    ready, own = simulate([{"gossip": options}, {own_gossip: options}]).runs
    assert own.status == "completed"
    assert own.evaluations == ready.evaluations
    assert own.engine == ready.engine


def test_a_function_stands_beside_names_and_with_options() -> None:
    def scheme_of(period: int) -> Any:
        async def rare(worker: Worker, every: int = period) -> None:
            x = worker.start
            async for k in worker.steps():
                x = x - 0.01 * await worker.gradient(x)
                x = await worker.all_reduce(x) if k % every == 0 else x
                await worker.publish(k, x)

        return rare

    rare = scheme_of(2)
    study = simulate(["all_reduce", rare, {rare: {"every": 4}}])
    sent = {run.label: run.evaluations[-1].bytes_sent for run in study.runs}
    first, often, seldom = sent.values()
    assert next(iter(sent)) == "all_reduce"
    assert first > often > seldom > 0
    with pytest.raises(InputError, match="two are called"):
        simulate([rare, scheme_of(4)])


@pytest.mark.parametrize(
    ("schemes", "message"),
    [
        ("all_reduce", r"^schemes: must be a list"),
        ([], r"^schemes: .*at least 1"),
        (["all_reduc"], r"did you mean 'all_reduce'"),
        ([3], r"must be an 'async def'"),
        ([{own_gossip: {"topology": "rin"}}], r"did you mean 'ring'"),
        ([{own_gossip: {"topology": {"ring_lattice": {"degree": 40}}}}], r"^schemes: .*use degree 6 or 7"),
        ([{own_gossip: {"topology": "ring", "weights": "metropoli"}}], r"did you mean 'metropolis'"),
    ],
)
def test_what_is_wrong_is_refused_before_a_run(schemes: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        simulate(schemes)


def test_a_sweep_takes_them_too() -> None:
    latencies = {"cluster.network.latency": ["1 ms", "100 ms"]}
    swept = paceline.sweep(SCENARIO, latencies, schemes=[{own_gossip: {"topology": "ring"}}], progress=False)
    assert [study.runs[0].label for study in swept.studies] == ["own_gossip", "own_gossip"]


@pytest.mark.parametrize("wrong", [("ring", 4.5), ("ring", None), ("ring", 4, 3), ("ring", 4, "auto", 1.5)])
def test_a_plan_of_something_else_is_refused(wrong: tuple[Any, ...]) -> None:
    with pytest.raises(InputError, match="must be"):
        topology_plan(*wrong)


def test_a_plan_takes_the_numbers_of_an_array() -> None:
    workers, seed = np.array([6, 3])
    assert topology_plan("ring", workers, seed=seed).at(0) == topology_plan("ring", 6, seed=3).at(0)
