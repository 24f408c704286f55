"""One process of a pool: ``python -m paceline.realrun.launch.member RANK``.

Standard input has a JSON object a line: ``{"join": [size, store file]}``, or a run: ``{"probe": plan}``, or
``{"scenario": resolved YAML, "scheme": its place, "seed": n}``, with ``"draws": m`` for computing times drawn
under another seed. Each is answered with one line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from paceline.sim.compute.model import ComputeModel
from paceline.sim.drivers.job import Job
from paceline.sim.errors import PacelineError
from paceline.sim.experiments.prepare import prepare
from paceline.sim.scenario.schema import parse

from ..calibration import probes
from ..driver.run import run_job
from ..group.group import Group, join, leave
from ..group.store import file_store
from ..transport.device import device_of

_JOIN_S = 60.0


def job_of(what: Mapping[str, Any], rank: int) -> tuple[Job, str]:
    """The job that a request asks for, and the backend that it wants."""
    if "probe" in what:
        return probes.probe_job(probes.ProbePlan.model_validate_json(json.dumps(what["probe"]))), "gloo"
    scenario = parse(what["scenario"])
    backend = scenario.cluster.backend
    job = prepare(scenario, scenario.schemes[what["scheme"]], what["seed"], device_of(backend, rank))
    if "draws" in what:
        model = job.compute
        job = replace(job, compute=ComputeModel(model.compute, model.stragglers, what["draws"]))
    return job, backend


def _obey(rank: int, group: Group | None, what: Mapping[str, Any]) -> tuple[Group | None, dict[str, Any]]:
    if "join" in what:
        if group is not None:
            leave(group)
        size, store = what["join"]
        return (join(file_store(Path(store), size), rank, size, _JOIN_S) if rank < size else None), {}
    assert group is not None
    job, backend = job_of(what, rank)
    measured = run_job(group, job, backend=backend)
    return group, {
        "run": asdict(measured.run) if measured.run else None,
        "error": str(measured.error) if measured.error else None,
        "timings": [asdict(timing) for timing in measured.timings],
    }


def main(rank: int) -> None:
    """Serve until standard input ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # whatever a library prints must not come between the answers
    group: Group | None = None
    told: dict[str, Any] = {}
    while True:
        answers.write(json.dumps(told) + "\n")
        answers.flush()
        line = sys.stdin.readline()
        if not line:
            break
        try:
            group, told = _obey(rank, group, json.loads(line))
        except PacelineError as error:
            told = {"raised": str(error)}
    os._exit(0)  # helper threads of a failed run may still block in gloo


if __name__ == "__main__":
    main(int(sys.argv[1]))
