"""The two parts of a scenario whose keys depend on a registry: the workload's task and a scheme."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Self, TypeVar

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ..config.problems import KeyPath, Mistake, explain, format_value, mistake, mistakes, unknown_key
from ..config.settings import Settings
from ..config.units import Bytes
from ..errors import InputError, did_you_mean
from ..schemes import SCHEMES, find_scheme
from ..training.optimizer import OptimizerSettings
from ..workloads import TASKS, find_task
from ..workloads.partition import Partition

S = TypeVar("S", bound=Settings)

_DOTTED: Final = ".:."
"""JSON Schema of what users write themselves: ``package.module:name``."""
_SHAPE: Final = "write a name, or for example '{local_sgd: {period: 16}}'"


def _read_open(
    model: type[S],
    read: ModelWrapValidatorHandler[S],
    options: type[Settings],
    data: Mapping[str, Any],
    fixed: Mapping[str, Any],
    at: KeyPath,
    context: Any,
) -> S:
    """Validate a mapping in which the keys of ``options`` stand beside those of ``model``.

    Args:
        model, read: the model and its own validation.
        options: the model of the other keys.
        data: what was written.
        fixed: fields of ``model`` that are not written in ``data``.
        at: path to put before those of the problems found.
        context: of the validation: the scenario's folder.
    """
    own = options.model_fields.keys()
    common = model.model_fields.keys() - {"options", *fixed}
    found = [Mistake((key,), unknown_key(key, own | common)) for key in data if key not in own | common]
    made = Settings()
    written = {key: value for key, value in data.items() if key in own}
    try:
        made = options.model_validate(written, context=context)
    except ValidationError as error:
        found += explain(error, options, written)
    rest = {**fixed, "options": made, **{key: value for key, value in data.items() if key in common}}
    result = None
    try:
        result = read(rest)
    except ValidationError as error:
        found += explain(error, model, rest)
    if result is None or found:
        raise mistakes([Mistake(at + problem.at, problem.message) for problem in found])
    return result


class WorkloadEntry(Settings):
    """What is trained. A task's own options stand beside these keys."""

    task: str = Field(description="what to train")
    options: Settings = Field(description="the task's own options")
    batch_size: int = Field(ge=1, description="examples in a worker's batch")
    partition: Partition = Field(default=Partition(), description="how the examples are spread")
    optimizer: OptimizerSettings = Field(description="update rule of every scheme that has none of its own")
    payload: Annotated[Bytes, Field(gt=0)] | None = Field(
        default=None, description="bytes that one model stands for on the wire; absent: its own size"
    )
    timing_only: bool = Field(
        default=False, description="train nothing, follow the clock only; then only payload is needed here"
    )

    @model_validator(mode="wrap")
    @classmethod
    def _split(cls, data: Any, read: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if not isinstance(data, Mapping) or isinstance(data.get("options"), Settings):
            return read(data)
        if data.get("timing_only") is True:
            data = {"task": "quadratic", "batch_size": 1, "optimizer": {"lr": 1.0}, **data}
        if "task" not in data:
            raise mistake(f"is missing; {did_you_mean('', TASKS)}", "task")
        name = data["task"]
        if not isinstance(name, str):
            raise mistake(f"must name a task, not {format_value(name)}; {did_you_mean('', TASKS)}", "task")
        try:
            options = find_task(name).options
        except KeyError:
            raise mistake(f"unknown task '{name}'; {did_you_mean(name, TASKS)}", "task") from None
        except InputError as error:
            raise mistake(str(error), "task") from None
        return _read_open(cls, read, options, data, {}, (), info.context)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.timing_only and self.payload is None:
            raise mistake("needs a payload; add for example 'payload: 100 MB'", "timing_only")
        return self

    @model_serializer(mode="wrap")
    def _write(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data = super()._write(plain)
        data.pop("options")
        return {"task": data.pop("task"), **self.options.model_dump(mode="json"), **data}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = read.resolve_ref_schema(read(schema))
        del out["properties"]["options"], out["additionalProperties"]
        out["properties"]["task"] |= {"anyOf": [{"enum": sorted(TASKS)}, {"pattern": _DOTTED}]}
        clock_only = {"properties": {"timing_only": {"const": True}}, "required": ["timing_only"]}
        required = [key for key in out.pop("required") if key != "options"]
        out["allOf"] = [{"if": clock_only, "then": {"required": ["payload"]}, "else": {"required": required}}]
        for name, task in TASKS.items():
            own = read.resolve_ref_schema(read(task.options.__pydantic_core_schema__))
            known = {**dict.fromkeys(out["properties"], True), **own.get("properties", {})}
            body = {"properties": known, "required": own.get("required", []), "additionalProperties": False}
            chosen = {"properties": {"task": {"const": name}}, "required": ["task"]}
            out["allOf"].append({"if": chosen, "then": body})
        return out


class SchemeEntry(Settings):
    """One averaging scheme to run: its name, or ``{name: {options ..., label, optimizer}}``."""

    name: str = Field(description="which scheme")
    label: str = Field(
        default="", description="what reports call it; absent: its name, with options where schemes share one"
    )
    options: Settings = Field(description="the scheme's own options")
    optimizer: OptimizerSettings | None = Field(
        default=None, description="its own update rule; absent: the workload's"
    )

    @model_validator(mode="wrap")
    @classmethod
    def _unfold(cls, data: Any, read: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if isinstance(data, str):
            data = {data: None}
        if isinstance(data, cls):
            return data
        if not isinstance(data, Mapping):
            raise mistake(f"must be a scheme, not {format_value(data)}; {_SHAPE}")
        if isinstance(data.get("options"), Settings):
            return read(data)
        if len(data) != 1:
            raise mistake(f"must be one scheme, not {len(data)} keys ({', '.join(data)}); {_SHAPE}")
        ((name, given),) = data.items()
        try:
            options = find_scheme(name).options
        except KeyError:
            raise mistake(f"unknown scheme '{name}'; {did_you_mean(name, SCHEMES)}", name) from None
        except InputError as error:
            raise mistake(str(error), name) from None
        given = {} if given is None else given
        if not isinstance(given, Mapping):
            raise mistake(f"its options must be a mapping of keys to values, not {format_value(given)}", name)
        return _read_open(cls, read, options, given, {"name": name}, (name,), info.context)

    @model_serializer(mode="wrap")
    def _write(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data = super()._write(plain)
        own = {key: data[key] for key in ("label", "optimizer") if key in data}
        return {self.name: {**self.options.model_dump(mode="json"), **own}}

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = read.resolve_ref_schema(read(schema))
        common = {key: out["properties"][key] for key in ("label", "optimizer")}
        forms: list[JsonSchemaValue] = []
        bare: list[str] = []
        for name, scheme in sorted(SCHEMES.items()):
            own = read.resolve_ref_schema(read(scheme.options.__pydantic_core_schema__))
            body = {**own, "properties": {**own.get("properties", {}), **common}}
            if not own.get("required"):
                bare.append(name)
                body = {"anyOf": [body, {"type": "null"}]}
            forms.append(
                {
                    "type": "object",
                    "properties": {name: body},
                    "required": [name],
                    "additionalProperties": False,
                }
            )
        theirs = {"type": "string", "pattern": _DOTTED}
        forms += [
            theirs,
            {"type": "object", "patternProperties": {_DOTTED: True}, "additionalProperties": False},
        ]
        return {"description": out.get("description", ""), "anyOf": [{"enum": bare}, *forms]}
