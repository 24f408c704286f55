"""Network settings from what was measured between places: the flat form, or sites where ends have names."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..config.units import format_rate, format_seconds
from ..errors import InputError
from .readings import Answers, PathReading

_LEAST_CV: Final = 0.05
"""Less is left out: it is of the order of what the hosts themselves add to a round trip."""
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
    cvs = [path.jitter_s / path.latency_s for path in every if path.latency_s and path.jitter_s is not None]
    if cvs and (cv := statistics.median(cvs)) >= _LEAST_CV:
        form["jitter"] = {"lognormal": {"cv": float(f"{cv:.3g}")}}
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
