"""The ``cluster:`` part of a scenario, from the readings of all files."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from ..config import yaml_file
from ..errors import InputError
from .paths import network_of, write_value
from .readings import Answers, LinkReading, Readings

FIRST_LINE: Final = "# Made by paceline import."
"""First line of every file of this module."""


class Imported(NamedTuple):
    """Keys of ``cluster``, as in a scenario, and remarks on how they were put together."""

    cluster: dict[str, Any]
    notes: tuple[str, ...]


def cluster_of(readings: Mapping[str, Readings], answers: Answers, workers: int | None) -> Imported:
    """Put files together, by their names. ``InputError``: they contradict each other, or leave something open."""
    maps = [name for name, each in readings.items() if each.hosts]
    paths = {name: each.paths for name, each in readings.items() if each.paths}
    if len(maps) > 1 or (maps and paths):
        raise InputError(f"{' and '.join([*maps, *paths][:2])} both describe the network: import one of them")
    counts, gpus = _only(readings, "workers") or {}, _only(readings, "gpus")
    network, notes = dict[str, Any](), list[str]()
    if maps:
        hosts = readings[maps[0]].hosts
        network["graph"] = {"hosts": list(hosts), "links": list(map(_link, readings[maps[0]].links))}
        counts = {"": len(hosts) * (gpus or 1)}
    elif paths or gpus or answers.latency_s is not None:
        network = network_of(paths, answers, counts, workers, notes)
        counts = network.get("sites", counts)
    if gpus:
        of_gpus = {
            "latency": _only(readings, "gpu_latency_s"),
            "bandwidth": _only(readings, "gpu_bandwidth_bytes_per_s"),
        }
        network["host"] = {"gpus": gpus} | {k: write_value(k, v) for k, v in of_gpus.items() if v is not None}
    if (overhead_s := _only(readings, "overhead_s")) is not None:
        network["overhead"] = write_value("latency", overhead_s)
    if transport := _only(readings, "transport"):
        network["transport"] = transport
    counted = sum(counts.values())
    if workers and counted and workers != counted:
        raise InputError(f"--workers {workers}: the files have {counted}; leave it out")
    cluster: dict[str, Any] = {"workers": workers or counted} if workers or counted else {}
    if durations_s := _only(readings, "gradients_s"):
        written = [write_value("latency", each) for each in durations_s]
        cluster["compute"] = {"trace": {"durations": written}} if len(written) > 1 else {"time": written[0]}
    if network:
        cluster["network"] = network
    return Imported(cluster, tuple(notes))


def write_cluster(cluster: Mapping[str, Any], notes: Sequence[str]) -> str:
    """A YAML file with ``cluster:``, and where its values come from in comments."""
    comments = "".join(f"# {note}\n" for note in notes)
    return f"{FIRST_LINE}\n{comments}{yaml_file.write({'cluster': cluster})}"


def _only(readings: Mapping[str, Readings], field: str) -> Any:
    """What one file says, or several alike; None: none. ``InputError``: two differ."""
    each = {name: getattr(reading, field) for name, reading in readings.items()}
    values = {name: value for name, value in each.items() if value not in (None, ())}
    for (one, first), (other, second) in itertools.pairwise(values.items()):
        if first != second:
            raise InputError(
                f"{one} and {other} differ on the {field.removesuffix('_s')}: import one of them"
            )
    return next(iter(values.values()), None)


def _link(link: LinkReading) -> dict[str, Any]:
    rate = link.bandwidth_bytes_per_s
    return {
        "source": link.source,
        "target": link.target,
        "latency": write_value("latency", link.latency_s),
        **({} if rate is None else {"bandwidth": write_value("bandwidth", rate)}),
        **({"one_way": True} if link.one_way else {}),
    }
