"""The ``cluster:`` part of a scenario, from the readings of all files."""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from paceline.sim.config import yaml_file
from paceline.sim.config.problems import printable
from paceline.sim.config.units import format_rate, format_seconds
from paceline.sim.errors import InputError, quote

from .readings import Answers, LinkReading, PathReading, Readings

FIRST_LINE: Final = "# Made by paceline import."
"""First line of every file of this module."""

_OTHER: Final = re.compile(r"[^A-Za-z0-9]+")
"""Letters that become "_" in a site's name; a "-" would leave open where the first name of a pair ends."""
_GPU_LINK: Final = (("latency", "s"), ("bandwidth", "bytes_per_s"))
_LEAST_CV: Final = 0.05
"""Less is left out: it is of the order of what the hosts themselves add to a round trip."""
_LONG, _ALIKE = 0.1, 2.0
"""Latencies over the longest from which on links decide the jitter, and most between their shares of it."""
_FIELDS: Final = {
    "latency": "latency_s", "bandwidth": "bandwidth_bytes_per_s", "per_flow": "per_flow_bytes_per_s"
}  # fmt: skip

_Pair = tuple[str, str]
_Values = dict[_Pair, float]


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
        sites = _site_sizes(paths, {_site_name(name): n for name, n in counts.items()}, workers, gpus or 1)
        network, counts = _network_of(paths, answers, sites, notes), sites or counts
    if gpus:
        inside = {key: _only(readings, f"gpu_{key}_{unit}") for key, unit in _GPU_LINK}
        network["host"] = {"gpus": gpus} | {k: _written(k, v) for k, v in inside.items() if v is not None}
    if (overhead_s := _only(readings, "overhead_s")) is not None:
        network["overhead"] = _written("latency", overhead_s)
    network |= {key: value for key in ("transport", "nccl") if (value := _only(readings, key))}
    if network and (averaging := _only(readings, "averaging")) is not None:
        network["averaging"] = averaging
    counted = sum(counts.values())
    if workers and (workers != counted if counted else workers % (gpus or 1)):
        have = f"{counted}; leave it out" if counted else f"hosts of {gpus} GPUs; take a multiple"
        raise InputError(f"--workers {workers}: the files have {have}")
    cluster: dict[str, Any] = {"workers": workers or counted} if workers or counted else {}
    if durations_s := _only(readings, "gradients_s"):
        written = [_written("latency", each) for each in durations_s]
        cluster["compute"] = {"trace": {"durations": written}} if len(written) > 1 else {"time": written[0]}
    return cluster | ({"network": network} if network else {}), notes


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


def _site_sizes(
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
        "latency": _written("latency", link.latency_s),
        **({} if rate is None else {"bandwidth": _written("bandwidth", rate)}),
        **({"one_way": True} if link.one_way else {}),
    }


def _written(key: str, value: float) -> str:
    """A latency or a rate with its unit, as scenarios have it."""
    return (format_seconds if key == "latency" else format_rate)(value, 6)


def _network_of(
    paths: Mapping[str, Sequence[PathReading]], answers: Answers, sites: Mapping[str, int], notes: list[str]
) -> dict[str, Any]:
    """Keys of ``network``; adds remarks to ``notes``.

    Args:
        paths: by the name of their file.
        sites: workers by names of sites; empty: the flat form.

    Raises:
        InputError: files differ, or leave a pair of sites open.
    """
    every = [path for each in paths.values() for path in each]
    known = {key: _collect(paths, field) for key, field in _FIELDS.items()}
    default = {"latency": answers.latency_s, "bandwidth": answers.bandwidth_bytes_per_s}
    if sites:
        one_way = {(path.target, path.source) for path in every if not path.both_ways}
        form = _sites(known, default, sites, one_way, notes)
    else:
        known["bandwidth"] = known["bandwidth"] or known["per_flow"]
        values = {key: known[key].get(("", ""), default[key]) for key in default}
        if values["latency"] is None:
            raise InputError("no file says the latency: import output of ping too, or add --latency '0.1 ms'")
        form = {key: _written(key, value) for key, value in values.items() if value is not None}
    for key, given in default.items():
        if given is not None and _written(key, given) not in str(form):
            notes.append(f"--{key} is not used: the files say all")
    varying = {
        "-".join(filter(None, (p.source, p.target))) or "all": (p.latency_s, p.jitter_s / p.latency_s)
        for p in every if p.latency_s and p.jitter_s is not None
    }  # fmt: skip
    longest_s = max((latency_s for latency_s, _ in varying.values()), default=0.0)
    cvs = [cv for latency_s, cv in varying.values() if latency_s >= _LONG * longest_s]
    alike = bool(cvs) and max(cvs) <= _ALIKE * min(cvs)
    if alike and (cv := statistics.median(cvs)) >= _LEAST_CV:
        form["jitter"] = {"lognormal": {"cv": float(f"{cv:.3g}")}}
    if len(varying) > 1 and max(cv for _, cv in varying.values()) >= _LEAST_CV:
        each = ", ".join(
            f"{name} {100 * cv:.2g} % of {format_seconds(s)}" for name, (s, cv) in varying.items()
        )
        taken = "that of the longest links" if "jitter" in form else "left out"
        notes.append(f"jitter is one for all links, here {taken}; measured: {each}")
    losses = [path.loss for path in every if path.loss is not None]
    if any(losses):
        form["tcp"] = {"loss": float(f"{statistics.mean(losses):.3g}")}
        notes.append("tcp.loss: the mean of all paths; it makes the hosts stock ones, with Linux's TCP")
    return form


def _collect(paths: Mapping[str, Sequence[PathReading]], field: str) -> _Values:
    """A value for each pair; a stream alone says better than several at once what a connection carries."""
    values: dict[_Pair, tuple[float, str, bool]] = {}
    for file, path in ((file, path) for file, each in paths.items() for path in each):
        pair, value = (path.source, path.target), getattr(path, field)
        alone = field != "per_flow_bytes_per_s" or path.bandwidth_bytes_per_s is None
        if value is None:
            continue
        before, other, other_alone = values.get(pair, (value, file, alone))
        if before != value and alone == other_alone:
            what, where = field.split("_")[0], f" of {'-'.join(pair)}" if pair[0] else ""
            raise InputError(f"{other} and {file} differ on the {what}{where}: import one of them")
        if pair not in values or alone:
            values[pair] = value, file, alone
    return {pair: value for pair, (value, _, _) in values.items()}


def _sites(
    known: Mapping[str, _Values],
    default: Mapping[str, float | None],
    sites: Mapping[str, int],
    one_way: set[_Pair],
    notes: list[str],
) -> dict[str, Any]:
    inside = {key: [value for (a, b), value in values.items() if a == b] for key, values in known.items()}
    inside["bandwidth"] = inside["bandwidth"] or inside.pop("per_flow")
    if not inside["latency"] and max(sites.values()) > 1:
        name = next(iter(sites))
        raise InputError(
            f"no file says the latency within a site: import output of ping as {name}-{name}=FILE"
        )
    if not inside["bandwidth"] and default["bandwidth"] is not None:
        inside["bandwidth"] = [default["bandwidth"]]
    within = {key: _written(key, statistics.median(inside[key])) for key in default if inside[key]}
    form: dict[str, Any] = {"sites": dict(sites), "within": {"latency": "0 s"} | within}
    apart = {key: {p: v for p, v in values.items() if p[0] != p[1]} for key, values in known.items()}
    if apart["per_flow"]:
        apart["per_flow"] = apart["bandwidth"] | apart["per_flow"]
    if apart["per_flow"] and not apart["bandwidth"] and default["bandwidth"] is None:
        notes.append(
            "between sites nothing limits several connections at once: only single ones were measured"
        )
    between = {}
    for key, values in apart.items():
        given = default.get(key)
        if not values and key != "latency" and given is None:
            continue
        pairs = itertools.combinations(sites, 2)
        missing = [(a, b) for a, b in pairs if (a, b) not in values and (b, a) not in values]
        missing += [(a, b) for a, b in one_way if (a, b) not in values and (b, a) in values]
        if missing and given is None:
            names = [f"{a}-{b}" for a, b in missing]
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            add = "" if key == "per_flow" else f"; or add --{key}, for all such pairs"
            raise InputError(
                f"no file says the {key} of {', '.join(names[:5])}{more}; import {names[0]}=FILE{add}"
            )
        filled = values | {pair: given for pair in missing if given is not None}
        between[key] = {f"{a}-{b}": _written(key, value) for (a, b), value in filled.items()}
    return form | ({"between": between} if len(sites) > 1 else {})
