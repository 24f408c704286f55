"""What the scenario says about the network.

Two forms. *Flat*: ``latency`` and ``bandwidth`` of one switch that never blocks. *Sites*: ``sites``,
``within``, ``between`` and perhaps ``uplink``. Latency is one-way and end to end between two hosts.
A bandwidth that is left out is unlimited.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from sim.errors import nearest
from sim.problems import KeyPath, Problem, problems
from sim.settings import Settings
from sim.units import BytesPerSecond, Seconds

Rate = Annotated[BytesPerSecond, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]

DEFAULT: Final = "default"
_QUANTITY: Final = {"type": "string", "examples": ["40 ms"]}
_LATENCY: Final = {
    "anyOf": [_QUANTITY, {"type": "object", "additionalProperties": _QUANTITY}],
    "examples": ["40 ms", {"us-eu": "40 ms", "default": "90 ms"}],
}
_SITE_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?")


class Within(Settings):
    """The network inside every site."""

    latency: Seconds = Field(description="one-way latency between two hosts of a site")
    bandwidth: Rate | None = Field(
        default=None, description="each host's access link, full duplex; absent: unlimited"
    )


def _for_all_pairs(value: object) -> object:
    return value if isinstance(value, Mapping) else {DEFAULT: value}


class Between(Settings):
    """The network between sites."""

    latency: Annotated[dict[str, Seconds], BeforeValidator(_for_all_pairs), WithJsonSchema(_LATENCY)] = Field(
        description="one-way latency between hosts of two sites: one for all, or per pair of sites, such as "
        "{us-eu: 40 ms, default: 90 ms}; a pair holds in both directions unless both are given"
    )
    bandwidth: Rate | None = Field(
        default=None,
        description="one pipe per ordered pair of sites, shared by all that cross it; absent: unlimited",
    )
    per_flow: Rate | None = Field(
        default=None, description="what one connection gets at most; absent: unlimited"
    )


class NetworkSettings(Settings):
    """The nominal network: flat, or in sites."""

    latency: Seconds | None = Field(
        default=None, description="flat form: one-way latency between any two hosts"
    )
    bandwidth: Rate | None = Field(
        default=None, description="flat form: each host's access link, full duplex; absent: unlimited"
    )
    sites: dict[str, Count] | None = Field(
        default=None,
        min_length=1,
        description="sites form: workers of each site; ranks are given out in this order",
    )
    within: Within | None = Field(default=None, description="sites form: the network inside every site")
    between: Between | None = Field(
        default=None, description="sites form: the network between sites; needed for two or more"
    )
    uplink: dict[str, Rate] = Field(
        default={}, description="sites form: per site, what all that leaves it shares, and all that enters it"
    )
    sharing: Literal["max_min", "none"] = Field(
        default="max_min", description="how transfers share a link: max-min fairly, or as if each were alone"
    )
    overhead: Seconds = Field(default=0.0, description="software overhead of one transfer")
    announcement: float = Field(
        default=0.0, ge=0, description="cost of a rendezvous, as a factor on the route's latency; 1 for gloo"
    )

    @model_validator(mode="after")
    def _one_form(self) -> NetworkSettings:
        found = self._wrong_form()
        if not found and self.sites is not None:
            found = [*self._wrong_names(self.sites), *self._wrong_pairs(self.sites)]
        if found:
            raise problems(found)
        return self

    def _wrong_form(self) -> list[Problem]:
        flat = [key for key in ("latency", "bandwidth") if getattr(self, key) is not None]
        parts = [key for key in ("sites", "within", "between", "uplink") if getattr(self, key)]
        if flat and parts:
            text = f"'{flat[0]}' is of the flat form, '{parts[0]}' of the sites form; keep to one of them"
            return [Problem((flat[0],), text)]
        if not parts:
            text = "give latency and bandwidth (one switch), or sites, within and between"
            return [] if self.latency is not None else [Problem((), text)]
        needed = ["sites", "within"]
        if self.sites is not None and len(self.sites) > 1:
            needed.append("between")
        return [Problem((key,), "is missing") for key in needed if getattr(self, key) is None]

    def _wrong_names(self, sites: Mapping[str, int]) -> list[Problem]:
        found = [
            Problem(("sites", name), "a site's name is letters, digits, '-' and '_'")
            for name in sites
            if not _SITE_NAME.fullmatch(name)
        ]
        found += [
            Problem(("uplink", name), f"no site is called '{name}'; {nearest(name, sites)}")
            for name in self.uplink
            if name not in sites
        ]
        return found

    def _wrong_pairs(self, sites: Mapping[str, int]) -> list[Problem]:
        if self.between is None:
            return []
        at: KeyPath = ("between", "latency")
        found: list[Problem] = []
        given: dict[tuple[str, str], str] = {}
        pairs = _pair_names(sites)
        for name in self.between.latency:
            meant = pairs.get(name, [])
            if name == DEFAULT:
                continue
            if not meant:
                found.append(Problem((*at, name), f"no two sites have this name; {nearest(name, pairs)}"))
            elif len(meant) > 1:
                both = " or ".join(f"'{a}' to '{b}'" for a, b in meant)
                found.append(Problem((*at, name), f"may mean {both}; rename a site"))
            else:
                given[meant[0]] = name
        if not found and DEFAULT not in self.between.latency:
            silent = [
                f"'{a}-{b}'"
                for a, b in itertools.combinations(sites, 2)
                if (a, b) not in given and (b, a) not in given
            ]
            if silent:
                more = f" and {len(silent) - 3} more" if len(silent) > 3 else ""
                found.append(Problem(at, f"says nothing of {', '.join(silent[:3])}{more}; add a 'default'"))
        return found

    def latencies(self) -> dict[tuple[str, str], float]:
        """One-way latency in seconds for every ordered pair of different sites; empty in the flat form."""
        if self.sites is None or self.between is None:
            return {}
        said = self.between.latency
        given = {meant[0]: said[name] for name, meant in _pair_names(self.sites).items() if name in said}
        out: dict[tuple[str, str], float] = {}
        for a, b in itertools.permutations(self.sites, 2):
            known = given.get((a, b), given.get((b, a)))
            out[a, b] = said[DEFAULT] if known is None else known
        return out


def _pair_names(sites: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """``a-b`` -> the ordered pairs of sites that it can name; several, since names may contain dashes."""
    out: dict[str, list[tuple[str, str]]] = {}
    for a, b in itertools.permutations(sites, 2):
        out.setdefault(f"{a}-{b}", []).append((a, b))
    return out
