"""Network settings from what was measured between places: the flat form, or sites where ends have names."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from paceline.sim.config.units import format_rate, format_seconds
from paceline.sim.errors import InputError

from .readings import Answers, PathReading

_LEAST_CV: Final = 0.05
"""Less is left out: it is of the order of what the hosts themselves add to a round trip."""
_LONG, _ALIKE = 0.1, 2.0
"""Latencies over the longest from which on links decide the jitter, and most between their shares of it."""
_FIELDS: Final = {
    "latency": "latency_s", "bandwidth": "bandwidth_bytes_per_s", "per_flow": "per_flow_bytes_per_s"
}  # fmt: skip

_Pair = tuple[str, str]
_Values = dict[_Pair, float]


def write_value(key: str, value: float) -> str:
    """A latency or a rate with its unit, as scenarios have it."""
    return (format_seconds if key == "latency" else format_rate)(value, 6)


def network_of(
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
        form = {key: write_value(key, value) for key, value in values.items() if value is not None}
    for key, given in default.items():
        if given is not None and write_value(key, given) not in str(form):
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
    within = {key: write_value(key, statistics.median(inside[key])) for key in default if inside[key]}
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
        between[key] = {f"{a}-{b}": write_value(key, value) for (a, b), value in filled.items()}
    return form | ({"between": between} if len(sites) > 1 else {})
