"""The scenario: what to train, on which cluster, with which schemes, until when.

The models below are the only place where keys and defaults are written down. ``load`` reads a YAML
file; ``dump`` writes the resolved scenario, which loads again and is equal.

A scheme is a name or ``{name: {options ..., label: ..., optimizer: ...}}``; a task's own options stand
in ``workload`` beside the common keys.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    ValidationError,
    ValidationInfo,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from ..collectives.registry import all_reduce_named
from ..compute.settings import Compute, Straggler
from ..config import user_code, yaml_file
from ..config.code_files import script_folder, search_beside
from ..config.limits import MAX_NAME, MAX_SCHEMES, MAX_SEED, MAX_STEPS, MAX_WORKERS
from ..config.problems import Mistake, explain, mistake, place_errors, raise_mistakes
from ..config.settings import Settings
from ..config.units import BoundedSeconds, Steps
from ..config.user_code import is_import_path
from ..errors import InputError, did_you_mean, quote, shorten
from ..network.build import build_network
from ..network.profile import Profile
from ..network.settings import Graph, NetworkSettings, QueueName, TransportName
from ..network.tcp import HostTuning
from ..network.transport import AUTO_ALGORITHM, TRANSPORTS
from ..records.run import On
from ..schemes import find_scheme
from ..topology.entry import BRIEF
from ..training.scoring import scored_on
from ..training.snapshots import ASSUMED_STEPS, KEPT_BYTES
from ..workloads import find_task
from . import overrides
from .entries import SchemeEntry, WorkloadEntry
from .ready import find_scenario
from .repeats import AutoRepeats, Repeats, read_auto
from .tune import Tune, with_values

MAX_MISTAKES: Final = 5
"""How many mistakes one error names."""

ALL_REDUCE_NAMES: Final = tuple(
    dict.fromkeys((AUTO_ALGORITHM, *(name for each in TRANSPORTS.values() for name in each.all_reduce)))
)
"""Of all transports."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_WRITTEN_OUT: Final = frozenset({"sharing", "overhead", "announcement", "variation", "uplink"})
"""Keys of a network that few users write all of, and that every resolved scenario has."""
_PLAIN: Final = "give the scheme an 'optimizer: {lr: ...}' of its own"
_KEEP: Final = re.compile(r"every +0*([1-9][0-9]{0,8}) +steps?")
_FIRST: Final = re.compile(r"first +0*([1-9][0-9]{0,8}) +steps?")


def _check_name(value: str) -> str:
    if len(value) > MAX_NAME:
        raise mistake(f"has {len(value)} letters; it takes at most {MAX_NAME}")
    if not _NAME.fullmatch(value):
        raise mistake(f"{quote(value)} will not do as a name; use letters, digits, '-', '_' and '.'")
    return value


def _check_all_reduce(value: str) -> str:
    if is_import_path(value):
        with place_errors():
            all_reduce_named(value)
    elif value not in ALL_REDUCE_NAMES:
        raise mistake(f"unknown choice {quote(value)}; {did_you_mean(value, ALL_REDUCE_NAMES)}")
    return value


def _check_events(value: str) -> str:
    if match := _FIRST.fullmatch(value):
        return f"first {match[1]} steps"
    if value in ("all", "none", "auto"):
        return value
    raise mistake(f"unknown choice {quote(value)}; choose from: all, auto, none, first N steps")


def _check_keep(value: str) -> str:
    if match := _KEEP.fullmatch(value):
        return f"every {match[1]} steps"
    if value == "all":
        return value
    raise mistake(f"unknown choice {quote(value)}; choose from: all, every K steps")


def _read_on(value: object) -> object:
    return "averaged" if value == "outer" else value


ScoredModel = Annotated[On, BeforeValidator(_read_on, json_schema_input_type=On | Literal["outer"])]
"""What is scored. Of a scheme with an outer optimiser the average is the outer parameters: ``outer``."""

PROFILE: Final = {"type": "string", "examples": ["profile.yaml"]}


class Cluster(Settings):
    """The machines."""

    workers: int = Field(
        ge=1, le=MAX_WORKERS, description="number of workers; absent: those of the sites or of the graph"
    )
    compute: Compute = Field(description="how long gradients take")
    stragglers: tuple[Straggler, ...] = Field(default=(), description="who is slow; factors multiply")
    network: NetworkSettings = Field(description="how messages travel")
    hosts: dict[str, Annotated[int, Field(ge=1, le=MAX_WORKERS)]] | None = Field(
        default=None,
        description="under torchrun and Slurm: host name -> workers on it, in the order of the workers; "
        "absent: hosts as they come, each with consecutive workers",
    )
    backend: Literal["gloo", "nccl"] = Field(
        default="gloo",
        description="what carries values in a real run: gloo between CPUs, nccl between GPUs, one a worker",
    )
    profile: Annotated[Profile | None, WithJsonSchema(PROFILE)] = Field(
        default=None,
        description="correction factors that `paceline calibrate` has written; the file is relative to the "
        "scenario's folder; `--profile` comes before it",
    )

    @model_validator(mode="before")
    @classmethod
    def _count_workers(cls, data: Any, info: ValidationInfo) -> Any:
        match data:
            case {"workers": _}:
                return data
            case {"network": {"graph": graph}}:
                try:
                    return {"workers": len(Graph.model_validate(graph, context=info.context).hosts), **data}
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
        """A profile brings its transport."""
        if self.profile is None:
            return self
        with place_errors("network", "transport"):
            return self.with_profile(self.profile, "cluster.profile")

    def with_profile(self, profile: Profile, source: str) -> Self:
        """The machines as a profile describes them, with the transport that it was measured on.

        Raises:
            InputError: they name another transport. ``source`` is what the error calls the profile.
        """
        named, measured = self.network.transport, profile.hosts.transport
        if "transport" in self.network.model_fields_set and named != measured:
            raise InputError(
                f"{quote(str(named))} is not what {source} was measured on; write {measured}, or leave it out"
            )
        network = self.network.model_copy(update={"transport": measured})
        return self.model_copy(update={"profile": profile, "network": network})

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_mistakes(self._wrong_workers())
        for part in ("graph", "model", "variation"):  # what only shows when the network is built
            if getattr(self.network, part):
                steady = {"variation": ()} if part != "variation" else {}
                with place_errors("network", part):
                    build_network(self.network.model_copy(update=steady), self.workers)
        return self

    def _wrong_workers(self) -> Iterator[Mistake]:
        held = sum((self.network.sites or {}).values())
        if self.network.sites is not None and held != self.workers:
            yield Mistake(("workers",), f"is {self.workers}, but the sites hold {held}; make them agree")
        placed = sum((self.hosts or {}).values())
        if self.hosts is not None and placed != self.workers:
            text = f"name places for {placed} workers, there are {self.workers}; make them agree"
            yield Mistake(("hosts",), text)
        for number, straggler in enumerate(self.stragglers):
            for index, rank in enumerate(straggler.workers or ()):
                if not 0 <= rank < self.workers:
                    text = f"there is no worker {rank}; ranks go from 0 to {self.workers - 1}"
                    yield Mistake(("stragglers", number, "workers", index), text)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = read.resolve_ref_schema(read(schema))
        out["required"].remove("workers")
        return out


class Evaluate(Settings):
    """Scoring; it costs no time on the clock."""

    every: Annotated[Steps, Field(ge=1)] = Field(
        default=10, description="steps of a worker between two scores"
    )
    on: ScoredModel = Field(
        default="mean",
        description="whose scores the metrics are: the mean model's, all workers' on average, the worst of "
        "theirs, the leader's (the model that stands for all, else the best worker's), or averaged: what the "
        "scheme itself publishes as an average, which are the outer parameters where it has an outer "
        "optimiser; outer is another word for that",
    )
    keep: Annotated[str, AfterValidator(_check_keep)] | None = Field(
        default=None,
        description="which of a worker's models are kept for scoring: all, or 'every K steps'; absent: as "
        f"many as fit into {KEPT_BYTES >> 20} MiB for all workers and stop.max_iterations (else "
        f"{ASSUMED_STEPS:,}) steps, at least one in every 'every' steps",
    )

    @property
    def keep_every(self) -> int:
        """K where models are kept every K steps; 1 where all are, or where it is left open."""
        match = _KEEP.fullmatch(self.keep or "")
        return int(match[1]) if match else 1


class TargetSettings(Settings):
    """A score that ends the run; whether it has to rise or fall is known of each metric."""

    metric: str = Field(description="one of the task's metrics")
    value: float = Field(description="the score to reach")
    on: ScoredModel = Field(default="mean", description="which score counts; absent: that of evaluate.on")


class Stop(Settings):
    """What ends a run: the first of these that is reached. At least one is needed."""

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
        description="which all-reduce: auto (ideal: the fastest of ring, double_tree, halving_doubling and, "
        "with sites, hierarchical, priced for each size and group; gloo: its ring; nccl: its ring or tree, "
        "as NCCL chooses), one of these, ring_stop_and_wait, or your function of (workers, bytes), as "
        "package.module:name",
    )
    chosen: str | None = Field(
        default=None,
        description="written by Paceline: what auto is for a whole model among all workers",
    )


class LabSettings(Settings):
    """The emulated network on which ``--lab`` measures."""

    hosts: HostTuning | None = Field(default=None, description="older name of cluster.network.hosts")
    queue: QueueName | None = Field(default=None, description="older name of cluster.network.queue")


class Scenario(Settings):
    """One question: which of these schemes is the fastest here?"""

    name: Annotated[str, AfterValidator(_check_name)] = Field(description="what results are filed under")
    seed: int = Field(default=0, ge=0, le=MAX_SEED, description="of the first repeat; all schemes share it")
    workload: WorkloadEntry = Field(description="what is trained")
    cluster: Cluster = Field(description="on which machines")
    evaluate: Evaluate = Field(default=Evaluate(), description="how models are scored")
    schemes: tuple[SchemeEntry, ...] = Field(
        min_length=1, max_length=MAX_SCHEMES, description="which averaging schemes to compare"
    )
    stop: Stop = Field(description="what ends a run")
    repeats: Annotated[Repeats, BeforeValidator(read_auto)] = Field(
        default=1,
        description="runs of each scheme, each with its own seed: a number, or 'auto' with these defaults",
    )
    tune: Tune | None = Field(
        default=None, description="values that each scheme chooses for itself before, on other seeds"
    )
    collectives: CollectiveSettings = Field(
        default=CollectiveSettings(), description="algorithms of collective operations"
    )
    lab: LabSettings = Field(default=LabSettings(), description="the emulated network of real runs")
    events: Annotated[str, AfterValidator(_check_events)] = Field(
        default="auto",
        description="operations to record: all, none, 'first N steps', or auto (all below a million rows)",
    )
    gradients: Literal["auto", "batched", "looped"] = Field(
        default="auto",
        description="how the workers' gradients are evaluated; auto: by a rule of the model and the workers",
    )

    @property
    def first_steps(self) -> int | None:
        """N where ``events`` is ``first N steps``, else None."""
        match = _FIRST.fullmatch(self.events)
        return int(match[1]) if match else None

    @model_validator(mode="before")
    @classmethod
    def _keep_older_law(cls, data: Any) -> Any:
        """A scenario with every default written out but no transport is of a version that had none."""
        match data:
            case {"cluster": {"network": Mapping() as network} as cluster} if (
                "transport" not in network and network.keys() >= _WRITTEN_OUT
            ):
                measured = cluster.get("profile") is not None
                law = "gloo" if measured else None
                named = data.get("collectives", {}).get("all_reduce", "ring")
                all_reduce = AUTO_ALGORITHM if measured else {"ring": "ring_stop_and_wait"}.get(named, named)
                return {
                    **data,
                    "cluster": {**cluster, "network": {**network, "transport": law}},
                    "collectives": {"all_reduce": all_reduce},
                }
        return data

    @model_validator(mode="before")
    @classmethod
    def _move_lab(cls, data: Any) -> Any:
        """``lab`` says of the network what simulations did not know of once."""
        match data:
            case {"lab": Mapping() as lab, "cluster": {"network": Mapping() as network} as cluster}:
                names = {"hosts": get_args(HostTuning), "queue": get_args(QueueName)}
                moved = {key: lab[key] for key, known in names.items() if lab.get(key) in known}
                stock = {"hosts": "stock"} if network.get("tcp") is not None else {}
                for key, value in moved.items():
                    named = {**stock, **network}.get(key, value)
                    if named != value:
                        text = f"is an older name of cluster.network.{key}, which is {quote(str(named))}"
                        raise mistake(f"{text}; leave it out", "lab", key)
                return {
                    **data,
                    "lab": {key: value for key, value in lab.items() if key not in moved},
                    "cluster": {**cluster, "network": {**network, **moved}},
                }
        return data

    @model_validator(mode="before")
    @classmethod
    def _score_what_counts(cls, data: Any) -> Any:
        """A target that names no score of its own is on that of ``evaluate.on``."""
        match data:
            case {"evaluate": {"on": on}, "stop": {"target": Mapping() as target} as stop} if _read_on(
                on
            ) in get_args(On):
                return {**data, "stop": {**stop, "target": {"on": on, **target}}}
        return data

    @field_validator("schemes", mode="after")
    @classmethod
    def _label(cls, entries: tuple[SchemeEntry, ...]) -> tuple[SchemeEntry, ...]:
        labels = _labels(entries)
        for number, label in enumerate(labels):
            if label in labels[:number]:
                first = labels.index(label)
                text = f"its label {quote(label)} is that of schemes.{first} too; give it another 'label'"
                raise mistake(text, number)
        return tuple(
            entry if entry.label == label else entry.model_copy(update={"label": label})
            for entry, label in zip(entries, labels, strict=True)
        )

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_mistakes(
            itertools.chain(
                self._wrong_clock(),
                self._wrong_workload(),
                self._wrong_schemes(),
                self._wrong_collectives(),
                self._wrong_statistics(),
            )
        )
        return self

    def _wrong_clock(self) -> Iterator[Mistake]:
        measured = self.cluster.compute.measured
        if self.cluster.compute.time == 0 and self.stop.max_iterations is None:
            text = "0 s needs stop.max_iterations too, or the clock may stand still for ever"
            yield Mistake(("cluster", "compute", "time"), text)
        elif self.cluster.compute.speed is not None and self.workload.layer_profile is None:
            text = (
                "needs workload.layer_profile, whose operations it divides; add it, for example 'resnet-50'"
            )
            yield Mistake(("cluster", "compute", "speed"), text)
        elif measured is not None and not measured.known_at(self.workload.batch_size):
            text = (
                f"one batch size ({measured.batch_sizes[0]}) tells nothing about another "
                f"({self.workload.batch_size}); measure at two or more, or write 'measured' alone"
            )
            yield Mistake(("cluster", "compute", "measured"), text)

    def _wrong_workload(self) -> Iterator[Mistake]:
        target, name = self.stop.target, self.workload.task
        if self.workload.timing_only:
            if target is not None:
                text = "nothing is trained (timing_only); use max_time or max_iterations"
                yield Mistake(("stop", "target"), text)
            return
        try:
            task = find_task(name)
            facts = task.facts(self.workload.options, self.seed)
        except InputError as error:
            yield Mistake(("workload", "task"), str(error))
            return
        workers, examples, kind = self.cluster.workers, facts.num_examples, self.workload.partition.kind
        if workers > examples:
            text = f"{workers} workers cannot share {examples} training examples; use at most {examples}"
            yield Mistake(("cluster", "workers"), text)
        if kind in ("dirichlet", "by_label") and not facts.labelled:
            text = f"'{kind}' needs examples with classes, which '{name}' has not; use iid"
            yield Mistake(("workload", "partition", "kind"), text)
        if kind == "by_source" and facts.sources < workers:
            has = f"{facts.sources} sources" if facts.sources else "examples of no known source"
            text = f"'{name}' has {has}; by_source needs one at least for each of {workers} workers; use iid"
            yield Mistake(("workload", "partition", "kind"), text)
        if target is not None and target.metric not in facts.metrics:
            hint = did_you_mean(target.metric, facts.metrics)
            text = f"task '{name}' has no metric '{target.metric}'; {hint}"
            yield Mistake(("stop", "target", "metric"), text)
        elif target is not None and (text := _wrong_value(target, *task.range_of(target.metric))):
            yield Mistake(("stop", "target", "value"), text)

    def _wrong_collectives(self) -> Iterator[Mistake]:
        """Try the user's own algorithm; any number of bytes will do."""
        name, transport = self.collectives.all_reduce, TRANSPORTS[self.cluster.network.transport]
        if name != AUTO_ALGORITHM and not is_import_path(name) and name not in transport.all_reduce:
            hint = did_you_mean(name, (AUTO_ALGORITHM, *transport.all_reduce))
            text = f"{quote(name)} is nothing that transport '{transport.name}' can use; {hint}"
            yield Mistake(("collectives", "all_reduce"), text)
        elif name == "hierarchical":
            network = build_network(self.cluster.network, self.cluster.workers)
            if len(set(network.site_of)) < 2:
                text = "'hierarchical' needs two sites or more; use halving_doubling"
                yield Mistake(("collectives", "all_reduce"), text)
        elif is_import_path(name):
            try:
                all_reduce_named(name)(self.cluster.workers, 2**20)
            except InputError as error:
                yield Mistake(("collectives", "all_reduce"), str(error))

    def _wrong_statistics(self) -> Iterator[Mistake]:
        if isinstance(self.repeats, AutoRepeats) and self.stop.target is None:
            text = "auto narrows ratios of time to target; add stop.target, or give a number"
            yield Mistake(("repeats",), text)
        if self.tune is not None and self.workload.timing_only:
            yield Mistake(("tune",), "nothing is trained (timing_only), so nothing can be tuned")
        elif self.tune is not None:
            for key, values in self.tune.grid.items():
                for (index, value), entry in itertools.product(enumerate(values), self.schemes):
                    try:
                        with_values(entry, self.workload.optimizer, {key: value})
                    except InputError as error:
                        yield Mistake(("tune", key, index), str(error))

    def _wrong_schemes(self) -> Iterator[Mistake]:
        scored = scored_on(self.evaluate.on, self.stop.target.on if self.stop.target else None)
        for number, entry in enumerate(self.schemes):
            scheme = find_scheme(entry.name)
            try:
                scheme.check(entry.options, self.cluster.workers)
                if scheme.check_sites is not None:
                    network = build_network(self.cluster.network, self.cluster.workers)
                    scheme.check_sites(entry.options, len(set(network.site_of)))
                if self.workload.payload is not None and self.workload.layer_profile is None:
                    scheme.num_buckets(entry.options, self.workload.payload)
            except InputError as error:
                yield Mistake(("schemes", number, entry.name), str(error))
            if "averaged" in scored and scheme.publishes_averages(entry.options) is False:
                text = "publishes no average of all workers, which evaluate.on or stop.target.on asks for; "
                yield Mistake(("schemes", number, entry.name), f"{text}use mean there")
            if scheme.own_momentum and (entry.optimizer or self.workload.optimizer).momentum:
                text = f"has its own momentum, its optimizer must not have any; {_PLAIN}"
                yield Mistake(("schemes", number, entry.name), text)


def _wrong_value(target: TargetSettings, lowest: float, highest: float) -> str:
    """Why no model can have the target's score, and what to write; empty where one can.

    Args:
        target: the score to reach.
        lowest, highest: the range of its metric.
    """
    metric, value = target.metric, target.value
    if lowest <= value <= highest:
        return ""
    if highest < math.inf:
        instead = value / 100 if 10 <= value <= 100 else 0.95  # who writes 95 means per cent
        beyond = f"{metric} goes from {lowest:g} to {highest:g}, {value:g} is beyond"
        return f"{beyond}; write for example {instead:g}"
    return f"{metric} is never below {lowest:g}, so it cannot reach {value:g}; write for example 0.1"


def _labels(entries: Sequence[SchemeEntry]) -> list[str]:
    """A label for each entry: its own, else its name, with what sets it apart from others of that name."""
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
    return options | {f"optimizer.{key}" if key in options else key: v for key, v in optimizer.items()}


def _flat(data: Mapping[str, Any]) -> dict[str, Any]:
    """Nested mappings as one, with dotted keys."""
    out: dict[str, Any] = {}
    for key, value in data.items():
        inner = {f"{key}.{k}": v for k, v in _flat(value).items()} if isinstance(value, Mapping) else {}
        out.update(inner or {key: value})
    return out


def over_transport(scenario: Scenario, name: TransportName) -> Scenario:
    """The scenario as ``name`` would carry it; one with a profile keeps the profile's transport.

    An algorithm of the all-reduce that ``name`` does not have becomes ``auto``.
    """
    cluster, collectives = scenario.cluster, scenario.collectives
    if cluster.profile is not None or cluster.network.transport == name:
        return scenario
    network = cluster.network.model_copy(update={"transport": name})
    forced = collectives.all_reduce
    kept = is_import_path(forced) or forced in TRANSPORTS[name].all_reduce
    all_reduce = CollectiveSettings(all_reduce=forced if kept else AUTO_ALGORITHM)
    update = {"cluster": cluster.model_copy(update={"network": network}), "collectives": all_reduce}
    return scenario.model_copy(update=update)


def load(path: str | Path, changes: Sequence[str] = ()) -> Scenario:
    """Read a scenario file.

    Args:
        path: a YAML file in UTF-8, or the name of a ready scenario.
        changes: ``dotted.key=value`` each, as in ``--set``; see ``paceline.sim.scenario.overrides``.

    Raises:
        InputError: what is wrong, where and the nearest valid choice; a line for each of the first mistakes.
    """
    file = find_scenario(Path(path))
    return parse(yaml_file.read_text(file), str(file), changes, code=file.parent)


def parse(
    text: str, source: str = "scenario", changes: Sequence[str] = (), *, code: Path | None = None
) -> Scenario:
    """Read a scenario from YAML text, otherwise like ``load``.

    Args:
        text: YAML.
        source: what errors call it.
        changes: ``dotted.key=value`` each.
        code: the folder in which modules that it names are looked for before the working folder; None: the
            working folder alone, and what this process has loaded already.
    """
    document = yaml_file.parse(text, source)
    if document.value is None:
        raise InputError(f"{source}: is empty; a scenario needs name, workload, cluster, schemes and stop")
    document = overrides.apply(document, changes)
    try:
        with search_beside(code):
            return Scenario.model_validate(document.value, context={"folder": Path(source).parent})
    except ValidationError as error:
        mistakes = explain(error, Scenario, document.value)
    placed = sorted(((document.place(each.at), each) for each in mistakes), key=lambda pair: pair[0].line)
    raise InputError("\n".join(f"{place}: {each}" for place, each in placed[:MAX_MISTAKES]))


def dump(scenario: Scenario) -> str:
    """The resolved scenario as YAML, every default written out; ``parse`` reads an equal one."""
    return yaml_file.write(scenario.model_dump(mode="json"))


def json_schema() -> dict[str, Any]:
    """The JSON Schema of scenario files, for editors."""
    schema = Scenario.model_json_schema()
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def resolve_scenario(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    task: Callable[..., Any] | None = None,
    changes: Sequence[str] = (),
) -> Scenario:
    """The scenario that is meant.

    Args:
        scenario: one, the path of its file, the name of a ready one, or what would stand in a file.
        task: takes the place of its task, if given.
        changes: ``dotted.key=value`` each.

    Raises:
        InputError: what is wrong.
    """
    own = [] if task is None else [f"workload.task={user_code.import_path_of(task)}"]
    code = None if isinstance(scenario, Scenario) else script_folder()
    try:
        if isinstance(scenario, str | Path):
            return load(scenario, [*own, *changes])
        if isinstance(scenario, Scenario):
            if not own and not changes:
                return scenario
            data = scenario.model_dump(mode="json")
            for option in type(scenario.workload.options).model_fields if own else ():
                data["workload"].pop(option, None)
            scenario = data
        return parse(yaml_file.write(scenario), "scenario", [*own, *changes], code=code)
    except InputError as error:
        raise InputError(
            str(error).replace(f"--set {shorten(own[0])}", "task") if own else str(error)
        ) from error
