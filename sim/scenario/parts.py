"""Parts of a scenario file: machines, scoring, stopping, collective algorithms, the lab.

These models and ``Scenario`` are the only place where keys and defaults are written down.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Annotated, Any, Final, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ..collectives.algorithm_registry import users_all_reduce
from ..compute.compute_settings import Compute, Straggler
from ..config.limits import MAX_EXAMPLES, MAX_MODEL_BYTES, MAX_STEPS, MAX_STRAGGLERS, MAX_WORKERS
from ..config.problems import Mistake, mistake, place_errors, raise_mistakes
from ..config.settings import Settings
from ..config.units import BoundedSeconds, Bytes, Steps
from ..config.user_code.call import is_import_path
from ..errors import InputError, did_you_mean, quote
from ..faults.fault_settings import Fault, Heartbeats, read_faults
from ..network.build import build_network
from ..network.forms import Graph
from ..network.network_settings import NetworkSettings
from ..network.profile import Profile
from ..network.transport import AUTO_ALGORITHM, TRANSPORTS
from ..records.run import On
from ..training.snapshots import ASSUMED_STEPS, KEPT_APART, KEPT_BYTES, Keep
from ..workloads.workload import LEAST_SCORED, SCORED_NUMBERS

ALL_REDUCE_NAMES: Final = tuple(
    dict.fromkeys((AUTO_ALGORITHM, *(name for each in TRANSPORTS.values() for name in each.all_reduces)))
)
"""All-reduce algorithms of all transports."""

_NAMED: Final = "; ".join(
    f"{name}: {', '.join(each.all_reduces)}" for name, each in TRANSPORTS.items() if name
)
_KEEP: Final = re.compile(r"every +0*([1-9][0-9]{0,8}) +steps?(?:, then ((?:[0-9]\.)?[1-9]) %)?")


def _check_all_reduce(value: str) -> str:
    if is_import_path(value):
        with place_errors():
            users_all_reduce(value)
    elif value not in ALL_REDUCE_NAMES:
        raise mistake(f"unknown choice {quote(value)}; {did_you_mean(value, ALL_REDUCE_NAMES)}")
    return value


def _check_keep(value: str) -> str:
    if match := _KEEP.fullmatch(value):
        return f"every {match[1]} steps" + (f", then {match[2]} %" if match[2] else "")
    if value == "all":
        return value
    raise mistake(
        f"unknown choice {quote(value)}; choose from: all, every K steps, 'every K steps, then P %'"
    )


def format_keep(rule: Keep) -> str:
    """A rule in the notation of ``evaluate.keep``."""
    if rule.apart == 1 and not rule.share:
        return "all"
    return f"every {rule.apart} steps" + (f", then {100 * rule.share:g} %" if rule.share else "")


def read_on(value: object) -> object:
    """Meaning of ``evaluate.on``: ``outer`` is another word for ``averaged``."""
    return "averaged" if value == "outer" else value


ScoredModel = Annotated[On, BeforeValidator(read_on, json_schema_input_type=On | Literal["outer"])]
"""The scored model. Of a scheme with an outer optimiser the average is the outer parameters: ``outer``."""

PROFILE: Final = {"type": "string", "examples": ["profile.yaml"]}


def count_gpus(of: object) -> int:
    """GPUs of a ``host`` or an ``island`` not validated yet."""
    match of:
        case {"gpus": int(gpus)} if gpus > 0:
            return gpus
    return 1


class Island(Settings):
    """A worker of several GPUs, among which model and batch are sharded evenly (FSDP)."""

    gpus: int = Field(ge=1, le=MAX_WORKERS, description="GPUs per worker")
    utilisation: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="with `compute.speed`, the peak of one GPU: model FLOPs utilisation of all its GPUs, "
        "their communication included",
    )


class Cluster(Settings):
    """The machines."""

    file: str | None = Field(
        default=None,
        description="YAML file with `cluster:` and keys of it, as `paceline import` writes, relative to the "
        "scenario's folder; or a ready one (`paceline list`); keys beside it take precedence",
    )
    workers: int = Field(
        ge=1, le=MAX_WORKERS, description="number of workers (default: those of the sites or graph)"
    )
    compute: Compute = Field(description="durations of gradients")
    stragglers: tuple[Straggler, ...] = Field(
        default=(), max_length=MAX_STRAGGLERS, description="stragglers; their factors multiply"
    )
    network: NetworkSettings = Field(description="network and transport")
    faults: Annotated[tuple[Fault, ...], BeforeValidator(read_faults)] = Field(
        default=(),
        max_length=MAX_STRAGGLERS,
        description="workers, hosts and sites that fail and return; `{trace: FILE.csv}` has a fault a row, "
        "with the columns worker (or host), at, back_after, perhaps detect and warning",
    )
    heartbeat: Heartbeats | None = Field(
        default=None, description="heartbeats, which share the links; for `paceline check` (default: none)"
    )
    island: Island | None = Field(
        default=None, description="several GPUs that act as one worker (default: one device)"
    )
    memory: Annotated[Bytes, Field(gt=0, le=MAX_MODEL_BYTES)] | None = Field(
        default=None,
        description="memory of each device; schemes that need more are refused (default: unlimited)",
    )
    hosts: dict[str, Annotated[int, Field(ge=1, le=MAX_WORKERS)]] | None = Field(
        default=None,
        description="real runs under torchrun and Slurm: workers per host name, in order (default: hosts as "
        "they come, consecutive workers each)",
    )
    backend: Literal["gloo", "nccl"] = Field(
        default="gloo",
        description="backend of a real run: gloo between CPUs, nccl between GPUs, one per worker",
    )
    profile: Annotated[Profile | None, WithJsonSchema(PROFILE)] = Field(
        default=None,
        description="correction factors from `paceline calibrate`, a file relative to the scenario's "
        "folder; `--profile` overrides it",
    )

    @model_validator(mode="before")
    @classmethod
    def _count_workers(cls, data: Any, info: ValidationInfo) -> Any:
        match data:
            case {"workers": _}:
                return data
            case {"network": {"graph": graph} as network} if graph is not None:
                try:
                    hosts = len(Graph.model_validate(graph, context=info.context).hosts)
                    return {"workers": hosts * count_gpus(network.get("host")), **data}
                except ValidationError:  # which is reported where it stands
                    return {"workers": 1, **data}
            case {"network": {"sites": sites}} if sites is not None:
                # Counts that are wrong are reported where they stand.
                counts = sites.values() if isinstance(sites, Mapping) else ()
                known = sum(count for count in counts if type(count) is int)
                return {"workers": max(known, 1), **data}
        return data

    @model_validator(mode="after")
    def _take_transport(self) -> Self:
        if self.profile is None:
            return self
        with place_errors("network", "transport"):
            return self.with_profile(self.profile, "cluster.profile")

    def with_profile(self, profile: Profile, source: str) -> Self:
        """Cluster with a profile and its transport; ``InputError``, with ``source``: another transport."""
        named, measured = self.network.transport, profile.hosts.transport
        if "transport" in self.network.model_fields_set and named != measured:
            raise InputError(
                f"{quote(str(named))} is not what {source} was measured on; write {measured}, or leave it out"
            )
        network = self.network.model_copy(update={"transport": measured})
        return self.model_copy(update={"profile": profile, "network": network})

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_mistakes([*self._wrong_workers(), *self._wrong_names(), *self._wrong_island()])
        for part in (self.network.whole, "variation"):  # their mistakes only show when the network is built
            if part and getattr(self.network, part):
                steady = {"variation": ()} if part != "variation" else {}
                with place_errors("network", part):
                    build_network(self.network.model_copy(update=steady), self.workers)
        return self

    def units_of(self, fault: Fault) -> tuple[tuple[int, ...], ...]:
        """Ranks that fail together, for each worker, host or site that a fault strikes."""
        sites = self.network.sites or {}
        first = dict(zip(sites, accumulate(sites.values(), initial=0), strict=False))
        if fault.sites is not None:
            return tuple(tuple(range(first[name], first[name] + sites[name])) for name in fault.sites)
        size = 1 if fault.hosts is None else self.network.gpus
        units = fault.workers or fault.hosts or range(self.workers)
        return tuple(tuple(range(each * size, each * size + size)) for each in units)

    @property
    def device_memory(self) -> float | None:
        """Bytes of each device; None where not given."""
        host = self.network.host
        return host.memory if host is not None and host.memory is not None else self.memory

    @property
    def speed_factor(self) -> float:
        """Speed of a worker relative to ``compute.speed``."""
        return 1.0 if self.island is None else self.island.gpus * self.island.utilisation

    def _wrong_island(self) -> Iterator[Mistake]:
        if self.island is None:
            return
        if self.island.utilisation < 1 and self.compute.speed is None:
            text = "needs compute.speed, the peak of a GPU; with a time leave it out"
            yield Mistake(("island", "utilisation"), text)
        if self.network.gpus > 1:
            text = "is a worker of several GPUs, where network.host has workers of one; leave one of them out"
            yield Mistake(("island",), text)

    def _wrong_workers(self) -> Iterator[Mistake]:
        held = sum((self.network.sites or {}).values())
        if self.network.sites is not None and held != self.workers:
            yield Mistake(("workers",), f"is {self.workers}, but the sites hold {held}; make them agree")
        trace = self.compute.trace
        if trace and trace.workers and not trace.attached and len(trace.workers) != self.workers:
            text = f"{len(trace.workers)} lists of durations for {self.workers} workers; give one for each"
            yield Mistake(("compute", "trace", "workers"), text)
        gpus = self.network.gpus
        if self.workers % gpus:
            full = gpus * max(1, self.workers // gpus)
            text = f"{self.workers} workers do not fill hosts of {gpus} GPUs; write for example {full}"
            yield Mistake(("workers",), text)
        placed = sum((self.hosts or {}).values())
        if self.hosts is not None and placed != self.workers:
            text = f"name places for {placed} workers, there are {self.workers}; make them agree"
            yield Mistake(("hosts",), text)
        for name in self.hosts or ():
            if name.split() != [name] or not name.isprintable():
                text = "is no host's name: it is empty, or holds blanks or the like"
                yield Mistake(("hosts", name), text)

    def _wrong_names(self) -> Iterator[Mistake]:
        """Workers that stragglers and faults name, hosts and sites."""
        ranks, hosts = range(self.workers), range(self.workers // self.network.gpus)
        named = ("stragglers", "workers", ranks), ("faults", "workers", ranks), ("faults", "hosts", hosts)
        for key, part, known in named:
            numbers = "hosts" if part == "hosts" else "ranks"
            for number, each in enumerate(getattr(self, key)):
                for index, rank in enumerate(getattr(each, part) or ()):
                    if rank not in known:
                        text = f"there is no {part[:-1]} {rank}; {numbers} go from 0 to {known[-1]}"
                        yield Mistake((key, number, part, index), text)
        sites = self.network.sites or {}
        for number, fault in enumerate(self.faults):
            for index, name in enumerate(fault.sites or ()):
                if name not in sites:
                    text = f"no site is called {quote(name)}; {did_you_mean(name, sites)}"
                    yield Mistake(("faults", number, "sites", index), text)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = read.resolve_ref_schema(read(schema))
        needed = {"required": [key for key in out.pop("required") if key != "workers"]}
        return {**out, "anyOf": [needed, {"required": ["file"]}]}


class EvaluateSettings(Settings):
    """Scoring; without ``time`` it costs none on the clock."""

    every: Annotated[Steps, Field(ge=1)] = Field(default=10, description="steps between two scores")
    time: BoundedSeconds | None = Field(
        default=None, description="time for which each evaluation stops every worker (default: none)"
    )
    on: ScoredModel = Field(
        default="published",
        description="scored models: published (what the scheme publishes for all, as soon as it is there: "
        "all-reduce's model, the last average, an outer model, a centre's or a leader's; else the mean "
        "model, an all-reduce later), mean (the mean model), workers (mean score of all), worst, leader (the "
        "scheme's model for all, else the best worker's), or averaged (the scheme's published average; of "
        "an outer optimiser the outer parameters); outer is the same as averaged",
    )
    keep: Annotated[str, AfterValidator(_check_keep)] | None = Field(
        default=None,
        description="models kept for scoring: all; 'every K steps'; or 'every K steps, then P %': later P % "
        "of the steps so far apart, by a divisor of 'every'. Default: all if they fit into "
        f"{KEPT_BYTES >> 20} MiB for all workers and stop.max_iterations (else {ASSUMED_STEPS:,}) steps; "
        f"else 'every K steps, then {100 * KEPT_APART:g} %' with the least K that fits between two scores, "
        "or 'every' alone",
    )
    examples: Annotated[int, Field(ge=1, le=MAX_EXAMPLES)] | None = Field(
        default=None,
        description="examples of each set that a score takes, drawn from the seed, the same for all schemes "
        f"(default: those that the task scores, at most {SCORED_NUMBERS >> 20} Mi / the parameters, but "
        f"{LEAST_SCORED} at least)",
    )
    gradient_noise: Annotated[Steps, Field(ge=1)] | None = Field(
        default=None,
        description="steps between two measurements of the gradients' noise within workers and differences "
        "between them, at the next score (default: none)",
    )

    @property
    def kept(self) -> Keep:
        """Rule of ``keep``; all models where it is left open."""
        match = _KEEP.fullmatch(self.keep or "")
        return Keep(self.every, int(match[1]), float(match[2] or 0) / 100) if match else Keep(self.every)


class TargetSettings(Settings):
    """A score that ends the run; whether it has to rise or fall is known of each metric."""

    metric: str = Field(description="one of the task's metrics")
    value: float = Field(description="the score to reach")
    on: ScoredModel = Field(default="published", description="scored models (default: those of evaluate.on)")


class Stop(Settings):
    """End of a run: the first of these limits; at least one is needed."""

    target: TargetSettings | None = Field(default=None, description="a score to reach")
    max_time: Annotated[BoundedSeconds, Field(gt=0)] | None = Field(
        default=None, description="time on the run's clock"
    )
    max_iterations: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = Field(
        default=None, description="steps of each worker"
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.target is None and self.max_time is None and self.max_iterations is None:
            raise mistake("nothing ends the run; give at least one of target, max_time, max_iterations")
        if self.max_time is None and self.max_iterations is None:
            raise mistake(
                "a scheme that never reaches it would run for ever; add max_time or max_iterations", "target"
            )
        return self


class CollectiveSettings(Settings):
    """Algorithms of the collective operations."""

    all_reduce: Annotated[str, AfterValidator(_check_all_reduce)] = Field(
        default="auto",
        description="all-reduce: auto (ideal: ring, double_tree, halving_doubling or, with sites or hosts "
        "of several GPUs, hierarchical, by the scheme's shortest step; gloo: its ring; nccl: ring or "
        f"tree, by NCCL's rule), one by name ({_NAMED}), or your function package.module:name of "
        "(workers, bytes); unused for `qsgd` and `top_k`, which cannot be summed in transit",
    )
    inside: Literal["auto", "workers", "hosts", "sites"] = Field(
        default="auto",
        description="values summed before `qsgd` and `top_k` encode them: of each host, of each site "
        "(equally large ones), or workers (each its own); auto: by the scheme's shortest step",
    )
    chosen: str | dict[str, dict[str, str]] | None = Field(
        default=None,
        description="written by Paceline: the choice of auto for a whole model among all workers; with "
        "ideal, for each scheme",
    )
    assumed: str | None = Field(default=None, description="written by Paceline: what NCCL's choice rests on")
