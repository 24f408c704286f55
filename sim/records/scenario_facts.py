"""What records take from the text of a resolved scenario: workers, target, what carries the bytes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from typing_extensions import TypedDict

from ..config import yaml_file
from ..config.units import parse_bytes, parse_seconds
from ..errors import InputError
from .run import metric_name

VALIDATED_LATENCY_S: Final = 0.010
VALIDATED_CHUNK_BYTES: Final = 4 * 2**20
"""The longest one-way latency, and the smallest share of a model per worker, that were measured over NCCL
(docs/outside.md)."""

_T = TypeVar("_T")

_SECTIONS: Final = ("name", "workload", "cluster", "schemes")
"""What every scenario has, of any version."""
_DAMAGES: Final = (AttributeError, TypeError, KeyError, ValueError)
"""What a document that nobody has checked leads to: keys that are missing, values of another type."""


class TransportRecord(TypedDict):
    """What carries the bytes, in the model or for real.

    Attributes:
        name: ``ideal``, ``gloo`` or ``nccl``; None: a version before there were transports.
        all_reduce: the algorithm of a whole model among all workers.
        not_validated: what of the scenario no measurement of this transport covers, as phrases.
    """

    name: str | None
    all_reduce: str
    not_validated: list[str]


class Goal(TypedDict):
    """The score that ends a run; ``metric`` as evaluations name it."""

    metric: str
    value: float


@dataclass(frozen=True)
class ScenarioFacts:
    """What records take from a resolved scenario; None for what it does not say.

    Attributes:
        workers: how many there are.
        target: its metric as evaluations name it.
        transport: what carries the bytes.
        proxy: what the trained model stands for, as a sentence, if for another one.
        name: of the scenario.
        schemes: the name of each scheme, by its label.
        seeds: those that runs may have.
        most_steps: of a worker.
        repeats: how many seeds each scheme has; None also where the runs decide.
        lacks: why it is no resolved scenario of any version, as the end of a sentence; "" where it is one.
    """

    workers: int | None = None
    target: Goal | None = None
    transport: TransportRecord | None = None
    proxy: str | None = None
    name: str | None = None
    schemes: Mapping[str, str] | None = None
    seeds: range | None = None
    most_steps: int | None = None
    repeats: int | None = None
    lacks: str = ""


def read_facts(scenario_yaml: str) -> ScenarioFacts:
    """What the text of a resolved scenario says; of a damaged one, why it is none."""
    try:
        document = yaml_file.parse(scenario_yaml, "scenario").value
    except InputError as error:
        return ScenarioFacts(lacks=f"cannot be read: {error}")
    return ScenarioFacts(
        workers=_read(document, int, "cluster", "workers"),
        target=_read_target(document),
        transport=_read_transport(document),
        proxy=describe_proxy(document),
        name=_read(document, str, "name"),
        schemes=_read_schemes(document),
        seeds=_read_seeds(document),
        most_steps=_read(document, int, "stop", "max_iterations"),
        repeats=_read(document, int, "repeats"),
        lacks=_find_lack(document),
    )


def _find_lack(document: Any) -> str:
    if not isinstance(document, dict):
        return "holds no keys"
    return next((f"has no '{key}'" for key in _SECTIONS if key not in document), "")


def describe_proxy(document: Any) -> str | None:
    """What the model that a scenario trains stands for, as a sentence, if for another one; else None."""
    try:
        workload = document["workload"]
        profile, payload = workload.get("layer_profile"), workload.get("payload")
        if workload.get("timing_only"):
            return "Nothing was trained: only time was simulated. What a step teaches differs by scheme."
        if profile is None and payload is None:
            return None
        model = profile if isinstance(profile, str) else (profile or {}).get("preset") or "the file's layers"
    except _DAMAGES:
        return None
    if profile is None:
        return (
            "A small proxy was trained in place of the real model: exchanges were timed as if the model had "
            f"{payload}, while losses and steps are the proxy's."
        )
    return (
        f"A small proxy was trained in place of the real model: exchanges were timed as those of {model}, "
        "while losses and steps are the proxy's."
    )


def _read(document: Any, kind: type[_T], *keys: str) -> _T | None:
    """What stands under these keys, if it is of this type."""
    try:
        for key in keys:
            document = document[key]
    except _DAMAGES:
        return None
    return document if isinstance(document, kind) else None


def _read_schemes(document: Any) -> dict[str, str] | None:
    """Label -> scheme; None where one has no label of its own, as before they were written down."""
    try:
        entries = [next(iter(entry.items())) for entry in document["schemes"]]
        return {str(options["label"]): name for name, options in entries}
    except (*_DAMAGES, StopIteration):
        return None


def _read_seeds(document: Any) -> range | None:
    first = _read(document, int, "seed")
    most = _read(document, int, "repeats") or _read(document, int, "repeats", "most")
    return None if first is None or most is None else range(first, first + most)


def _read_target(document: Any) -> Goal | None:
    try:
        target = document["stop"]["target"]
        on, own = target.get("on", "mean"), document.get("evaluate", {}).get("on", "mean")
        return Goal(metric=metric_name(str(target["metric"]), on, own), value=float(target["value"]))
    except _DAMAGES:
        return None


def _read_transport(document: Any) -> TransportRecord | None:
    """Measured over NCCL were messages that fill its buffers, and latencies up to ``VALIDATED_LATENCY_S``."""
    try:
        cluster, collectives = document["cluster"], document["collectives"]
        name, workers = cluster["network"]["transport"], int(cluster["workers"])
        all_reduce = all_reduce_of(collectives)
        if all_reduce == "auto":  # of a real run, whose library chooses
            all_reduce = "gloo_ring" if name == "gloo" else "its own choice"
        payload = document["workload"].get("payload")
        missing = []
        if name == "nccl":
            if payload is None or parse_bytes(payload) < workers * VALIDATED_CHUNK_BYTES:
                missing.append("messages this small")
            if max(_latencies_s(cluster["network"]), default=0.0) > VALIDATED_LATENCY_S:
                missing.append("latencies this long")
        return TransportRecord(name=name, all_reduce=all_reduce, not_validated=missing)
    except _DAMAGES:
        return None


def all_reduce_of(collectives: Mapping[str, Any], label: str | None = None) -> str:
    """Which all-reduces a resolved scenario's ``collectives`` name, of one scheme or of all."""
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


def _latencies_s(settings: object) -> Iterator[float]:
    """All latencies that stand in a network's settings."""
    if isinstance(settings, tuple):
        for each in settings:
            yield from _latencies_s(each)
    elif isinstance(settings, dict):
        for key, value in settings.items():
            if key == "latency":
                yield from (
                    parse_seconds(v) for v in (value.values() if isinstance(value, dict) else [value])
                )
            else:
                yield from _latencies_s(value)
