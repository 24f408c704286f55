"""The table and the JSON Schema of all scenario keys, from the models: ``python -m docs.make.scenario``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel, WithJsonSchema
from pydantic.fields import FieldInfo

from docs.make import page as generated_page
from paceline.sim.config.files import write_atomically
from paceline.sim.jitter import Jitter
from paceline.sim.network.profile import Profile
from paceline.sim.program.encoding import Compression
from paceline.sim.scenario.entries import SchemeEntry, WorkloadEntry
from paceline.sim.scenario.parts import Cluster
from paceline.sim.scenario.ready import SCHEMA
from paceline.sim.scenario.schema import Scenario
from paceline.sim.scenario.tuning_grid import Tune
from paceline.sim.schemes import SCHEMES
from paceline.sim.schemes.common.names import EXAMPLE_FILES, MODEL_PARALLEL, OTHER_NAMES, WHY_NOT_PARALLEL
from paceline.sim.topology import TopologyEntry
from paceline.sim.training.optimizer import OptimizerSettings
from paceline.sim.training.rules import NAMED_RULES, RuleEntry
from paceline.sim.workloads import TASKS

PAGE: Final = Path(__file__).parents[1] / "scenario.md"
BEGIN: Final = (
    "<!-- The tables down to the end are made from the models by: python -m docs.make.scenario -->\n"
)

_HEAD: Final = "| key | written as | default | meaning |\n| --- | --- | --- | --- |\n"
_PLAIN: Final = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    TopologyEntry: "a topology",
}
_DESCRIBED_AT: Final = {
    OptimizerSettings: "workload.optimizer",
    Jitter: "cluster.compute.jitter",
    Compression: "schemes[].all_reduce.compression",
}
"""Models whose keys are listed once, at this key."""
_FOLLOWS: Final = ((Cluster, "workers"), (Tune, "trials"))
"""Keys whose default follows from other keys; their descriptions say how."""
_REPEATED: Final = 6
"""Descriptions of more words than this are written once among all tasks, or all schemes."""


def renewed(page: str) -> str:
    """The page with its tables made anew; what stands above them is kept."""
    return generated_page.renewed(page, BEGIN, "\n" + "\n".join(_sections()))


def _sections() -> Iterator[str]:
    keys = _told_once(_HEAD + "".join(_rows(Scenario, "")), "", {})
    yield f"## Keys\n\n{keys}"
    yield "## Tasks\n"
    homes: dict[str, str] = {}
    for name, task in sorted(TASKS.items()):
        about = f"{generated_page.first_paragraph(task.build.__doc__)} Metrics: {', '.join(task.metrics)}."
        table = options_table(task.options, "workload.")
        yield f"### `{name}`\n\n{about}\n\n{_told_once(table, name, homes)}"
    yield "## Schemes\n\nWhat each does and sends: [schemes.md](schemes.md).\n"
    homes = {}
    for name, scheme in sorted(SCHEMES.items()):
        kind = "Synchronous." if scheme.synchronous else "Asynchronous."
        table = options_table(scheme.options, f"schemes[].{name}.")
        yield f"### `{name}`\n\n{kind}\n\n{_told_once(table, name, homes)}"
    yield "## Names in papers and tools\n\n| there | here |\n| --- | --- |"
    for row in OTHER_NAMES:
        yield f"| {', '.join(row.names)}{f' ({row.about})' if row.about else ''} | `{row.write}` |"
    examples = (
        f"{', '.join(names)} ([`{file}`](schemes/{file}.py))" for file, names in EXAMPLE_FILES.items()
    )
    yield f"| {', '.join(MODEL_PARALLEL)} | none: {WHY_NOT_PARALLEL} |"
    yield f"\nExamples to copy, in `docs/schemes`: {', '.join(examples)}.\n"


def _told_once(table: str, name: str, homes: dict[str, str]) -> str:
    """``table`` without descriptions told before; ``homes`` (description -> where it stands) gets its own.

    Without a name they are those of the table itself, found by their keys.
    """
    lines = []
    for line in table.splitlines():
        key, written, default, about = ([*line.strip("|").rsplit(" | ", 3), "", "", ""])[:4]
        here = name or key.strip(" `")
        home = homes.setdefault(f"{key.strip(' `').rpartition('.')[2]} {about}", here)
        if home != here and len(about.split()) > _REPEATED:
            there = f"as of [`{home}`](#{home})" if name else f"as `{home}`"
            line = f"|{key} | {written} | {default} | {there} |"
        lines.append(line)
    return "\n".join([*lines, ""])


def options_table(model: type[BaseModel], prefix: str) -> str:
    """The keys of a task's or scheme's options, a row each."""
    rows = "".join(_rows(model, prefix))
    return _HEAD + rows if rows else "No options.\n"


def _rows(model: type[BaseModel], prefix: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        if name == "options":
            what = "tasks" if model is WorkloadEntry else "schemes"
            yield f"| `{prefix}OPTION` | see [{what}](#{what}) | | {field.description} |\n"
            continue
        if model is SchemeEntry and name == "name":
            continue
        if model is Tune and name == "grid":
            yield f"| `{prefix}KEY` | list of values | | {field.description} |\n"
            continue
        if field.annotation == RuleEntry | None:
            for rule, kind in NAMED_RULES.items():
                yield f"| `{prefix}{rule}` | section |  | instead of SGD; its name alone: all defaults |\n"
                yield from _rows(kind.options, f"{prefix}{rule}.")
            yield f"| `{prefix}PACKAGE.MODULE:NAME` | your own options |  | {field.description} |\n"
            continue
        key = prefix + name
        inner, suffix = _model_in(field.annotation)
        written = _written(field.annotation, field.metadata)
        if inner in _DESCRIBED_AT and key != _DESCRIBED_AT[inner]:
            written, inner = f"section, as `{_DESCRIBED_AT[inner]}`", None
        default = "" if (model, name) in _FOLLOWS else _default(field)
        yield f"| `{key}` | {written} | {default} | {field.description or ''} |\n"
        if inner:
            below = f"{key}{suffix}.NAME." if inner is SchemeEntry else f"{key}{suffix}."
            yield from _rows(inner, below)


def _model_in(annotation: Any) -> tuple[type[BaseModel] | None, str]:
    """The model in an optional field or a list, and what to add to the key of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return (None if annotation in (TopologyEntry, Profile) else annotation), ""
    suffix = "[]" if get_origin(annotation) is tuple else ""
    for argument in get_args(annotation):
        inner_model, below = _model_in(argument)
        if inner_model:
            return inner_model, suffix + below
    return None, ""


def _written(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _written(arguments[0], [*arguments[1:], *metadata])
    quantity = [m.json_schema for m in metadata if isinstance(m, WithJsonSchema) and m.json_schema]
    if quantity:
        text = f"`{quantity[0]['examples'][0]}`"
    elif origin is Literal:
        text = ", ".join(f"`{choice}`" for choice in arguments)
    elif origin is tuple:
        text = f"list of: {_written(arguments[0])}"
    elif origin is dict:
        text = f"name: {_written(arguments[1])}"
    elif arguments:
        text = " or ".join(_written(argument) for argument in arguments if argument is not NoneType)
    elif annotation in _PLAIN:
        text = _PLAIN[annotation]
    else:
        assert issubclass(annotation, BaseModel)
        text = "section"
    rules = [rule for m in metadata for rule in (m.metadata if isinstance(m, FieldInfo) else [m])]
    return text + _interval(
        {key: getattr(rule, key) for rule in rules for key in _BOUNDS if hasattr(rule, key)}
    )


_BOUNDS: Final = ("gt", "ge", "lt", "le")


def _interval(bounds: dict[str, float]) -> str:
    """`` in [0, 1)``, or a bound alone."""
    finite = {key: f"{bound:g}" for key, bound in bounds.items() if bound < 2**53}
    low, high = finite.get("ge") or finite.get("gt"), finite.get("le") or finite.get("lt")
    if low and high:
        return f" in {'[' if 'ge' in finite else '('}{low}, {high}{']' if 'le' in finite else ')'}"
    signs = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}
    return "".join(f", {signs[key]} {bound}" for key, bound in finite.items())


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    if field.default in (None, "") or isinstance(field.default, BaseModel):
        return ""
    written = [m for m in field.metadata if hasattr(m, "return_type") and hasattr(m, "func")]
    value = written[0].func(field.default) if written else field.default
    return f"`{json.dumps(value)}`".replace('"', "")


def json_schema() -> dict[str, Any]:
    """JSON Schema of scenario files, for editors."""
    schema = Scenario.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def main() -> None:
    """Renew the page and the schema, which commands read without the models."""
    write_atomically(SCHEMA, json.dumps(json_schema(), indent=1) + "\n")
    write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8")))


if __name__ == "__main__":
    main()
