"""Gradient noise along whole runs: where it is measured, and that it disturbs nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from paceline.sim.devices import one_thread
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import Engine, simulate_job
from paceline.sim.experiments.sweep.grid import share_training
from paceline.sim.records.rows import row_of, run_of
from paceline.sim.records.run import Run
from paceline.sim.records.summarise import summarise
from paceline.sim.scenario.schema import Scenario, resolve_scenario
from paceline.sim.training.gradient_noise import HalfBatches, moments_of_halves
from paceline.sim.workloads.partition import Batches


def scenario(scheme: Any, noise: int | None = 10, **changes: Any) -> Scenario:
    written: dict[str, Any] = {
        "name": "s",
        "workload": {
            "task": "digits-mlp", "batch_size": 16, "partition": {"kind": "dirichlet", "alpha": 0.3},
            "optimizer": {"lr": 0.1, "schedule": {"drops": {"at": ["20 steps"], "factor": 0.5}}},
        },
        "cluster": {
            "workers": 4, "compute": {"time": "10 ms"},
            "network": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
        },
        "schemes": [scheme],
        "evaluate": {"every": "5 steps"} | ({"gradient_noise": f"{noise} steps"} if noise else {}),
        "stop": {"max_iterations": 40},
    }  # fmt: skip
    return resolve_scenario(written | changes, None, ())


def run(wanted: Scenario, engine: Engine = "auto") -> Run:
    with one_thread():
        return simulate_job(prepare(wanted, wanted.schemes[0], wanted.seed), engine=engine)


@pytest.mark.parametrize(
    ("scheme", "steps", "common"),
    [
        ("all_reduce", [10, 20, 30, 40], [True] * 4),
        ({"local_sgd": {"period": 8}}, [8, 16, 24, 40], [True] * 4),
        ({"local_sgd": {"period": 16}}, [10, 16, 30, 32], [False, True, False, True]),
        ({"gossip": {"topology": "ring"}}, [10, 20, 30, 40], [False] * 4),
        ({"ad_psgd": {"topology": "ring"}}, [10, 20, 30, 40], [False] * 4),
    ],
)
def test_where_it_is_measured(scheme: Any, steps: list[int], common: list[bool]) -> None:
    points = run(scenario(scheme)).gradients
    assert [point["step"] for point in points] == steps
    assert [point["norm2"] is not None for point in points] == common
    assert [point["heterogeneity"] is not None for point in points] == common
    assert all(point["noise"] > 0 for point in points)


def test_training_and_clock_do_not_change() -> None:
    measured, plain = run(scenario("all_reduce")), run(scenario("all_reduce", None))
    assert plain.gradients == ()
    assert measured.digest == plain.digest
    assert measured.wall_clock_s == plain.wall_clock_s
    assert measured.evaluations == plain.evaluations


def test_both_engines_measure_alike() -> None:
    wanted = scenario({"local_sgd": {"period": 8}})
    assert run(wanted, "event").gradients == run(wanted, "lockstep").gradients


def test_clocks_that_share_a_training_measure_alike() -> None:
    wanted = scenario({"local_sgd": {"period": 8}})
    slower = resolve_scenario(wanted.model_dump(mode="json"), None, ["cluster.compute.time=20 ms"])
    jobs = [prepare(each, each.schemes[0], each.seed) for each in (wanted, slower)]
    with one_thread():
        runs = share_training([(job, None) for job in jobs])
    assert runs[0].wall_clock_s < runs[1].wall_clock_s
    assert runs[0].gradients == runs[1].gradients == run(wanted).gradients


@one_thread()
def test_a_mean_of_draws_is_the_exact_moments() -> None:
    """At the initial model, against all examples' gradients; shards of uneven size, batch 16."""
    wanted = scenario("all_reduce")
    problem = prepare(wanted, wanted.schemes[0], wanted.seed).problem
    assert problem is not None
    shards, x = problem.batches.shards, problem.workload.start
    each = torch.func.vmap(torch.func.grad(problem.workload.loss), in_dims=(None, 0, 0))
    own = [
        each(x, problem.workload.inputs[s].unsqueeze(1), problem.workload.targets[s].unsqueeze(1)).double()
        for s in shards
    ]
    full = torch.stack([gradients.mean(dim=0) for gradients in own])
    true = [
        np.mean([gradients.var(dim=0).sum().item() for gradients in own]),
        full.var(dim=0).sum().item(),
        full.mean(dim=0).square().sum().item(),
    ]
    halves = HalfBatches(shards, 16, 0)
    sizes = [2 * (min(16, len(shard)) // 2) for shard in shards]
    places = [{example: place for place, example in enumerate(shard)} for shard in shards]
    found = []
    for k in range(300):
        drawn = [
            gradients[[place[e] for e in halves.examples(w, 2 * k + half)]].mean(dim=0)
            for w, (gradients, place) in enumerate(zip(own, places, strict=True))
            for half in (0, 1)
        ]
        stacked = torch.stack(drawn).view(len(shards), 2, -1)
        found.append(moments_of_halves(stacked, sizes, list(map(len, shards))))
    values = np.array(found)
    error = values.std(axis=0) / np.sqrt(len(values))
    assert (np.abs(values.mean(axis=0) - true) < 3 * error).all()
    assert (error < 0.03 * np.array(true)).all()


def test_halves_share_no_example_unless_there_is_one() -> None:
    halves = HalfBatches([np.arange(9), np.array([7])], 32, 3)
    first, second = halves.examples(0, 10), halves.examples(0, 11)
    assert len(set(first) | set(second)) == 8
    assert halves.examples(1, 10).tolist() == halves.examples(1, 11).tolist() == [7]
    assert halves.of_workers([0, 0], [10, 11]).tolist() == [first.tolist(), second.tolist()]
    assert Batches([np.arange(9)], 4, 3).examples(0, 5).tolist() != halves.examples(0, 5).tolist()


def test_records_and_summary() -> None:
    done = run(scenario("all_reduce"))
    assert [point["lr"] for point in done.gradients] == [0.1, 0.05, 0.05, 0.05]
    assert {point["examples"] for point in done.gradients} == {64}
    losses = {each.step: each.metrics["train_loss"] for each in done.evaluations}
    assert [point["loss"] for point in done.gradients] == [losses[step] for step in (10, 20, 30, 40)]
    assert run_of(row_of(done), done.evaluations, done.events) == done
    gradients = summarise("s", [done])["summary"][0]["gradients"]
    assert gradients["text"].startswith("64 examples a step, beside what this task can use: ")
    assert "learning rate 0.1 to 0.05" in gradients["text"]
    alone = summarise("s", [run(scenario({"gossip": {"topology": "ring"}}))])["summary"][0]["gradients"]
    assert alone["text"].startswith("only the noise of gradients within workers was measured")
    assert "gradients" not in summarise("s", [run(scenario("all_reduce", None))])["summary"][0]


def test_nothing_to_measure_is_refused() -> None:
    workload = {"timing_only": True, "payload": "1 MB", "batch_size": 8}
    with pytest.raises(InputError, match=r"evaluate\.gradient_noise: nothing is trained"):
        scenario("all_reduce", workload=workload)
