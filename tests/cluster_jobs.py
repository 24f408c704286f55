"""Tasks for the processes of a ``cluster_pool``."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from realrun.group import Group
from realrun.run import run_job
from tests.factory import make_job


def run_scheme(group: Group, scheme: str, options: dict[str, Any], **job: Any) -> dict[str, Any]:
    """Run a registered scheme; the collector answers with its record."""
    max_time_s = job.pop("max_time_s", None)
    made = make_job(scheme, options, workers=group.size, **job)
    if max_time_s is not None:
        made = replace(made, max_time_s=max_time_s)
    measured = run_job(group, made, timeout_s=20.0)
    return {
        "run": asdict(measured.run) if measured.run else None,
        "error": str(measured.error) if measured.error else None,
        "timings": [asdict(t) for t in measured.timings],
    }
