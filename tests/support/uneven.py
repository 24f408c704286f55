"""Jobs of four workers whose batches differ in size, and the same steps in one process."""

from __future__ import annotations

from typing import Any, Final

import torch
from torch import Tensor

from paceline.sim import seeds
from paceline.sim.config import yaml_file
from paceline.sim.drivers.job import Job
from paceline.sim.experiments.prepare import prepare
from paceline.sim.scenario.schema import Scenario, parse

Options = dict[str, Any]

STEPS: Final = 4
SPLITS: Final = 20
COMPLETE: Final = {"topology": "complete"}
OUTER: Final = {"lr": 1.0, "momentum": 0.0}
HEAVY: Final = {"optimizer": {"lr": 0.1, "momentum": 0.9}}
ADAMW: Final = {"optimizer": {"adamw": {"lr": 0.01}}}
CLIPPED: Final = {"optimizer": {"lr": 0.1, "clip": 0.5}}
FORMS: Final[list[tuple[Any, Options]]] = [
    ("all_reduce", HEAVY),
    ({"diloco": {"period": 1, "outer": OUTER}}, {}),
    ({"all_reduce": {"overlap": True}}, ADAMW),
    ({"all_reduce": {"part_reduce": True}}, {"accumulate": 3}),
    ({"all_reduce": {"outer": {"period": 4, **OUTER}}}, CLIPPED),
    ("sharded", ADAMW),
    ({"sharded": {"inside": "sites", "reduce": "each"}}, {"accumulate": 2}),
    ({"local_sgd": {"period": 1, "momentum": "mixed"}}, HEAVY),
    ({"post_local_sgd": {"switch_at": 4, "period": 2}}, ADAMW),
    ({"adaptive_local_sgd": {"initial_period": 1, "warmup": 4, "calibration": 1}}, {}),
    ({"diloco": {"period": 1, "outer": OUTER, "inside": "sites"}}, {}),
    ({"slowmo": {"period": 1, "slow_momentum": 0.0}}, {}),
    ({"fedavg": {"period": 1}}, {}),
    ({"gossip": COMPLETE}, HEAVY),
    ({"gossip": {"inside": "sites", **COMPLETE}}, {}),
    ({"sgp": COMPLETE}, {}),
    ({"gradient_tracking": COMPLETE}, {}),
]
"""Schemes that all take the steps of one process here, with what their workload has besides."""


def split(seed: int) -> list[int]:
    """Four sizes from 1 to 40."""
    return [seeds.integer(seed, worker, "a split", 0, 40) + 1 for worker in range(4)]


def scenario_of(batch_size: Any, scheme: Any, **workload: Any) -> Scenario:
    """Four workers at two sites, of which worker 1 takes twice as long and worker 3 four times."""
    document: Options = {
        "name": "uneven",
        "workload": {
            "task": "digits-mlp", "hidden": 8, "optimizer": {"lr": 0.1}, **workload, "batch_size": batch_size,
        },
        "cluster": {
            "compute": {"time": "2 ms"},
            "network": {
                "sites": {"a": 2, "b": 2}, "within": {"latency": "1 ms"}, "between": {"latency": "2 ms"},
            },
            "stragglers": [{"workers": [1], "slowdown": 2}, {"workers": [3], "slowdown": 4}],
        },
        "schemes": [scheme],
        "stop": {"max_iterations": STEPS},
        "evaluate": {"every": "1 step"},
    }  # fmt: skip
    return parse(yaml_file.write(document))


def job_of(batch_size: Any, scheme: Any, **workload: Any) -> Job:
    """The job of ``scenario_of``."""
    scenario = scenario_of(batch_size, scheme, **workload)
    return prepare(scenario, scenario.schemes[0], 3)


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


def off_by(final: Tensor, expected: Tensor) -> float:
    """Distance relative to the length of ``expected``."""
    return float((final - expected).norm() / expected.norm())
