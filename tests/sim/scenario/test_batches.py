"""Batches of different sizes: one process with the whole batch takes the same steps, and what they last."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import pytest
import torch
from torch import Tensor

import paceline
from paceline.extras.replay.replay_driver import replay
from paceline.sim import seeds
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.exact import why_not
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.scenario.batches import batch_sizes, weights_of
from paceline.sim.scenario.schema import Scenario, dump, parse
from paceline.sim.schemes import find_scheme
from tests.support.factory import sites_of

Options = dict[str, Any]

STEPS: Final = 4
SITES: Final = {
    "sites": {"a": 2, "b": 2},
    "within": {"latency": "1 ms", "bandwidth": "1 Gbit/s"},
    "between": {"latency": "20 ms", "bandwidth": "1 Gbit/s"},
}


def scenario(batch_size: Any, scheme: Any, **workload: Any) -> Scenario:
    document: Options = {
        "name": "uneven",
        "workload": {
            "task": "digits-mlp", "hidden": 8, "batch_size": batch_size, "optimizer": {"lr": 0.1}, **workload
        },
        "cluster": {
            "workers": 4, "compute": {"time": "40 ms"}, "network": SITES,
            "stragglers": [{"workers": [1], "slowdown": 2}, {"workers": [3], "slowdown": 4}],
        },
        "schemes": [scheme],
        "stop": {"max_iterations": STEPS},
        "evaluate": {"every": "1 step"},
    }  # fmt: skip
    return parse(paceline_yaml(document))


def paceline_yaml(document: Options) -> str:
    from paceline.sim.config import yaml_file

    return yaml_file.write(document)


def job_of(batch_size: Any, scheme: Any, **workload: Any) -> Job:
    given = scenario(batch_size, scheme, **workload)
    return prepare(given, given.schemes[0], 3)


def in_one_process(job: Job) -> Tensor:
    """The model after all steps on the joined batches of all workers."""
    assert job.problem is not None
    workload, batches, x = job.problem.workload, job.problem.batches, job.start
    state = job.optimizer.init(x)
    for step in range(STEPS):
        rows = torch.cat([torch.from_numpy(batches.examples(rank, step)) for rank in range(4)])
        leaf = x.detach().requires_grad_()
        loss = workload.loss(leaf, workload.inputs[rows], workload.targets[rows])
        x, state = job.optimizer.update(x, torch.autograd.grad(loss, leaf)[0], state)
    return x


def event(job: Job) -> Sequence[Tensor]:
    programs = [job.program(rank) for rank in range(job.workers)]
    return EventDriver(job, programs, job.scorer()).run().finals


def lockstep(job: Job) -> Sequence[Tensor]:
    return LockstepDriver(job, job.scorer()).run().finals


COMPLETE: Final = {"topology": "complete"}
FORMS: Final[list[tuple[Any, Options]]] = [
    ("all_reduce", {"optimizer": {"lr": 0.1, "momentum": 0.9}}),
    ({"all_reduce": {"overlap": True}}, {"optimizer": {"adamw": {"lr": 0.01}}}),
    ({"all_reduce": {"part_reduce": True}}, {"accumulate": 3}),
    ({"all_reduce": {"outer": {"period": 4, "lr": 1.0, "momentum": 0.0}}}, {"optimizer": {"lr": 0.1, "clip": 0.5}}),
    ("sharded", {"optimizer": {"adam": {"lr": 0.01}}}),
    ({"sharded": {"inside": "sites", "average": "each"}}, {"accumulate": 2}),
    ({"local_sgd": {"period": 1, "momentum": "mixed"}}, {"optimizer": {"lr": 0.1, "momentum": 0.9}}),
    ({"post_local_sgd": {"switch_at": 2, "period": 2}}, {"optimizer": {"adamw": {"lr": 0.01}}}),
    ({"diloco": {"period": 1, "outer": {"lr": 1.0, "momentum": 0.0}}}, {}),
    ({"diloco": {"period": 1, "outer": {"lr": 1.0, "momentum": 0.0}, "inside": "sites"}}, {}),
    ({"slowmo": {"period": 1, "slow_momentum": 0.0}}, {}),
    ({"fedavg": {"period": 1}}, {}),
    ({"gossip": COMPLETE}, {"optimizer": {"lr": 0.1, "momentum": 0.9}}),
    ({"gossip": {"topology": "complete", "inside": "sites"}}, {}),
    ({"sgp": COMPLETE}, {}),
    ({"gradient_tracking": COMPLETE}, {}),
]
"""Schemes that all take the steps of one process here, with what their workload has besides."""


def split(seed: int) -> list[int]:
    """Four sizes from 1 to 40."""
    return [seeds.integer(seed, worker, "a split", 0, 40) + 1 for worker in range(4)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(("scheme", "workload"), FORMS, ids=str)
def test_one_process_with_the_whole_batch_takes_the_same_steps(scheme: Any, workload: Options, seed: int) -> None:
    job = job_of(split(seed), scheme, **workload)
    expected = in_one_process(job)
    for run in (event,) if why_not(job) else (event, lockstep):
        for final in run(job):
            assert ((final - expected).norm() / expected.norm()).item() < 1e-6
