"""Tasks for the processes of a ``cluster_pool``."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import asdict, replace
from types import coroutine
from typing import Any, cast

import torch

from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group.group import Group
from paceline.sim.compute.compute_settings import Straggler
from paceline.sim.program import operations as ops
from paceline.sim.program.worker import Program
from tests.support import nccl_rules as nccl_rules  # its backend is known once it is imported
from tests.support.factory import make_job, scored, sites_of


@coroutine
def _noting_models(main: Any, seen: list[torch.Tensor]) -> Generator[Any, Any, None]:
    """``main``; what it publishes last is left in ``seen``."""
    reply = None
    while True:
        try:
            operation = main.send(reply)
        except StopIteration:
            return
        if isinstance(operation, ops.Publish):
            seen[:] = [operation.value]
        reply = yield operation


def run_scheme(group: Group, scheme: str, options: dict[str, Any], **job: Any) -> dict[str, Any]:
    """Run a registered scheme; every rank answers with its last model, the collector with the record too.

    ``dies``: a rank, and the number of its operation at which its process ends; ``backend``: as ``run_job``;
    ``sites``: of the network, by name with their numbers of workers; ``stragglers``: as in a scenario.
    """
    slow = [Straggler.model_validate(each) for each in job.pop("stragglers", ())]
    max_time_s, timeout_s = job.pop("max_time_s", None), job.pop("timeout_s", 20.0)
    dies, backend = job.pop("dies", None), job.pop("backend", "gloo")
    if sites := job.pop("sites", None):
        job["network"] = sites_of(sites)
    noise = job.pop("gradient_noise", None)
    made = scored(make_job(scheme, options, workers=group.size, stragglers=slow, **job), gradient_noise=noise)
    if max_time_s is not None:
        made = replace(made, max_time_s=max_time_s)
    seen: list[torch.Tensor] = []

    def program(rank: int) -> Program:
        own = made.program(rank)
        return replace(own, main=cast("Any", _noting_models(own.main, seen)))

    faults = {dies[0]: dies[1]} if dies else None
    measured = run_job(group, made, backend=backend, programs=program, timeout_s=timeout_s, faults=faults)
    return {
        "final": seen[0].tolist() if seen else [],
        "run": asdict(measured.run) if measured.run else None,
        "error": str(measured.error) if measured.error else None,
        "timings": [asdict(t) for t in measured.timings],
    }
