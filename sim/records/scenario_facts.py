"""What records take from a resolved scenario: target, transport, prices, scope of a verdict, known errors."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NotRequired, TypeVar

from typing_extensions import TypedDict

from ..config import yaml_file
from ..config.units import (
    Format,
    format_plain,
    format_rate,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_seconds,
)
from ..errors import InputError
from .carry.break_even import Scope, scope_of
from .money.cost import OTHERS, PriceRecord, parse_money
from .run import metric_name

MEASURED: Final[Mapping[str, Mapping[str, tuple[float, float]]]] = MappingProxyType(
    {
        "gloo": {"workers": (2, 32), "latency": (0.05e-3, 50e-3), "bandwidth": (12.5e6, 625e6)},
        "nccl": {"workers": (2, 32), "latency": (0.05e-3, 10e-3), "bandwidth": (125e6, 625e6)},
    }
)
"""Transport -> ranges of workers, one-way latency and bandwidth, of the lab (docs/validation.md) and of
netem_collectives (docs/board.md)."""
MEASURED_CHUNK_BYTES: Final = 4 * 2**20
"""Smallest share of a model per worker that was measured over NCCL."""
_NUMBER_BYTES: Final = 4
_FORMATS: Final[Mapping[str, Format]] = {
    "workers": format_plain,
    "latency": format_seconds,
    "bandwidth": format_rate,
}

_T = TypeVar("_T")


class TransportRecord(TypedDict):
    """The transport of a run, simulated or real, and its algorithm for a whole model among all workers.

    ``name``: ``ideal``, ``gloo`` or ``nccl``; None: a version before there were transports.
    ``hosts``: ``tuned`` or ``stock``, by their TCP; absent in older records.
    ``assumed``: what the library's choice between two hosts rests on, if it makes one.
    ``not_validated``: parts of the scenario that no measurement of this library covers, as phrases.
    ``outside``: how far predictions from inputs like these were off, where the scenario tells their kind.
    """

    name: str | None
    hosts: NotRequired[str]
    all_reduce: str
    assumed: NotRequired[str]
    not_validated: list[str]
    outside: NotRequired[Outside]


class Goal(TypedDict):
    """The score that ends a run; ``metric`` as evaluations name it."""

    metric: str
    value: float


class PlannedRuns(NamedTuple):
    """Labels of the schemes, the first seed, and repeats of each; None: the runs decide."""

    labels: tuple[str, ...]
    first_seed: int
    repeats: int | None


class ScenarioFacts(NamedTuple):
    """Facts of a resolved scenario for summaries; None where it does not say."""

    target: Goal | None
    transport: TransportRecord | None
    proxy: str | None
    choices: str | None
    planned: PlannedRuns | None
    price: PriceRecord | None
    all_reduce: frozenset[str] | None
    """Labels of the schemes that average whole gradients in every step."""
    scope: Scope | None


OF_SEEDS: Final = re.compile(r"^(seed|repeats): (\d+)$", re.MULTILINE)
"""Lines of a resolved scenario that say which seeds run."""


def read_facts(scenario_yaml: str) -> ScenarioFacts:
    """Read the facts of a resolved scenario's text; ``InputError``: it is no YAML."""
    facts = _read_facts(OF_SEEDS.sub(r"\1: 1", scenario_yaml))  # read once for all seeds
    if facts.planned is None:
        return facts
    numbers = {key: int(number) for key, number in OF_SEEDS.findall(scenario_yaml)}
    planned = PlannedRuns(
        facts.planned.labels,
        numbers.get("seed", facts.planned.first_seed),
        numbers.get("repeats", facts.planned.repeats),
    )
    return facts._replace(planned=planned)


@lru_cache(maxsize=1024)  # each run of a sweep is kept with its setting's scenario
def _read_facts(scenario_yaml: str) -> ScenarioFacts:
    return facts_of(yaml_file.parse(scenario_yaml, "scenario").value)


def facts_of(document: Any) -> ScenarioFacts:
    """Read the facts of a resolved scenario's content."""
    return ScenarioFacts(
        _read(_target, document),
        _read(_transport, document),
        describe_proxy(document),
        _read(_choices, document),
        _read(_planned, document),
        _read(read_price, document),
        _read(_all_reduce, document),
        _read(scope_of, document),
    )


def _read(read: Callable[[Any], _T], document: Any) -> _T | None:
    try:
        return read(document)
    except (AttributeError, TypeError, KeyError, ValueError, StopIteration, InputError):
        return None


def read_price(document: Any) -> PriceRecord:
    """Prices in a resolved scenario's document; ``KeyError`` where it has none."""
    price, cluster = document["price"], document["cluster"]
    hours, egress = (
        {name: parse_money(text) for name, text in price.get(key, {}).items()}
        for key in ("worker_hour", "egress")
    )
    (currency,) = {currency for _, currency in (*hours.values(), *egress.values())}
    sites = cluster["network"].get("sites") or {OTHERS: cluster["workers"]}
    other = hours.get(OTHERS, (0.0, currency))
    return PriceRecord(
        currency=currency,
        per_hour=sum(number * hours.get(site, other)[0] for site, number in sites.items()),
        egress={name: amount for name, (amount, _) in egress.items()},
        table=price.get("table"),
    )


def _planned(document: Any) -> PlannedRuns:
    labels = tuple(str(next(iter(entry.values()))["label"]) for entry in document["schemes"])
    repeats = document["repeats"]
    return PlannedRuns(labels, int(document["seed"]), repeats if isinstance(repeats, int) else None)


def _all_reduce(document: Any) -> frozenset[str]:
    entries = (item for entry in document["schemes"] for item in entry.items())
    return frozenset(x["label"] for name, x in entries if name == "all_reduce" and not x.get("compression"))


def describe_proxy(document: Any) -> str | None:
    """A sentence about the model that the trained one stands for; None if for itself."""
    return _read(_proxy, document)


CURVES: Final = "Nothing was trained: scores are those of measured curves, and only time was simulated."
"""The sentence about runs that are scored by curves."""
TIME_ALONE: Final = "Nothing was trained: only time was simulated. What a step teaches differs by scheme."
"""The sentence about runs without scores."""


OF_RECIPE: Final = "A small proxy (text-mlp,"
"""Begin of the sentence about a proxy of docs/proxies.md, which stands for a language model."""


def _proxy(document: Any) -> str | None:
    workload = document["workload"]
    profile, payload = workload.get("layer_profile"), workload.get("payload")
    if workload.get("curves"):
        return CURVES
    if workload.get("timing_only"):
        return TIME_ALONE
    if profile is None and payload is None:
        return None
    if profile is None:
        exchanges = f"exchanges were timed as if the model had {payload}"
    else:
        model = profile if isinstance(profile, str) else profile.get("preset") or "the file's layers"
        exchanges = f"exchanges were timed as those of {model}"
    drawn = (
        f" ({workload['task']}, {batch} examples a step)" if (batch := workload.get("proxy_batch")) else ""
    )
    return (
        f"A small proxy{drawn} was trained in place of the real model: {exchanges}, while losses and steps "
        "are the proxy's."
    )


SCORED_MODELS: Final = {
    "published": "model that each scheme publishes",
    "mean": "mean of the workers' models",
    "workers": "workers' models",
    "worst": "worst worker's model",
    "leader": "leader's model",
    "averaged": "average that each scheme publishes",
}
"""The scored models, by ``evaluate.on``."""


def _choices(document: Any) -> str:
    """Choices that decide how many examples a scheme needs: target, scored model, partition."""
    goal, partition = _target(document), document["workload"].get("partition", {})
    on = document["stop"]["target"].get("on") or document.get("evaluate", {}).get("on", "mean")
    score = f"{document['stop']['target']['metric'].replace('_', ' ')} {goal['value']:g}"
    if curves := document["workload"].get("curves"):
        files = dict.fromkeys(each["file"] for each in curves["files"])
        return f"{score} in {', '.join(files)}, noise smoothed"
    kind = partition.get("kind", "iid")
    shards = f"dirichlet {partition['alpha']:g}" if kind == "dirichlet" else kind.replace("_", " ")
    task = document["workload"].get("task")
    easy = ", a task on which seldom averaging costs no steps" if task == "quadratic" else ""
    return f"{score} of the {SCORED_MODELS[on]}, {shards} shards{easy}"


def _target(document: Any) -> Goal:
    target = document["stop"]["target"]
    on, own = target.get("on", "mean"), document.get("evaluate", {}).get("on", "mean")
    return Goal(metric=metric_name(str(target["metric"]), on, own), value=float(target["value"]))


def _beyond_measured(transport: str, quantity: str, values: Iterable[float]) -> list[str]:
    """A phrase for the largest of a quantity's values outside ``MEASURED``, if any is; 0 is no latency."""
    low, high = MEASURED[transport][quantity]
    beyond = [value for value in values if value and not low <= value <= high]
    written = _FORMATS[quantity]
    limits = f"(measured: {written(low)} to {written(high)})"
    return [f"{quantity} {written(max(beyond))} {limits}"] if beyond else []


def _transport(document: Any) -> TransportRecord:
    cluster, collectives = document["cluster"], document["collectives"]
    network, workers = cluster["network"], int(cluster["workers"])
    name = network["transport"]
    all_reduce = all_reduce_of(collectives)
    if all_reduce == "auto":  # a real run, whose library chooses
        all_reduce = "gloo_ring" if name == "gloo" else "its own choice"
    lone = max((network.get("sites") or {"": 2}).values()) == 1  # nobody is inside a site
    crossed = {key: each for key, each in network.items() if key != "host" and not (lone and key == "within")}
    rates = [*_settings_of(crossed, "bandwidth", parse_bandwidth)]
    missing = []
    if name == "nccl" and _model_bytes(document["workload"]) < workers * MEASURED_CHUNK_BYTES:
        missing.append("messages this small")
    for quantity, values in {
        "workers": [float(workers)],
        "latency": _settings_of(crossed, "latency", parse_seconds),
        "bandwidth": rates,
    }.items():
        missing += _beyond_measured(name, quantity, values) if name in MEASURED else []
    hosts = network.get("hosts", "tuned")
    record = TransportRecord(name=name, hosts=hosts, all_reduce=all_reduce, not_validated=missing)
    if assumed := collectives.get("assumed"):
        record["assumed"] = assumed
    if outside := outside_of(cluster, rates):
        record["outside"] = outside
    return record


def _model_bytes(workload: Mapping[str, Any]) -> float:
    """Bytes of a large model; 0 of one that is trained here, infinite of one that the text only names."""
    payload, profile = workload.get("payload"), workload.get("layer_profile")
    if payload is not None or profile is None:
        return 0.0 if payload is None else parse_bytes(payload)
    rows = profile.get("rows")
    return _NUMBER_BYTES * sum(row["parameters"] for row in rows) if rows else math.inf


def all_reduce_of(collectives: Mapping[str, Any], label: str | None = None) -> str:
    """Names of the all-reduces in a resolved scenario's ``collectives``, of one scheme or of all."""
    chosen, wanted = collectives.get("chosen") or {}, str(collectives["all_reduce"])
    if isinstance(chosen, str):
        return chosen
    if wanted != "auto":
        return wanted
    labels = chosen if label is None else (label,)
    names = {chosen.get(each, {}).get("all_reduce") for each in labels} - {None}
    return " or ".join(sorted(names)) or wanted


def sums_inside_of(collectives: Mapping[str, Any], label: str) -> str | None:
    """The unit, ``host`` or ``site``, whose sums a scheme encodes by resolved ``collectives``; None: none."""
    chosen = collectives.get("chosen")
    inside = chosen.get(label, {}).get("inside", "workers") if isinstance(chosen, dict) else "workers"
    return {"hosts": "host", "sites": "site"}.get(inside)


def _settings_of(settings: object, key: str, parse: Callable[[object], float]) -> Iterator[float]:
    """Values of all settings with this key, of pairs of sites too."""
    if isinstance(settings, tuple | list):
        for each in settings:
            yield from _settings_of(each, key, parse)
    elif isinstance(settings, dict):
        for name, value in settings.items():
            if name == key:
                yield from map(parse, value.values() if isinstance(value, dict) else [value])
            else:
                yield from _settings_of(value, key, parse)


DATA: Final = Path(__file__).with_name("outside.json")
NAME_PLATES: Final = tuple(125e6 * each for each in (1, 10, 25, 40, 100))
"""Nominal rates of Ethernet cards, in bytes per second."""
_DIGITS: Final = 3
"""Of a rate that somebody measured, in bits and in bytes alike: 941 Mbit/s, not 500."""


class Outside(TypedDict):
    """How far predictions from such inputs were off.

    ``grade``, ``inputs``: the kind, in a word and in words; ``next``: what to measure for a better one.
    ``rows``: number of predictions; ``mean_pct``: mean absolute error; ``fast``: share too fast.
    ``low``, ``high``: factors of the predicted time between which four fifths of the measured times were.
    """

    grade: str
    inputs: str
    next: str
    rows: int
    mean_pct: float
    fast: float
    low: float
    high: float


def outside_of(cluster: Mapping[str, Any], rates: Sequence[float]) -> Outside | None:
    """Errors of predictions on clusters of others, from inputs of the same kind as a resolved scenario's.

    None where its keys alone do not tell the kind: over ``ideal``, which is no library's; where stragglers,
    faults, variations or limits of a connection decide; where a time is given for hosts of several GPUs,
    since it may be that of one or of all; for a rate that may be measured or guessed. Figures:
    ``outside.json``, which ``python -m benchmarks.board`` writes; rules: docs/board.md.

    ``rates``: bandwidths between hosts, in bytes per second.
    """
    known: dict[str | None, Outside] = json.loads(DATA.read_text(encoding="utf-8"))
    return known.get(_grade(cluster, rates))


def _grade(cluster: Mapping[str, Any], rates: Sequence[float]) -> str | None:
    network, compute = cluster["network"], cluster["compute"]
    other = (
        cluster["stragglers"],
        cluster["faults"],
        cluster.get("island"),
        network["variation"],
        network.get("between", {}).get("per_flow"),
    )
    if network["transport"] not in ("gloo", "nccl") or any(other):
        return None
    if network.get("host", {}).get("gpus", 1) > 1:
        return "part" if "measured" in compute else None
    if not {"time", "trace", "measured"} & compute.keys():
        return None
    if set(NAME_PLATES).intersection(rates):
        return "plate"
    measured = rates and all(_digits(rate) >= _DIGITS <= _digits(8 * rate) for rate in rates)
    return "measured" if measured or "profile" in cluster else None


def _digits(number: float) -> int:
    return len(f"{number:.5e}".partition("e")[0].replace(".", "").rstrip("0"))
