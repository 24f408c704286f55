"""What to write in a framework to run a scheme: one table (``frameworks.yaml``) with a scenario's values.

An option that is not at its default and that a row does not name is one that the framework lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Formatter
from typing import Any, Final

import yaml

from paceline.sim.network.build import build_network
from paceline.sim.scenario.batches import batch_sizes
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario
from paceline.sim.schemes import find_scheme

_TABLE: Final = yaml.safe_load(Path(__file__).with_name("frameworks.yaml").read_text(encoding="utf-8"))
FRAMEWORKS: Final[Mapping[str, Mapping[str, str]]] = _TABLE["frameworks"]
ABSENT: Final[Mapping[str, str]] = _TABLE["absent"]
"""Scheme that no framework of the table has -> the nearest one."""


@dataclass(frozen=True)
class Way:
    """A row of the table; ``frameworks.yaml`` says what its fields are."""

    scheme: str
    framework: str
    source: str
    write: str
    imports: str = ""
    note: str = ""
    needs: Mapping[str, Any] = field(default_factory=dict)
    parts: Mapping[str, Any] = field(default_factory=dict)
    words: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    near: Mapping[str, str] = field(default_factory=dict)


WAYS: Final = tuple(Way(**row) for row in _TABLE["rows"])


def ways_to_run(scenario: Scenario, entry: SchemeEntry) -> list[dict[str, Any]]:
    """A row for each framework that has a scheme of a resolved scenario, first those that lack least of it.

    ``framework``, ``version``, ``source`` (a file below ``address``), ``imports`` and what to ``write``;
    ``notes``; ``lacks``: options that it does not have, each with what comes nearest.
    """
    given = entry.options.model_dump(mode="json", exclude_defaults=True) | (
        {"on_fault": entry.on_fault} if entry.on_fault else {}
    )
    given.pop("round", None)  # a duration, not a choice
    values = {**given, **entry.options.model_dump(mode="json"), **_facts(scenario, entry)}
    known = {**given, "inner": values["inner"]}
    rows = [
        _filled(way, given, values)
        for way in WAYS
        if way.scheme == entry.name and all(_has(known, key, forms) for key, forms in way.needs.items())
    ]
    best: dict[str, dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: len(row["lacks"])):
        best.setdefault(row["framework"], row)
    return list(best.values())


def _has(given: Mapping[str, Any], key: str, forms: Any) -> bool:
    return key in given and (isinstance(forms, str) or _form(given[key]) in forms)


def _form(value: Any) -> Any:
    """The name of one of several forms of an option, else its value."""
    return next(iter(value)) if isinstance(value, Mapping) and value else value


def _facts(scenario: Scenario, entry: SchemeEntry) -> dict[str, Any]:
    """Values of a scenario and of a scheme's sections, by their names in the table."""
    options, workers = entry.options, scenario.cluster.workers
    network = build_network(scenario.cluster.network, workers)
    units = find_scheme(entry.name).units(options, network)
    examples = scenario.workload.accumulate * sum(
        batch_sizes(scenario.workload, scenario.cluster, scenario.seed)
    )
    rule = entry.optimizer or scenario.workload.optimizer
    of_torch = "Adam" if rule.adam else "AdamW" if rule.adamw else "SGD"
    names = ("lr", "momentum", "nesterov", "weight_decay", "beta1", "beta2", "eps")
    constants = rule.constants.model_dump(mode="json", exclude_defaults=True)
    numbers = {name: constants[name] for name in names if name in constants}
    outer = getattr(options, "outer", None)
    return {
        "workers": workers, "units": units, "members": workers // units,
        "shards": workers // units if getattr(options, "inside", None) else workers,
        "batch": round(examples / workers), "examples": examples,
        "period_examples": examples * getattr(options, "period", 1),
        "bucket_mib": (getattr(options, "bucket", None) or 0) / 2**20,
        "inner": rule.rule.name.rpartition(":")[2] if rule.rule else of_torch,
        "inner_args": _arguments(numbers),
        **({} if outer is None else {f"outer_{key}": value for key, value in outer.model_dump().items()}),
    }  # fmt: skip


def _arguments(numbers: dict[str, Any]) -> str:
    """Constants of an optimiser as arguments of its class in ``torch.optim``; defaults are equal there."""
    betas = numbers.pop("beta1", 0.9), numbers.pop("beta2", 0.999)
    more = {} if betas == (0.9, 0.999) else {"betas": betas}
    return ", ".join(f"{key}={value}" for key, value in (numbers | more).items())


def _filled(way: Way, given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    parts = {key: _text(text, key, given, values) for key, text in way.parts.items()}
    notes = [_text(text, key, given, values) for key, text in way.words.items()]
    missing = [key for key, one in way.fixed.items() if not _agrees(values.get(key), one)]
    missing += [key for key in given if key not in way.fixed and not _names(way, key, given)]
    lacks = [f"{key}: {_word(given.get(key, values[key]))}" for key in missing]
    return {
        "framework": way.framework, **FRAMEWORKS[way.framework], "source": way.source,
        "imports": way.imports.format(**values), "write": way.write.format(**{**values, **parts}),
        "notes": [each for each in (*notes, way.note.format(**values)) if each],
        "lacks": [each + "".join(f" (nearest: {x})" for key, x in way.near.items() if each.startswith(key))
                  for each in lacks],
    }  # fmt: skip


def _text(text: Any, key: str, given: Mapping[str, Any], values: Mapping[str, Any]) -> str:
    """What a part or a word of a row says; "" for nothing."""
    if isinstance(text, Mapping):
        text = text.get(_form(given.get(key, values.get(key))), "")
    elif key not in given:
        return ""
    return str(text.format(**values))


def _agrees(value: Any, one: Any) -> bool:
    if isinstance(one, Mapping):
        return all(value[key] == each for key, each in one.items())
    return bool(value == one)


def _names(way: Way, key: str, given: Mapping[str, Any]) -> bool:
    """Whether a row says how to write an option."""
    for texts in (way.parts, way.words):
        if key in texts:
            return not isinstance(texts[key], Mapping) or _form(given[key]) in texts[key]
    fields = [name for _, name, _, _ in Formatter().parse(way.write) if name]
    return key in way.needs or any(name == key or name.startswith(f"{key}_") for name in fields)


def _word(value: Any) -> str:
    form = _form(value)
    return str(form) if isinstance(value, Mapping) and isinstance(value[form], Mapping) else _plain(value)


def _plain(value: Any) -> str:
    return str(value).replace("'", "")


def how_to_run(entry: SchemeEntry, rows: Sequence[Mapping[str, Any]], name: str = "it") -> str:
    """A sentence: what to write in the first of a scheme's rows, and who has it too."""
    if ":" in entry.name:
        return f"To run {name}: {entry.name} is your own, and no framework is known to have it."
    if not rows:
        near = f"; nearest: {ABSENT[entry.name]}" if entry.name in ABSENT else " with these options"
        return f"To run {name}: none of {', '.join(FRAMEWORKS)} has {entry.name}{near}."
    first, *others = rows
    framework, lacks = first["framework"], first["lacks"]
    more = [*first["notes"], *[f"{framework} has no {', '.join(lacks)}"] * bool(lacks)]
    alike = [each["framework"] for each in others if len(each["lacks"]) <= len(lacks)]
    more += [f"also in {', '.join(alike)} (--json)"] * bool(alike)
    told = "".join(f"; {each}" for each in more)
    return f"To run {name}, {framework} {first['version']} ({first['source']}): {first['write']}{told}."
