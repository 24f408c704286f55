"""Network within and between sites: one value for all pairs of sites, a value for each, or a matrix."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema

from ...config.csv_tables import read_table
from ...config.problems import KeyPath, Mistake
from ...config.settings import Settings, read_beside
from ...config.units import BoundedSeconds, Rate, parse_bandwidth, parse_duration
from ...errors import InputError, did_you_mean

DEFAULT: Final = "default"
_QUANTITY: Final = {"type": "string", "examples": ["40 ms"]}
_LATENCY: Final = {
    "anyOf": [_QUANTITY, {"type": "object", "additionalProperties": _QUANTITY}],
    "examples": ["40 ms", {"us-eu": "40 ms", "default": "90 ms"}],
}
_RATE: Final = {
    "anyOf": [{"type": "string"}, {"type": "object", "additionalProperties": {"type": "string"}}],
    "examples": ["1 Gbit/s", {"us-eu": "1 Gbit/s", "eu-us": "300 Mbit/s", "default": "100 Mbit/s"}],
}


class Within(Settings):
    """The network inside every site."""

    latency: BoundedSeconds = Field(description="one-way latency between two hosts of a site")
    bandwidth: Rate | None = Field(
        default=None, description="each host's access link, full duplex (default: unlimited)"
    )
    upload: Rate | None = Field(
        default=None,
        description="outgoing bandwidth of each host, if not `bandwidth`",
    )


def _for_all_pairs(
    value: object, info: ValidationInfo, parse: Callable[[object], float], unit: str
) -> object:
    """Normalise one value for all pairs, a mapping, or the name of a file with a matrix."""
    if isinstance(value, str) and value.endswith(".csv"):
        return read_beside(info, value, partial(_matrix, parse=parse, unit=unit))
    return value if value is None or isinstance(value, Mapping) else {DEFAULT: value}


def _matrix(path: Path, parse: Callable[[object], float], unit: str) -> dict[str, str]:
    """Read a row per source and a column per destination; the diagonal does not count."""
    table = read_table(path)
    values = dict[str, str]()
    for line, cells in table.rows:
        for column in range(1, len(cells)):
            source, destination = cells[0], table.names[column]
            if source != destination:
                own = table.units[column] or table.units[0]
                value = table.value(line, column, cells, parse, own)
                if (pair := f"{source}-{destination}") in values:
                    raise InputError(f"{path}:{line}: has a second value of {pair}")
                values[pair] = f"{value!r} {unit}"
    if not values:
        raise InputError(f"{path}: is no matrix: a row for each site, and a column for each")
    return values


Rates = Annotated[
    dict[str, Rate],
    BeforeValidator(partial(_for_all_pairs, parse=parse_bandwidth, unit="B/s")),
    WithJsonSchema(_RATE),
]


class Between(Settings):
    """The network between sites."""

    latency: Annotated[
        dict[str, BoundedSeconds],
        BeforeValidator(partial(_for_all_pairs, parse=parse_duration, unit="s")),
        WithJsonSchema(_LATENCY),
    ] = Field(
        description="one-way latency between hosts of two sites: one value, one per pair of sites ({us-eu: "
        "40 ms, default: 90 ms}; both directions unless both are given), or a CSV file with a row and a "
        "column per site, relative to the scenario's folder"
    )
    bandwidth: Rates | None = Field(
        default=None,
        description="shared pipe of each ordered pair of sites, written as latency is (default: unlimited)",
    )
    per_flow: Rates | None = Field(
        default=None,
        description="limit of one connection, written as latency is (default: unlimited)",
    )


def find_wrong_pairs(
    sites: Mapping[str, int], at: KeyPath, values: Mapping[str, object]
) -> Iterator[Mistake]:
    """Mistakes in the names of pairs in ``values`` at key ``at``; missing pairs, too."""
    pairs = _pair_names(sites)
    names = [name for name in values if name != DEFAULT]
    if names and not pairs:
        yield Mistake(at, "there is one site, and nothing between sites; leave cluster.network.between out")
        return
    for name in names:
        if name not in pairs:
            yield Mistake((*at, name), f"no two sites have this name; {did_you_mean(name, pairs)}")
        elif len(pairs[name]) > 1:
            both = " or ".join(f"'{a}' to '{b}'" for a, b in pairs[name])
            yield Mistake((*at, name), f"may mean {both}; rename a site")
    if DEFAULT in values or any(len(pairs.get(name, ())) != 1 for name in names):
        return
    given = {frozenset(pairs[name][0]) for name in names}
    silent = [f"'{a}-{b}'" for a, b in itertools.combinations(sites, 2) if {a, b} not in given]
    if silent:
        more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
        yield Mistake(at, f"says nothing of {', '.join(silent[:3])}{more}; add a 'default'")


def by_pair(sites: Mapping[str, Any], values: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """Value for every ordered pair of sites: its own, else that of the way back, else the default."""
    given = {pair[0]: values[name] for name, pair in _pair_names(sites).items() if name in values}
    return {
        (a, b): given[a, b] if (a, b) in given else given[b, a] if (b, a) in given else values[DEFAULT]
        for a, b in itertools.permutations(sites, 2)
    }


def _pair_names(sites: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """``a-b`` -> ordered pairs of sites of that name; several, since names of sites may contain dashes."""
    out: dict[str, list[tuple[str, str]]] = {}
    for a, b in itertools.permutations(sites, 2):
        out.setdefault(f"{a}-{b}", []).append((a, b))
    return out
