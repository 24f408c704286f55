"""The ``cluster:`` part of a scenario, from the readings of all files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from paceline.sim.config import yaml_file
from paceline.sim.config.problems import printable
from paceline.sim.errors import InputError, quote

from .paths import network_of, write_value
from .readings import Answers, LinkReading, PathReading, Readings

FIRST_LINE: Final = "# Made by paceline import."
"""First line of every file of this module."""

_OTHER: Final = re.compile(r"[^A-Za-z0-9]+")
"""Letters that become "_" in a site's name; a "-" would leave open where the first name of a pair ends."""


def cluster_of(readings: Mapping[str, Readings], answers: Answers) -> tuple[dict[str, Any], list[str]]:
    """Keys of ``cluster``, as in a scenario, from files by their names; and remarks on how.

    Raises ``InputError`` where files contradict each other, or leave something open.
    """
    workers = answers.workers
    maps = [name for name, each in readings.items() if each.hosts]
    paths = _renamed({name: each.paths for name, each in readings.items() if each.paths})
    if len(maps) > 1 or (maps and paths):
        raise InputError(f"{' and '.join([*maps, *paths][:2])} both describe the network: import one of them")
    by_file = {name: each.workers or {} for name, each in readings.items()}
    known = dict.fromkeys(itertools.chain(*by_file.values()))
    counts = {
        site: _one({file: each.get(site) for file, each in by_file.items()}, "workers") for site in known
    }
    gpus = _only(readings, "gpus")
    network, notes = dict[str, Any](), list[str]()
    if maps:
        hosts = readings[maps[0]].hosts
        network["graph"] = {"hosts": list(hosts), "links": list(map(_link, readings[maps[0]].links))}
        counts = {"": len(hosts) * (gpus or 1)}
    elif gpus and not paths and not answers.latency_s and {*counts.values(), workers or gpus} == {gpus}:
        network["latency"], counts = "0 s", {"": gpus}  # a single host
    elif paths or gpus or answers.latency_s is not None:
        sites = _sites(paths, {_site_name(name): n for name, n in counts.items()}, workers, gpus or 1)
        network, counts = network_of(paths, answers, sites, notes), sites or counts
    if gpus:
        inside = {key: _only(readings, f"gpu_{key}_{unit}") for key, unit in _GPU_LINK}
        network["host"] = {"gpus": gpus} | {k: write_value(k, v) for k, v in inside.items() if v is not None}
    if (overhead_s := _only(readings, "overhead_s")) is not None:
        network["overhead"] = write_value("latency", overhead_s)
    network |= {key: value for key in ("transport", "nccl") if (value := _only(readings, key))}
    if network and (averaging := _only(readings, "averaging")) is not None:
        network["averaging"] = averaging
    counted = sum(counts.values())
    if workers and (workers != counted if counted else workers % (gpus or 1)):
        have = f"{counted}; leave it out" if counted else f"hosts of {gpus} GPUs; take a multiple"
        raise InputError(f"--workers {workers}: the files have {have}")
    cluster: dict[str, Any] = {"workers": workers or counted} if workers or counted else {}
    if durations_s := _only(readings, "gradients_s"):
        written = [write_value("latency", each) for each in durations_s]
        cluster["compute"] = {"trace": {"durations": written}} if len(written) > 1 else {"time": written[0]}
    return cluster | ({"network": network} if network else {}), notes


_GPU_LINK: Final = (("latency", "s"), ("bandwidth", "bytes_per_s"))


def write_cluster(cluster: Mapping[str, Any], notes: Sequence[str]) -> str:
    """A YAML file with ``cluster:``, and where its values come from in comments."""
    comments = "".join(f"# {printable(note)}\n" for note in notes)
    return f"{FIRST_LINE}\n{comments}{yaml_file.write({'cluster': cluster})}"


def _only(readings: Mapping[str, Readings], field: str) -> Any:
    """Value of a field in all files that have it, None if none has; ``InputError``: two differ."""
    each = {name: getattr(reading, field) for name, reading in readings.items()}
    return _one(each, field.removesuffix("_s"))


def _one(values: Mapping[str, Any], what: str) -> Any:
    values = {name: value for name, value in values.items() if value not in (None, ())}
    for (one, first), (other, second) in itertools.pairwise(values.items()):
        if first != second:
            raise InputError(f"{one} and {other} differ on the {what}: import one of them")
    return next(iter(values.values()), None)


def _site_name(name: str) -> str:
    return _OTHER.sub("_", name).strip("_") or ("site" if name else "")


def _renamed(paths: Mapping[str, Sequence[PathReading]]) -> dict[str, list[PathReading]]:
    """Paths between sites with names that a scenario takes; ``InputError``: two names become one."""
    names = {name for each in paths.values() for path in each for name in (path.source, path.target)}
    for one, other in itertools.combinations(sorted(names), 2):
        if _site_name(one) == _site_name(other):
            raise InputError(f"{quote(one)} and {quote(other)} differ in no letter or digit; rename one")
    return {
        file: [replace(p, source=_site_name(p.source), target=_site_name(p.target)) for p in each]
        for file, each in paths.items()
    }


def _sites(
    paths: Mapping[str, Sequence[PathReading]], counts: Mapping[str, int], workers: int | None, least: int
) -> dict[str, int]:
    """Workers of each site that is an end of a path, ``least`` where nobody says; {} without named ends."""
    ends = ((path.source, path.target) for each in paths.values() for path in each)
    names = list(dict.fromkeys(itertools.chain(*ends)))
    if names and "" not in names:
        workers = workers or counts.get("")
        left = (workers or 0) - sum(counts.get(name, 0) for name in names)
        open_sites = sum(name not in counts for name in names)
        if workers and open_sites and (left < open_sites or left % open_sites):
            text = f"{left} workers cannot be shared evenly by {open_sites} sites; take a multiple"
            raise InputError(text)
        share = left // max(1, open_sites) if workers else least
        return {name: counts.get(name, share) for name in names}
    if len(names) > 1:
        file = next(file for file, each in paths.items() if not each[0].source)
        raise InputError(
            f"{file}: name the sites it was measured between: us-eu={file}, or us-us={file} in one"
        )
    return {}


def _link(link: LinkReading) -> dict[str, Any]:
    rate = link.bandwidth_bytes_per_s
    return {
        "source": link.source,
        "target": link.target,
        "latency": write_value("latency", link.latency_s),
        **({} if rate is None else {"bandwidth": write_value("bandwidth", rate)}),
        **({"one_way": True} if link.one_way else {}),
    }
