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
from paceline.sim.schemes.common.local_steps import period_steps
from paceline.sim.training.optimizer import OptimizerSettings

from .candidates import is_trained

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
    fixed: Mapping[str, Any] = field(default_factory=dict)
    near: Mapping[str, str] = field(default_factory=dict)

    @property
    def braces(self) -> set[str]:
        """Names in what to write."""
        return {name for _, name, _, _ in Formatter().parse(self.write) if name}


WAYS: Final = tuple(Way(**row) for row in _TABLE["rows"])


def ways_to_run(scenario: Scenario, entry: SchemeEntry) -> list[dict[str, Any]]:
    """A row for each framework that has a scheme of a resolved scenario, first those that lack least of it.

    ``framework``, ``version``, ``source`` (a file below ``address``), ``imports`` and what to ``write``;
    ``notes``; ``lacks``: options that it does not have, each with what comes nearest.
    """
    given = entry.options.model_dump(mode="json", exclude_defaults=True)
    given.pop("round", None)  # a duration, not a choice
    if entry.on_fault:
        given["on_fault"] = entry.on_fault
    values = {**given, **entry.options.model_dump(mode="json"), **_facts(scenario, entry)}
    known = {**given, "inner": values["inner"]}
    ways = [
        way
        for way in WAYS
        if way.scheme == entry.name
        and all(
            key in known and (forms == "any" or _form(known[key]) in forms)
            for key, forms in way.needs.items()
        )
    ]
    rows = sorted((_filled(way, given, values) for way in ways), key=_num_lacking, reverse=True)
    return sorted({row["framework"]: row for row in rows}.values(), key=_num_lacking)


def _num_lacking(row: Mapping[str, Any]) -> int:
    return len(row["lacks"])


def _form(value: Any) -> Any:
    """The name of one of several forms of an option, else its value."""
    return next(iter(value)) if isinstance(value, Mapping) and value else value


def _facts(scenario: Scenario, entry: SchemeEntry) -> dict[str, Any]:
    """Values of a scenario, and of a scheme's optimisers, by their names in the table."""
    workers, workload, options = scenario.cluster.workers, scenario.workload, dict(entry.options)
    units = find_scheme(entry.name).units(entry.options, build_network(scenario.cluster.network, workers))
    examples = workload.accumulate * sum(batch_sizes(workload, scenario.cluster, scenario.seed))
    return {
        "workers": workers, "units": units, "members": workers // units,
        "batch": round(examples / workers), "examples": examples,
        **({"period": (period := period_steps(options["period"])), "period_examples": examples * period}
           if "period" in options else {}),
        "bucket_mib": (options.get("bucket") or 0) / 2**20,
        **{f"outer_{key}": value for key, value in dict(options.get("outer") or ()).items()},
        **(_optimizer(entry.optimizer or workload.optimizer) if is_trained(scenario) else _ANY),
    }  # fmt: skip


_ANY: Final = {"inner": "Optimizer", "inner_args": "..."}
"""Where nothing is trained."""


def _optimizer(settings: OptimizerSettings) -> dict[str, str]:
    """The class of an optimiser in ``torch.optim``, and its arguments there; defaults are equal."""
    kind = next((name for name in ("Adam", "AdamW") if getattr(settings, name.lower())), "SGD")
    constants = settings.constants.model_dump(exclude_defaults=True, exclude={"clip", "schedule"})
    betas = constants.pop("beta1", 0.9), constants.pop("beta2", 0.999)
    if betas != (0.9, 0.999):
        constants["betas"] = betas
    arguments = ", ".join(f"{key}={value}" for key, value in constants.items())
    return {"inner": settings.rule.name if settings.rule else kind, "inner_args": arguments}


def _filled(way: Way, given: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    parts = {key: _text(texts, key, given, values) for key, texts in way.parts.items()}
    lacks = [key for key, one in way.fixed.items() if values.get(key) != one]
    by_time = isinstance(given.get("period"), Mapping)  # no framework has such periods
    lacks += [key for key in given if key not in way.fixed and not _has(way, key, parts)]
    lacks += ["period"] * by_time
    missing = [f"{key}: {given.get(key, values[key])}".replace("'", "").replace(": {}", "") for key in lacks]
    notes = [text for key, text in parts.items() if key not in way.braces]
    return {
        "framework": way.framework, **FRAMEWORKS[way.framework], "source": way.source, "imports": way.imports,
        "write": way.write.format(**{**values, **{key: text or "" for key, text in parts.items()}}),
        "notes": [*filter(None, [*notes, way.note.format(**values)])],
        "lacks": [
            each + "".join(f" (nearest: {text})" for key, text in way.near.items() if each.startswith(key))
            for each in missing
        ],
    }  # fmt: skip


def _text(texts: Any, key: str, given: Mapping[str, Any], values: Mapping[str, Any]) -> str | None:
    """What a part says; None where it does not have the form of the option."""
    if isinstance(texts, Mapping):
        texts = texts.get(_form(given.get(key, values.get(key))))
    elif key not in given:
        texts = ""
    return None if texts is None else str(texts.format(**values))


def _has(way: Way, key: str, parts: Mapping[str, str | None]) -> bool:
    """Whether a row says how to write an option, or a section of that name."""
    if key in parts:
        return parts[key] is not None
    return key in way.needs or any(f"{name}_".startswith(f"{key}_") for name in {*way.braces, *way.fixed})


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
    written = "; ".join([first["write"], *more])
    return f"To run {name}, {framework} {first['version']} ({first['source']}): {written}."
