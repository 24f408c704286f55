"""A rank of a job, as ``python -m paceline.realrun``, with a backend that keeps NCCL's rules in NCCL's place.

Values are on the CPU, and gloo carries them; everything else takes the way of a run over NCCL.
"""

from __future__ import annotations

from typing import Any

from paceline.realrun import __main__ as program
from paceline.realrun.driver.collect import RankResult
from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group.group import Group
from paceline.realrun.launch import cells
from paceline.realrun.transport.device import CPU
from paceline.sim.drivers.job import Job
from tests.support.nccl_rules import NAME


def _run_job(group: Group, job: Job, *, backend: str, **options: Any) -> RankResult:
    return run_job(group, job, backend=NAME if backend == "nccl" else backend, **options)


if __name__ == "__main__":
    vars(cells).update(run_job=_run_job, device_of=lambda backend, rank: CPU)
    program.main()
