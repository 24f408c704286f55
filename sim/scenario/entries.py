"""The parts of a scenario whose keys depend on a registry: the workload's task, its proxy, and a scheme."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, Self

from pydantic import (
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from typing_extensions import override

from ..config.limits import MAX_BATCH, MAX_LABEL, MAX_MODEL_BYTES
from ..config.problems import format_value, mistake, place_errors
from ..config.settings import IMPORT_PATH, Named, Printable, Settings, read_open
from ..config.units import Bytes
from ..errors import did_you_mean
from ..faults.fault_settings import Policy
from ..records.carry.break_even import FEWEST_ROUNDS
from ..records.rates import RATE
from ..schemes import SCHEMES, find_scheme
from ..schemes.scheme import Scheme
from ..topology.entry import BRIEF
from ..training.curves.curves import Curves
from ..training.optimizer import OptimizerSettings
from ..workloads import TASKS, find_task
from ..workloads.batch_sizes import BatchSize, apportion
from ..workloads.layers.layer_settings import LayerProfile
from ..workloads.layers.presets import PRESETS
from ..workloads.partition import Partition
from ..workloads.sampler import SamplerSettings


class WorkloadEntry(Settings):
    """The training task; its own options stand beside these keys."""

    task: str = Field(description="name of the task, or package.module:build")
    options: Settings = Field(description="the task's own options")
    batch_size: BatchSize = Field(
        description="examples per worker's batch: a number; or a list, a size for each worker; or sizes by "
        "site (`{us: 704, eu: 320}`); or `{by: speed, mean: 512}`, shares in proportion to the speeds of the "
        "workers' computing. Where they differ, examples count alike in every mean"
    )
    accumulate: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="batches per step, one after another (gradient accumulation, DDP's `no_sync`): the "
        "gradient is their mean, its time their sum",
    )
    proxy_batch: int | None = Field(
        default=None,
        ge=1,
        le=MAX_BATCH,
        description="examples that all workers together draw for a step, where a small task stands for a "
        "model: the time remains that of batch_size (default: batch_size each)",
    )
    partition: Partition = Field(default=Partition(), description="distribution of examples over workers")
    sampler: SamplerSettings | None = Field(
        default=None,
        description="importance sampling (default: epochs, every example equally often)",
    )
    replacement: bool = Field(
        default=False,
        description="draw every example of a batch from all of the worker's (default: epochs)",
    )
    optimizer: OptimizerSettings = Field(description="update rule of schemes without their own")
    payload: Annotated[Bytes, Field(gt=0, le=MAX_MODEL_BYTES)] | None = Field(
        default=None,
        description="bytes of one model on the wire (default: 4 B per parameter of `layer_profile`, 2 B in "
        "bf16, else the model's own size)",
    )
    precision: Literal["float32", "bf16"] = Field(
        default="float32",
        description="numbers of parameters and gradients of the model that the task stands for, in memory "
        "and on the wire; with bf16 a master copy and the optimiser stay in float32. Sizes alone: values "
        "are computed as they are",
    )
    layer_profile: LayerProfile | None = Field(
        default=None,
        description="layers that the model stands for (a name, a transformer's shape or a CSV file): bytes, "
        "order in the backward pass and, with `compute.speed`, durations",
    )
    curves: Curves | None = Field(
        default=None,
        description="file of measured scores, or a list of them: nothing is trained, the clock prices them; "
        "needs payload, layer_profile or the task that was trained, for the size of the model",
    )
    timing_only: bool = Field(
        default=False,
        description="follow the clock only, without training; needs only payload or layer_profile",
    )

    @model_validator(mode="wrap")
    @classmethod
    def _split(cls, data: Any, read: ModelWrapValidatorHandler[Self], info: ValidationInfo) -> Self:
        if not isinstance(data, Mapping) or isinstance(data.get("options"), Settings):
            return read(data)
        if data.get("timing_only") is True:
            data = {"task": "quadratic", "batch_size": 1, "optimizer": {"lr": 1.0}, **data}
        elif data.get("curves") is not None and "task" not in data:
            data = {"task": "quadratic", "optimizer": {"lr": 1.0}, "timing_only": True, **data}
        if "task" not in data:
            raise mistake(f"is missing; {did_you_mean('', TASKS)}", "task")
        name = data["task"]
        if not isinstance(name, str):
            raise mistake(f"must name a task, not {format_value(name)}; {did_you_mean('', TASKS)}", "task")
        with place_errors("task"):
            options = find_task(name).options
        return read_open(cls, read, options, data, {}, info)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.timing_only and self.model_bytes is None:
            raise mistake(
                "needs a payload or a layer_profile; add for example 'payload: 100 MB' or "
                "'layer_profile: resnet-50'",
                "timing_only" if self.curves is None else "curves",
            )
        if self.timing_only and self.sampler is not None:
            raise mistake("nothing is trained (timing_only), so nothing is drawn; leave it out", "sampler")
        if self.proxy_batch is not None and self.model_bytes is None:
            raise mistake(
                "needs the model that the task stands for; add a payload or a layer_profile", "proxy_batch"
            )
        if self.precision != "float32" and self.model_bytes is None:
            raise mistake(
                "is that of a model that the task stands for; add a payload or a layer_profile", "precision"
            )
        if self.replacement and self.sampler is not None:
            raise mistake("a sampler draws with replacement by itself; leave one of them out", "replacement")
        if self.uneven and self.sampler is not None:
            raise mistake(
                "draws batches of one size for all workers; write batch_size as a number", "sampler"
            )
        return self

    @property
    def uneven(self) -> bool:
        """Whether batches may differ in size."""
        return not isinstance(self.batch_size, int)

    @property
    def drawn_batches(self) -> int:
        """Batches that a worker's examples of a step are evaluated in."""
        return self.accumulate if self.proxy_batch is None else 1

    def drawn_examples(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Examples that each worker draws for a step, with batches of these ``sizes``."""
        if self.proxy_batch is None:
            return tuple(self.accumulate * size for size in sizes)
        return apportion(len(sizes) * max(1, self.proxy_batch // len(sizes)), sizes)

    @property
    def model_bytes(self) -> float | None:
        """Bytes of one model on the wire; None: its own size."""
        if self.payload is None and self.layer_profile is not None:
            return self.number_bytes * self.layer_profile.num_parameters
        return self.payload

    @property
    def number_bytes(self) -> int:
        """Bytes of a parameter on the wire, and of a gradient."""
        return 4 if self.precision == "float32" else 2

    @model_serializer(mode="wrap")
    def _write(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data = super()._write(plain)
        data.pop("options")
        return {"task": data.pop("task"), **self.options.model_dump(mode="json"), **data}

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = read.resolve_ref_schema(read(schema))
        del out["properties"]["options"], out["additionalProperties"]
        out["properties"]["task"] |= {"anyOf": [{"enum": sorted(TASKS)}, IMPORT_PATH]}
        clock_only = {"properties": {"timing_only": {"const": True}}, "required": ["timing_only"]}
        required = [key for key in out.pop("required") if key != "options"]
        untrained = {"anyOf": [clock_only, {"required": ["curves"]}]}
        out["allOf"] = [
            {
                "if": untrained,
                "then": {"anyOf": [{"required": [key]} for key in ("payload", "layer_profile", "task")]},
                "else": {"required": required},
            }
        ]
        for name, task in TASKS.items():
            own = read.resolve_ref_schema(read(task.options.__pydantic_core_schema__))
            known = {**dict.fromkeys(out["properties"], True), **own.get("properties", {})}
            body = {"properties": known, "required": own.get("required", []), "additionalProperties": False}
            chosen = {"properties": {"task": {"const": name}}, "required": ["task"]}
            out["allOf"].append({"if": chosen, "then": body})
        return out


class SchemeEntry(Named):
    """One averaging scheme to run: its name, or ``{name: {options ..., label, optimizer}}``."""

    kind: ClassVar[str] = "scheme"
    example: ClassVar[str] = "{local_sgd: {period: 16}}"
    registry: ClassVar[Mapping[str, Scheme]] = SCHEMES
    find: ClassVar[Callable[[str], Scheme]] = find_scheme

    name: str = Field(description="which scheme")
    label: Printable = Field(
        default="",
        max_length=MAX_LABEL,
        description="name in reports (default: the scheme's, with options where several share it)",
    )
    options: Settings = Field(description="the scheme's own options")
    optimizer: OptimizerSettings | None = Field(
        default=None, description="update rule (default: the workload's)"
    )
    on_fault: Policy | None = Field(
        default=None,
        description="what all workers do at a fault: wait (stop until everybody is back, and repeat the step "
        "in flight), restart (from the last checkpoint, once everybody is back), shrink (go on among the "
        "living, who heal those that return) or skip (with a quorum or deadline: as stragglers); default: "
        "restart where there is a `checkpoint`, else wait",
    )

    @classmethod
    @override
    def spell_out(cls, name: str, given: object) -> object:
        period = find_scheme(name).options.model_fields.get("period")
        match given:
            case {"period": Mapping()} if period is not None and period.annotation is int:
                why = "all take every step" if find_scheme(name).synchronous else "wait for nobody"
                raise mistake(f"cannot be by time: its workers {why}; write a number", name, "period")
        return super().spell_out(name, given)

    @model_validator(mode="after")
    def _check_policy(self) -> Self:
        scheme = find_scheme(self.name)
        if self.on_fault == "shrink" and not (scheme.shrinks(self.options) and scheme.in_step(self.options)):
            text = "shrink is not for this scheme with these options: its workers share no step"
            raise mistake(f"{text}; write wait or restart", "on_fault")
        limits = [getattr(self.options, key, None) for key in ("quorum", "deadline")]
        if self.on_fault == "skip" and limits.count(None) == len(limits):
            raise mistake("skip leaves workers out of averages: give a quorum or a deadline too", "on_fault")
        return self


def labels_of(entries: Sequence[SchemeEntry]) -> list[str]:
    """Labels of the entries: their own, else the name and the options that differ among its entries."""
    out = []
    for entry in entries:
        rivals = [_traits(other) for other in entries if other.name == entry.name and not other.label]
        own = _traits(entry)
        apart = [f"{key}={own[key]}" for key in own if any(rival.get(key) != own[key] for rival in rivals)]
        out.append(entry.label or " ".join([entry.name.rpartition(":")[2], *apart]))
    return out


def _traits(entry: SchemeEntry) -> dict[str, Any]:
    options = _flat(entry.options.model_dump(mode="json", context=BRIEF))
    optimizer = _flat(entry.optimizer.model_dump(mode="json") if entry.optimizer else {})
    policy = {"on_fault": entry.on_fault} if entry.on_fault else {}
    own = {f"optimizer.{key}" if key in options else key: v for key, v in optimizer.items()}
    return options | own | policy


def _flat(data: Mapping[str, Any]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in data.items():
        inner = {f"{key}.{k}": v for k, v in _flat(value).items()} if isinstance(value, Mapping) else {}
        out.update(inner or {key: value})
    return out


PROXY: Final = "text-mlp"
PROXY_EXAMPLES: Final = 256
STEPS: Final = 8000
TARGET: Final[Mapping[str, Any]] = MappingProxyType({"metric": "test_loss", "value": 1.8})
RATES: Final = (0.003, 0.006, 0.012)
"""Of AdamW: half, once and twice the rate at which all-reduce ends lowest."""
_SCHEDULE: Final = MappingProxyType({"warmup": "100 steps"})


def with_proxy(data: Any) -> Any:
    """Scenario not validated yet, with the proxy where it has a language model and nothing to train.

    The proxy (docs/proxies.md) is ``text-mlp``, long enough for 16 rounds of the longest period, so that
    periods, optimisers and outer steps are those of the scenario. All workers together draw
    ``PROXY_EXAMPLES`` for a step, whose time is that of the real batch. The target is about 95 % of the fall
    of all-reduce's loss in 8,000 steps.
    """
    match data:
        case {"workload": {"layer_profile": profile} as workload} if _is_language_model(
            profile
        ) and workload.keys().isdisjoint(("task", "timing_only", "curves")):
            optimizer = workload.get("optimizer", {})
        case _:
            return data
    named = optimizer if isinstance(optimizer, Mapping) else {}
    if "tune" not in data and optimizer and named.keys().isdisjoint(("adam", "adamw", "muon")):
        text = f"the proxy has rates for AdamW alone; add for example 'tune: {{{RATE}: [0.1, 0.2, 0.4]}}'"
        raise mistake(text, "workload", "optimizer")
    steps = max(STEPS, FEWEST_ROUNDS * max(_periods(data.get("schemes")), default=1))
    trained = {"task": PROXY, "proxy_batch": PROXY_EXAMPLES, **workload}
    if named:
        trained["optimizer"] = {**named, "schedule": dict(_SCHEDULE)}
    return {
        "evaluate": {"every": "40 steps"},
        "stop": {"target": dict(TARGET), "max_iterations": steps},
        "tune": {RATE: list(RATES), "trials": len(RATES)},
        "repeats": 5,
        "events": "none",
        **data,
        "workload": trained,
    }


def _is_language_model(profile: object) -> bool:
    known = isinstance(profile, str) and profile in PRESETS and profile.startswith(("gpt", "llama", "bert"))
    return known or (isinstance(profile, Mapping) and "transformer" in profile)


def _periods(schemes: object) -> Iterable[int]:
    entries = schemes if isinstance(schemes, list | tuple) else ()
    for entry in entries:
        for options in entry.values() if isinstance(entry, Mapping) else ():
            match options:
                case {"period": int(period) | {"steps": int(period)}}:
                    yield period
