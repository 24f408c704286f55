"""The ``cluster:`` part of a scenario, from the readings of all files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import yaml

from ..errors import InputError
from .readings import Readings

FIRST_LINE: Final = "# Made by paceline import."
"""First line of every file of this module."""


def cluster_of(readings: Sequence[Readings], workers: int | None) -> dict[str, Any]:
    """Keys of ``cluster``, as in a scenario. ``InputError``: the files leave something open."""
    paths = [path for each in readings for path in each.paths]
    latencies_s = [path.latency_s for path in paths if path.latency_s is not None]
    if not latencies_s:
        raise InputError("no file says a latency: import output of ping as well")
    return {"workers": workers or 2, "network": {"latency": f"{1000 * latencies_s[0]:.6g} ms"}}


def write_cluster(cluster: dict[str, Any], notes: Sequence[str]) -> str:
    """A YAML file with ``cluster:``, and where its values come from in comments."""
    comments = "".join(f"# {note}\n" for note in notes)
    return f"{FIRST_LINE}\n{comments}" + yaml.safe_dump(
        {"cluster": cluster}, sort_keys=False, allow_unicode=True
    )
