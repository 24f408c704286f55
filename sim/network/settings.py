"""The scenario's settings of the network.

Four forms. *Flat*: ``latency`` and ``bandwidth`` of one switch that never blocks. *Sites*: ``sites``,
``within``, ``between`` and perhaps ``uplink``. *Graph*: ``graph``. The user's own: ``model``. Latency is
one-way; in the first two forms it is end to end between two hosts, in a graph that of a link. A bandwidth
that is left out is unlimited. Where ``host`` has several ``gpus``, each of them is a worker.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ..config.limits import MAX_GRAPH_HOSTS, MAX_MODEL_BYTES, MAX_RATE, MAX_SITES, MAX_WORKERS, MIN_RATE
from ..config.problems import KeyPath, Mistake, explain, mistake, one_line, raise_mistakes
from ..config.settings import OneOf, Printable, Settings, read_beside
from ..config.tables import read_table
from ..config.units import BoundedSeconds, Bytes, BytesPerSecond, parse_bandwidth, parse_duration, parse_rate
from ..errors import InputError, did_you_mean, quote
from ..jitter import Jitter
from .graph_files import read_graph
from .tcp import HostTuning, TcpSettings


def _check_rate(value: float) -> float:
    if value < MIN_RATE:
        raise mistake(f"must be at least 1 bit/s, not {value:g} B/s")
    return value


Rate = Annotated[BytesPerSecond, Field(gt=0, le=MAX_RATE), AfterValidator(_check_rate)]
Count = Annotated[int, Field(ge=1, le=MAX_WORKERS)]

TransportName = Literal["ideal", "gloo", "nccl"]
QueueName = Literal["fair", "fifo"]

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
MIN_PERIOD_S: Final = 1e-3
"""Seconds after which a bandwidth trace may begin again."""
_SITE_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?")


class Within(Settings):
    """The network inside every site."""

    latency: BoundedSeconds = Field(description="one-way latency between two hosts of a site")
    bandwidth: Rate | None = Field(
        default=None, description="each host's access link, full duplex; absent: unlimited"
    )
    upload: Rate | None = Field(
        default=None,
        description="each host's way out, where it differs from its way in, which is `bandwidth`",
    )


def _latencies_for_all_pairs(value: object, info: ValidationInfo) -> object:
    return _for_all_pairs(value, info, parse_duration, "s")


def _rates_for_all_pairs(value: object, info: ValidationInfo) -> object:
    return _for_all_pairs(value, info, parse_bandwidth, "B/s")


def _for_all_pairs(
    value: object, info: ValidationInfo, parse: Callable[[object], float], unit: str
) -> object:
    """One value for all pairs, a mapping, or the name of a file with a matrix."""
    if isinstance(value, str) and value.endswith(".csv"):
        return read_beside(info, value, partial(_matrix, parse=parse, unit=unit))
    return value if value is None or isinstance(value, Mapping) else {DEFAULT: value}


def _matrix(path: Path, parse: Callable[[object], float], unit: str) -> dict[str, str]:
    """A row per source and a column per destination; the diagonal does not count."""
    table = read_table(path)
    values = {}
    for line, cells in table.rows:
        for column in range(1, len(cells)):
            source, destination = cells[0], table.names[column]
            if source != destination:
                own = table.units[column] or table.units[0]
                value = table.value(line, column, cells, parse, own)
                values[f"{source}-{destination}"] = f"{value!r} {unit}"
    return values


Rates = Annotated[dict[str, Rate], BeforeValidator(_rates_for_all_pairs), WithJsonSchema(_RATE)]


class Between(Settings):
    """The network between sites."""

    latency: Annotated[
        dict[str, BoundedSeconds], BeforeValidator(_latencies_for_all_pairs), WithJsonSchema(_LATENCY)
    ] = Field(
        description="one-way latency between hosts of two sites: one for all, or per pair of sites, such as "
        "{us-eu: 40 ms, default: 90 ms}; a pair holds in both directions unless both are given; or a CSV "
        "file, relative to the scenario's folder, with a row and a column per site"
    )
    bandwidth: Rates | None = Field(
        default=None,
        description="one pipe per ordered pair of sites, shared by all that cross it: one for all, or per "
        "pair or in a CSV file, as for latency; absent: unlimited",
    )
    per_flow: Rates | None = Field(
        default=None,
        description="what one connection gets at most: one for all, or per pair or in a CSV file, as for "
        "latency; absent: unlimited",
    )


class GpuHost(Settings):
    """What every host is: GPUs, each of which is a worker, that share its network card."""

    gpus: Count = Field(default=1, description="in each host; consecutive workers")
    latency: BoundedSeconds = Field(default=0.0, description="one-way latency between two GPUs of a host")
    bandwidth: Rate | None = Field(
        default=None,
        description="each GPU's link to the others of its host, full duplex; what leaves the host does not "
        "cross it; absent: unlimited",
    )
    memory: Annotated[Bytes, Field(gt=0, le=MAX_MODEL_BYTES)] | None = Field(
        default=None, description="of each of its GPUs; absent: `cluster.memory`"
    )


class GraphLink(Settings):
    """A link between two hosts or switches."""

    source: Printable = Field(description="a host, or else a switch")
    target: Printable = Field(description="likewise")
    latency: BoundedSeconds = Field(description="one-way")
    bandwidth: Rate | None = Field(default=None, description="each way; absent: unlimited")
    one_way: bool = Field(default=False, description="from source to target only; else full duplex")


class Graph(Settings):
    """Hosts, switches and links; a file's name, or its contents."""

    file: str | None = Field(
        default=None, description="GraphML or node-link JSON; relative to the scenario's folder"
    )
    hosts: tuple[Printable, ...] = Field(
        default=(),
        max_length=MAX_GRAPH_HOSTS,
        description="one per worker, in order; other nodes are switches",
    )
    links: tuple[GraphLink, ...] = Field(default=(), description="what joins them")

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        """A file is read once: the resolved scenario has its contents."""
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

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [read(schema), {"type": "string", "examples": ["campus.graphml"]}]}


def _check_rate_or_none(value: float) -> float:
    return value if value == 0 else _check_rate(value)


class TraceStep(Settings):
    """From this time on, this bandwidth and this latency."""

    at: BoundedSeconds = Field(description="time on the run's clock")
    bandwidth: Annotated[BytesPerSecond, Field(ge=0, le=MAX_RATE), AfterValidator(_check_rate_or_none)] = (
        Field(description="of the link, until the next step; 0 Mbit/s: it carries nothing")
    )
    latency: BoundedSeconds = Field(
        default=0.0, description="added to the latency of all that crosses the link, until the next step"
    )


class LinkTrace(Settings):
    """A piecewise constant bandwidth and latency."""

    file: str | None = Field(
        default=None,
        description="CSV with the columns time, bandwidth and perhaps latency; relative to the scenario's "
        "folder",
    )
    steps: tuple[TraceStep, ...] = Field(
        default=(), description="instead of a file, or what was read from it; the first at 0 s"
    )
    period: BoundedSeconds | None = Field(
        default=None, description="begin again after this time; absent: the last bandwidth stays"
    )

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any, info: ValidationInfo) -> Any:
        """A file is read once: the resolved scenario has its contents."""
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
        """Whether any step of it adds to latencies."""
        return any(step.latency for step in self.steps)


def _parse_rate_or_none(value: object) -> float:
    return parse_rate(value) and parse_bandwidth(value)


def _trace_steps(path: Path) -> tuple[dict[str, str], ...]:
    table = read_table(path)
    times, rates = table.values("time", parse_duration), table.values("bandwidth", _parse_rate_or_none)
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

    at: BoundedSeconds = Field(description="when it begins, on the run's clock")
    duration: Annotated[BoundedSeconds, Field(gt=0)] = Field(description="how long it lasts")


def _check_outages(outages: tuple[Outage, ...]) -> tuple[Outage, ...]:
    if not outages:
        raise ValueError("give one outage at least")
    for before, after in pairwise(outages):
        if after.at <= before.at + before.duration:
            raise mistake(f"an outage at {after.at:g} s is not later than the end of the one before")
    return outages


class Variation(OneOf):
    """How some links change as time goes on; give a trace, markov or outages."""

    alternatives: ClassVar[tuple[str, ...]] = ("trace", "markov", "outages")

    links: str = Field(
        description="their names, as `paceline check` shows them, with * and ?: 'us->*', 'host? up'"
    )
    trace: LinkTrace | None = Field(default=None, description="from a table")
    markov: SlowPeriods | None = Field(default=None, description="at random, each link on its own")
    outages: Annotated[tuple[Outage, ...], AfterValidator(_check_outages)] | None = Field(
        default=None, description="times in which the links carry nothing, in order; messages wait and go on"
    )


class NetworkSettings(Settings):
    """The nominal network: flat, in sites, a graph, or the user's own."""

    latency: BoundedSeconds | None = Field(
        default=None, description="flat form: one-way latency between any two hosts"
    )
    bandwidth: Rate | None = Field(
        default=None, description="flat form: each host's access link, full duplex; absent: unlimited"
    )
    upload: Rate | None = Field(
        default=None,
        description="flat form: each host's way out, where it differs from its way in, which is `bandwidth`",
    )
    sites: dict[str, Count] | None = Field(
        default=None,
        min_length=1,
        max_length=MAX_SITES,
        description="sites form: workers of each site; ranks are given out in this order",
    )
    within: Within | None = Field(default=None, description="sites form: the network inside every site")
    between: Between | None = Field(
        default=None, description="sites form: the network between sites; needed for two or more"
    )
    uplink: dict[str, Rate] = Field(
        default={}, description="sites form: per site, what all that leaves it shares, and all that enters it"
    )
    host: GpuHost | None = Field(
        default=None,
        description="what every host is: several GPUs, each a worker, with links of their own inside; its "
        "network card, which is the access link of `bandwidth`, or what joins it in a graph, is shared by "
        "them; absent: one worker",
    )
    graph: Graph | None = Field(
        default=None, description="graph form: hosts, switches and links; or the name of a file"
    )
    model: str | None = Field(
        default=None,
        description="your function of the number of workers, as package.module:name; it returns a Network",
    )
    jitter: Jitter | None = Field(
        default=None, description="how a message's latency varies around its route's; absent: not at all"
    )
    variation: tuple[Variation, ...] = Field(
        default=(), description="links that change as time goes on; needs sharing: max_min or rtt"
    )
    sharing: Literal["max_min", "rtt", "none"] = Field(
        default="max_min",
        description="how transfers share a link: max-min fairly, the same weighted by one over the round "
        "trip (as TCP does where losses hold it back), or as if each were alone",
    )
    transport: TransportName | None = Field(
        default="ideal",
        description="what carries the bytes: `ideal` (collectives limited by data dependence, latency and "
        "bandwidth alone), gloo, or nccl (messages of one worker to another then go over gloo); absent where "
        "there is a profile: the profile's; null: as in result folders that name none",
    )
    hosts: HostTuning = Field(
        default="tuned",
        description="TCP of the hosts: tuned (no slow start, windows that limit nothing) or stock (Linux as "
        "it comes, in a simulation and in the lab); absent where there is `tcp`: stock",
    )
    tcp: TcpSettings | None = Field(
        default=None, description="of stock hosts, where something differs from Linux's defaults"
    )
    queue: QueueName = Field(
        default="fair",
        description="how links serve what waits, simulated and in the lab: per connection, as `sharing` "
        "says, or first in, first out",
    )
    overhead: BoundedSeconds = Field(
        default=0.0, description="software overhead of one transfer, beside the transport's own"
    )
    announcement: float = Field(
        default=0.0,
        ge=0,
        le=1000,
        description="cost of a rendezvous, as a factor on the route's latency; gloo has 1",
    )

    @model_validator(mode="before")
    @classmethod
    def _take_stock(cls, data: Any) -> Any:
        """TCP's settings are those of stock hosts, which name them all."""
        match data:
            case {"hosts": "stock"} if data.get("tcp") is None:
                return {**data, "tcp": {}}
            case {"tcp": tcp} if tcp is not None and "hosts" not in data:
                return {**data, "hosts": "stock"}
        return data

    @model_validator(mode="wrap")
    @classmethod
    def _name_tables(cls, data: Any, read: ModelWrapValidatorHandler[Self]) -> Self:
        """What is wrong with values from a CSV file names the file, and which row and column do not fit."""
        try:
            return read(data)
        except ValidationError as error:
            between = data.get("between") if isinstance(data, Mapping) else None
            written = between if isinstance(between, Mapping) else {}
            mistakes = []
            for each in explain(error, cls, data):
                file = written.get(each.at[1]) if len(each.at) > 1 and each.at[0] == "between" else None
                if isinstance(file, str) and file.endswith(".csv") and file not in each.message:
                    pair = "".join(f"{one_line(str(part), 60)}: " for part in each.at[2:])
                    each = Mistake(each.at[:2], f"{file}: {pair}{each.message}")
                mistakes.append(each)
            raise_mistakes(mistakes)
            raise

    @model_validator(mode="after")
    def _one_form(self) -> NetworkSettings:
        raise_mistakes(self._wrong_form())
        if self.sites is not None:
            raise_mistakes([*self._wrong_names(self.sites), *self._wrong_pairs(self.sites)])
        return self

    def _wrong_form(self) -> list[Mistake]:
        flat = [key for key in ("latency", "bandwidth", "upload") if getattr(self, key) is not None]
        parts = [key for key in ("sites", "within", "between", "uplink") if getattr(self, key)]
        if self.variation and self.sharing == "none":
            return [Mistake(("variation",), "needs sharing: max_min or rtt")]
        if self.tcp is not None and self.hosts == "tuned":
            return [Mistake(("tcp",), "is of stock hosts; write hosts: stock, or leave it out")]
        if self.tcp is not None and self.sharing == "none":
            return [Mistake(("hosts",), "'stock' needs sharing: max_min or rtt")]
        if self.queue == "fifo" and self.sharing != "max_min":
            return [Mistake(("queue",), "'fifo' needs sharing: max_min")]
        if self.queue == "fifo" and self.variation:
            return [
                Mistake(("variation",), "needs queue: fair; what waits in one line has its times already")
            ]
        if self.model is not None and self.gpus > 1:
            return [Mistake(("host",), "is not of a network of your own, which names its nodes itself")]
        whole = [key for key in ("graph", "model") if getattr(self, key) is not None]
        if whole and (flat or parts or len(whole) > 1):
            other = [*flat, *parts, *whole[1:]][0]
            text = f"{quote(other)} is of another form than '{whole[0]}'; keep to one of them"
            return [Mistake((whole[0],), text)]
        if flat and parts:
            text = f"'{flat[0]}' is of the flat form, '{parts[0]}' of the sites form; keep to one of them"
            return [Mistake((flat[0],), text)]
        if whole:
            return []
        if self.upload is not None and self.bandwidth is None:
            return [Mistake(("upload",), "needs bandwidth, each host's way in")]
        if self.within is not None and self.within.upload is not None and self.within.bandwidth is None:
            return [Mistake(("within", "upload"), "needs bandwidth, each host's way in")]
        if not parts:
            text = "give latency and bandwidth (one switch), or sites, within and between, or a graph"
            return [] if self.latency is not None else [Mistake((), text)]
        needed = ["sites", "within"]
        if self.sites is not None and len(self.sites) > 1:
            needed.append("between")
        return [Mistake((key,), "is missing") for key in needed if getattr(self, key) is None]

    @property
    def gpus(self) -> int:
        """Workers in every host."""
        return self.host.gpus if self.host is not None else 1

    def _wrong_names(self, sites: Mapping[str, int]) -> Iterator[Mistake]:
        for name, workers in sites.items():
            if not _SITE_NAME.fullmatch(name):
                yield Mistake(("sites", name), "a site's name is letters, digits, '-' and '_'")
            if workers % self.gpus:
                full = self.gpus * max(1, workers // self.gpus)
                text = f"{workers} workers do not fill hosts of {self.gpus} GPUs; write for example {full}"
                yield Mistake(("sites", name), text)
        for name in self.uplink:
            if name not in sites:
                yield Mistake(
                    ("uplink", name), f"no site is called {quote(name)}; {did_you_mean(name, sites)}"
                )

    def _wrong_pairs(self, sites: Mapping[str, int]) -> Iterator[Mistake]:
        if self.between is None:
            return
        for key in ("latency", "bandwidth", "per_flow"):
            values = getattr(self.between, key)
            if values is not None:
                yield from self._wrong_values(sites, ("between", key), values)

    @staticmethod
    def _wrong_values(
        sites: Mapping[str, int], at: KeyPath, values: Mapping[str, float]
    ) -> Iterator[Mistake]:
        pairs = _pair_names(sites)
        names = [name for name in values if name != DEFAULT]
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

    def latencies(self) -> dict[tuple[str, str], float]:
        """One-way latency in seconds for every ordered pair of different sites; empty in the flat form."""
        if self.sites is None or self.between is None:
            return {}
        return _by_pair(self.sites, self.between.latency)

    def pipes(self) -> dict[tuple[str, str], float]:
        """Bytes per second of the pipe of every ordered pair of sites; empty where pipes are unlimited."""
        if self.sites is None or self.between is None or self.between.bandwidth is None:
            return {}
        return _by_pair(self.sites, self.between.bandwidth)

    def connections(self) -> dict[tuple[str, str], float]:
        """Bytes per second that one connection gets at most; empty where it is unlimited."""
        if self.sites is None or self.between is None or self.between.per_flow is None:
            return {}
        return _by_pair(self.sites, self.between.per_flow)


def _by_pair(sites: Mapping[str, Any], values: Mapping[str, float]) -> dict[tuple[str, str], float]:
    """A value for every ordered pair of sites: its own, else that of the way back, else the default."""
    given = {pair[0]: values[name] for name, pair in _pair_names(sites).items() if name in values}
    return {
        (a, b): given[a, b] if (a, b) in given else given[b, a] if (b, a) in given else values[DEFAULT]
        for a, b in itertools.permutations(sites, 2)
    }


def _pair_names(sites: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """``a-b`` -> the ordered pairs of sites that it can name; several, since names may contain dashes."""
    out: dict[str, list[tuple[str, str]]] = {}
    for a, b in itertools.permutations(sites, 2):
        out.setdefault(f"{a}-{b}", []).append((a, b))
    return out
