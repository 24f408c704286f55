"""Network settings from what was measured between places: the flat form, or sites where ends have names."""

from __future__ import annotations

import itertools
import re
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ..config.units import format_rate, format_seconds
from ..errors import InputError
from .readings import Answers, PathReading

_LEAST_CV: Final = 0.01
"""Less jitter is left out: it hardly shows in a result, and slows the simulation."""
_OTHER_LETTERS: Final = re.compile(r"[^A-Za-z0-9]+")

_Pair = tuple[str, str]
_Values = dict[_Pair, float]


def write_value(key: str, value: float) -> str:
    """A latency or a rate with its unit, as scenarios have it."""
    return (format_seconds if key == "latency" else format_rate)(value, 6)


def network_of(
    paths: Mapping[str, Sequence[PathReading]],
    answers: Answers,
    counts: Mapping[str, int],
    workers: int | None,
    notes: list[str],
) -> dict[str, Any]:
    """Keys of ``network``; adds remarks to ``notes``.

    Args:
        paths: by the name of their file.
        counts: workers of each site, where a file says them.

    Raises:
        InputError: files differ, or leave a pair of sites open.
    """
    every = [path for each in paths.values() for path in each]
    known = {
        "latency": _collect(paths, "latency_s"),
        "bandwidth": _collect(paths, "bandwidth_bytes_per_s"),
        "per_flow": _collect(paths, "per_flow_bytes_per_s"),
    }
    names = list(dict.fromkeys(name for path in every for name in (path.source, path.target)))
    if "" not in names and names:
        form = _sites(known, answers, _count(names, counts, workers), notes)
    elif len(names) > 1:
        file = next(file for file, each in paths.items() if not each[0].source)
        raise InputError(
            f"{file}: name the sites it was measured between: us-eu={file}, or us-us={file} within one"
        )
    else:
        form = _flat({key: values.get(("", "")) for key, values in known.items()}, answers)
    cvs = [path.jitter_s / path.latency_s for path in every if path.latency_s and path.jitter_s is not None]
    if cvs and (cv := statistics.median(cvs)) >= _LEAST_CV:
        form["jitter"] = {"lognormal": {"cv": float(f"{cv:.3g}")}}
    losses = [path.loss for path in every if path.loss is not None]
    if any(losses):
        form["tcp"] = {"loss": float(f"{statistics.mean(losses):.3g}")}
        notes.append("tcp.loss: the mean loss of all paths; hosts are stock ones for it, with Linux's TCP")
    return form


def _collect(paths: Mapping[str, Sequence[PathReading]], field: str) -> _Values:
    """A value for each measured pair; one stream alone says better than several what a connection carries."""
    values: dict[_Pair, tuple[float, str, bool]] = {}
    for file, path in ((file, path) for file, each in paths.items() for path in each):
        pair, value = (path.source, path.target), getattr(path, field)
        if value is None:
            continue
        alone = field != "per_flow_bytes_per_s" or path.bandwidth_bytes_per_s is None
        before, other, other_alone = values.get(pair, (value, file, alone))
        if before != value and alone == other_alone:
            what, where = field.split("_")[0], f" of {pair[0]}-{pair[1]}" if pair[0] else ""
            raise InputError(f"{other} and {file} differ on the {what}{where}: import one of them")
        if pair not in values or alone:
            values[pair] = value, file, alone
        if not path.both_ways:
            values.setdefault(pair[::-1], (-1.0, file, False))
    return {pair: value for pair, (value, _, _) in values.items()}


def _flat(known: Mapping[str, float | None], answers: Answers) -> dict[str, Any]:
    values = {
        "latency": known["latency"] if known["latency"] is not None else answers.latency_s,
        "bandwidth": known["bandwidth"] or known["per_flow"] or answers.bandwidth_bytes_per_s,
    }
    if values["latency"] is None:
        raise InputError(
            "no file says the latency: import output of ping too, or add --latency '0.1 ms' (one-way)"
        )
    return {key: write_value(key, value) for key, value in values.items() if value is not None}


def _count(names: Sequence[str], counts: Mapping[str, int], workers: int | None) -> dict[str, int]:
    """Workers of each site."""
    if counts and set(counts) == set(names):
        return dict(counts)
    if workers is not None and workers % len(names):
        raise InputError(
            f"--workers {workers} cannot be shared evenly by the {len(names)} sites; take a multiple"
        )
    return dict.fromkeys(names, (workers or len(names)) // len(names))


def _sites(
    known: Mapping[str, _Values], answers: Answers, counts: Mapping[str, int], notes: list[str]
) -> dict[str, Any]:
    short = _site_names(list(counts))
    form: dict[str, Any] = {"sites": {short[name]: count for name, count in counts.items()}}
    inside = {key: [value for (a, b), value in values.items() if a == b] for key, values in known.items()}
    inside["bandwidth"] = inside["bandwidth"] or inside.pop("per_flow")
    if not inside["latency"] and max(counts.values()) > 1:
        name = next(iter(counts))
        raise InputError(
            f"no file says the latency within a site: import output of ping as {name}-{name}=FILE"
        )
    form["within"] = {
        key: write_value(key, statistics.median(inside[key] or [0.0]))
        for key in ("latency", "bandwidth")
        if inside[key] or key == "latency"
    }
    defaults = {"latency": answers.latency_s, "bandwidth": answers.bandwidth_bytes_per_s}
    between = {}
    for key, values in known.items():
        apart = {pair: value for pair, value in values.items() if pair[0] != pair[1]}
        if len(counts) > 1 and (apart or key == "latency"):
            if key == "per_flow":
                apart = {
                    pair: value for pair, value in known["bandwidth"].items() if pair[0] != pair[1]
                } | apart
            between[key] = _of_pairs(key, apart, list(counts), defaults.get(key), short)
    if between:
        form["between"] = between
    if "per_flow" in between and "bandwidth" not in between:
        notes.append(
            "between sites only single connections were measured; of several at once nothing is limited"
        )
    return form


def _of_pairs(
    key: str, values: _Values, names: Sequence[str], default: float | None, short: Mapping[str, str]
) -> dict[str, str]:
    """A key of ``between``. ``InputError`` names the pairs that no file has, unless there is a default."""
    missing = [
        f"{a}-{b}"
        for a, b in itertools.permutations(names, 2)
        if values.get((a, b)) == -1
        or ((a, b) not in values and (b, a) not in values and names.index(a) < names.index(b))
    ]
    if missing and default is None:
        more = f" and {len(missing) - 5} more" if len(missing) > 5 else ""
        add = f"; or add --{key}, for all such pairs" if key != "per_flow" else ""
        raise InputError(
            f"no file says the {key} of {', '.join(missing[:5])}{more}: import each, as {missing[0]}=FILE{add}"
        )
    out = {
        f"{short[a]}-{short[b]}": write_value(key, value) for (a, b), value in values.items() if value != -1
    }
    return out | ({"default": write_value(key, default)} if missing and default is not None else {})


def _site_names(names: Sequence[str]) -> dict[str, str]:
    """Names that a scenario takes, and of which each pair can be told: "us-east" and "us" could not."""
    short = {name: _OTHER_LETTERS.sub("-", name).strip("-") or "site" for name in names}
    pairs = Counter(f"{a}-{b}" for a, b in itertools.permutations(short.values(), 2))
    if max(pairs.values(), default=1) > 1:
        short = {name: each.replace("-", "_") for name, each in short.items()}
    if len(set(short.values())) < len(short):
        twice = [name for name in names if list(short.values()).count(short[name]) > 1]
        raise InputError(f"the sites {' and '.join(map(repr, twice[:2]))} have the same letters: rename one")
    return short
