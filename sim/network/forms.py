"""Forms of a scenario's network: sites, graphs, and links that vary."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final
from xml.etree.ElementTree import ParseError

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema, model_validator
from pydantic.json_schema import JsonSchemaValue

from ..config.csv_tables import read_table
from ..config.files import parse_json
from ..config.limits import MAX_GRAPH_HOSTS, MAX_RATE
from ..config.problems import KeyPath, Mistake, mistake, one_line
from ..config.settings import OneOf, Printable, Settings, read_beside
from ..config.units import (
    BoundedSeconds,
    BytesPerSecond,
    Rate,
    check_rate,
    parse_bandwidth,
    parse_duration,
    parse_rate,
)
from ..config.yaml_file import read_text
from ..errors import InputError, did_you_mean, quote

if TYPE_CHECKING:
    import networkx as nx

MAX_GRAPH_BYTES: Final = 16 * 2**20

_KINDS: Final = ("host", "switch")
_UNREADABLE: Final = (ParseError, ValueError, KeyError, TypeError, AttributeError, RecursionError)

NodeName = Annotated[Printable, Field(min_length=1)]


class GraphLink(Settings):
    """A link between two hosts or switches."""

    source: NodeName = Field(description="a host, or else a switch")
    target: NodeName = Field(description="likewise")
    latency: BoundedSeconds = Field(description="one-way")
    bandwidth: Rate | None = Field(default=None, description="each way (default: unlimited)")
    one_way: bool = Field(default=False, description="from source to target only; else full duplex")


class Graph(Settings):
    """Hosts, switches and links; a file's name, or its contents."""

    other_forms: ClassVar[tuple[JsonSchemaValue, ...]] = ({"type": "string", "examples": ["campus.graphml"]},)

    file: str | None = Field(
        default=None, description="GraphML or node-link JSON; relative to the scenario's folder"
    )
    hosts: tuple[NodeName, ...] = Field(
        default=(),
        max_length=MAX_GRAPH_HOSTS,
        description="one per worker, in order; other nodes are switches",
    )
    links: tuple[GraphLink, ...] = Field(default=(), description="links")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        """Read the file once: the resolved scenario has its contents."""
        if isinstance(data, str):
            data = {"file": data}
        if not isinstance(data, Mapping) or not isinstance(data.get("file"), str) or "hosts" in data:
            return data
        return {**data, **read_beside(info, data["file"], read_graph, "file")}

    @model_validator(mode="after")
    def _check(self) -> Graph:
        if not self.hosts:
            raise ValueError("has no hosts; give a file, or hosts and links")
        twice = [name for name, times in Counter(self.hosts).items() if times > 1]
        if twice:
            raise mistake(f"the host '{twice[0]}' is named twice", "hosts")
        ways: set[tuple[str, str]] = set()
        for number, link in enumerate(self.links):
            both = [(link.source, link.target)] + [(link.target, link.source)] * (not link.one_way)
            if link.source == link.target or not ways.isdisjoint(both):
                text = f"{quote(link.source)} and {quote(link.target)} cannot be joined " + (
                    "once more" if link.source != link.target else "with themselves"
                )
                raise mistake(text, "links", number)
            ways.update(both)
        return self


def read_graph(path: Path) -> dict[str, Any]:
    """Read ``hosts`` and ``links`` of a ``.graphml`` or ``.json`` file in the form of a scenario.

    Nodes are hosts unless their attribute ``kind`` is ``switch``. Edges have ``latency`` and perhaps
    ``bandwidth``, with units. An undirected edge is a full-duplex link. Raises ``InputError`` where the file
    cannot be read, or a node or an edge is not as described.
    """
    import networkx as nx

    if path.suffix not in (".graphml", ".json"):
        raise InputError(f"{path}: a graph is a .graphml or a .json file")
    text = read_text(path, MAX_GRAPH_BYTES, foreign=True)
    try:
        graph = _from_json(text) if path.suffix == ".json" else nx.parse_graphml(text)
    except (*_UNREADABLE, nx.NetworkXError) as error:
        raise InputError(f"{path}: is no graph that networkx can read: {one_line(str(error), 200)}") from None
    if graph.number_of_edges() > len(set(graph.edges())):
        raise InputError(f"{path}: has parallel edges; write each link once")
    hosts = [str(node) for node, data in graph.nodes(data=True) if _kind(path, node, data) == "host"]
    if not hosts:
        raise InputError(f"{path}: has no hosts; a node is one unless its kind is 'switch'")
    links = [
        {
            "source": str(a),
            "target": str(b),
            "latency": _quantity(path, a, b, data, "latency"),
            **({"bandwidth": _quantity(path, a, b, data, "bandwidth")} if "bandwidth" in data else {}),
            **({"one_way": True} if graph.is_directed() else {}),
        }
        for a, b, data in graph.edges(data=True)
    ]
    return {"hosts": tuple(hosts), "links": tuple(links)}


def _from_json(text: str) -> nx.Graph[Any]:
    import networkx as nx

    data = parse_json(text, once=True)
    if not isinstance(data, dict):
        raise ValueError("it is no object with nodes and edges")
    return nx.node_link_graph(data, edges="links" if "links" in data else "edges")


def _kind(path: Path, node: object, data: Mapping[str, Any]) -> str:
    kind = data.get("kind", "host")
    if kind not in _KINDS:
        raise InputError(
            f"{path}: node {quote(node)} has the kind {quote(kind)}; {did_you_mean(str(kind), _KINDS)}"
        )
    return str(kind)


def _quantity(path: Path, a: object, b: object, data: Mapping[str, Any], key: str) -> str:
    if key not in data:
        raise InputError(
            f"{path}: the edge from {quote(a)} to {quote(b)} has no {key}; write for example '5 ms'"
        )
    text, parse = str(data[key]), parse_duration if key == "latency" else parse_bandwidth
    try:
        parse(text)
    except InputError as error:
        raise InputError(f"{path}: the edge from {quote(a)} to {quote(b)}: {key}: {error}") from None
    return text


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


MIN_PERIOD_S: Final = 1e-3
"""Seconds after which a bandwidth trace may begin again."""


class TraceStep(Settings):
    """From this time on, this bandwidth and this latency."""

    at: BoundedSeconds = Field(description="time on the run's clock")
    bandwidth: Annotated[
        BytesPerSecond, Field(ge=0, le=MAX_RATE), AfterValidator(lambda rate: rate and check_rate(rate))
    ] = Field(description="bandwidth until the next step; 0 Mbit/s: outage")
    latency: BoundedSeconds = Field(default=0.0, description="latency added until the next step")


class LinkTrace(Settings):
    """A piecewise constant bandwidth and latency."""

    file: str | None = Field(
        default=None,
        description="CSV with the columns time, bandwidth and perhaps latency; relative to the scenario's "
        "folder",
    )
    steps: tuple[TraceStep, ...] = Field(
        default=(), description="instead of a file: the steps, the first at 0 s"
    )
    period: BoundedSeconds | None = Field(
        default=None,
        description="time after which the table repeats (default: never, the last bandwidth stays)",
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        """Read the file once: the resolved scenario has its contents."""
        if not isinstance(data, Mapping) or not isinstance(data.get("file"), str) or data.get("steps"):
            return data
        return {**data, "steps": read_beside(info, data["file"], _trace_steps, "file")}

    @model_validator(mode="after")
    def _check(self) -> LinkTrace:
        if not self.steps:
            raise ValueError("give a file, or steps")
        if self.steps[0].at != 0:
            raise mistake("the first step has to be at 0 s", "steps", 0, "at")
        for number, (before, after) in enumerate(pairwise(self.steps)):
            if after.at <= before.at:
                raise mistake("is not later than the step before", "steps", number + 1, "at")
        if self.period is not None and self.period <= self.steps[-1].at:
            raise mistake(f"has to be longer than the last step's {self.steps[-1].at:g} s", "period")
        if self.period is not None and self.period < MIN_PERIOD_S:
            raise mistake(f"must be at least {MIN_PERIOD_S:g} s", "period")
        if not any(step.bandwidth for step in self.steps):
            raise mistake("one step at least needs a bandwidth above 0", "steps")
        return self

    @property
    def adds_latency(self) -> bool:
        """Whether any step adds to latencies."""
        return any(step.latency for step in self.steps)


def _trace_steps(path: Path) -> tuple[dict[str, str], ...]:
    table = read_table(path)
    table.refuse_others(("time", "bandwidth", "latency"))
    times = table.values("time", parse_duration)
    rates = table.values("bandwidth", lambda value: parse_rate(value) and parse_bandwidth(value))
    if not any(rates):
        raise InputError(f"{table.source}: bandwidth: one step at least needs one above 0")
    lines = [line for line, _ in table.rows]
    for line, before, at in zip(lines, [-1.0, *times], times, strict=False):
        if at <= before or (before < 0 < at):
            why = "is not later than the one before" if before >= 0 else "the first has to be 0 s"
            raise InputError(f"{table.source}:{line}: time: {why}")
    steps = [{"at": f"{at!r} s", "bandwidth": f"{rate!r} B/s"} for at, rate in zip(times, rates, strict=True)]
    if "latency" in table.names:
        for step, added_s in zip(steps, table.values("latency", parse_duration), strict=True):
            step["latency"] = f"{added_s!r} s"
    return tuple(steps)


class SlowPeriods(Settings):
    """A Markov chain in time: slow and fast periods of exponential length."""

    slow: Annotated[BoundedSeconds, Field(ge=1e-3)] = Field(description="mean length of a slow period")
    fast: Annotated[BoundedSeconds, Field(ge=1e-3)] = Field(
        description="mean length of a period at full speed"
    )
    factor: float = Field(ge=1e-6, lt=1, description="share of the nominal bandwidth in a slow period")


class Outage(Settings):
    """A time in which a link carries nothing."""

    at: BoundedSeconds = Field(description="start, on the run's clock")
    duration: Annotated[BoundedSeconds, Field(gt=0)] = Field(description="duration")


def _check_outages(outages: tuple[Outage, ...]) -> tuple[Outage, ...]:
    if not outages:
        raise ValueError("give one outage at least")
    for before, after in pairwise(outages):
        if after.at <= before.at + before.duration:
            raise mistake(f"an outage at {after.at:g} s is not later than the end of the one before")
    return outages


class Variation(OneOf):
    """Variation of links in time: a trace, markov or outages."""

    alternatives: ClassVar[tuple[str, ...]] = ("trace", "markov", "outages")

    links: str = Field(description="names as in `paceline check --why`, with * and ?: 'us->*', 'host? up'")
    trace: LinkTrace | None = Field(default=None, description="from a table")
    markov: SlowPeriods | None = Field(default=None, description="random periods, independent per link")
    outages: Annotated[tuple[Outage, ...], AfterValidator(_check_outages)] | None = Field(
        default=None, description="outages, in order; messages wait, then continue"
    )
