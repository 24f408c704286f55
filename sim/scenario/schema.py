"""Scenario: what to train, on which cluster, with which schemes, until when.

``Scenario`` and its parts are the only place where keys and defaults are written down. ``load`` reads a YAML
file; ``dump`` writes the resolved scenario, which loads again and is equal.

A scheme is a name or ``{name: {options ..., label: ..., optimizer: ...}}``; a task's own options stand
in ``workload`` beside the common keys.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, field_validator, model_validator

from ..collectives.algorithm_registry import users_all_reduce
from ..config import yaml_file
from ..config.limits import MAX_NAME, MAX_SCHEMES, MAX_SEED
from ..config.problems import Mistake, explain, mistake, raise_mistakes
from ..config.settings import Settings
from ..config.user_code import call as user_code
from ..config.user_code.call import is_import_path
from ..config.user_code.code_files import script_folder, search_beside
from ..errors import InputError, did_you_mean, quote, shorten
from ..faults.fault_settings import Checkpoint
from ..network.build import build_network
from ..network.network_settings import TransportName
from ..network.transport import AUTO_ALGORITHM, TRANSPORTS
from ..records.run import On
from ..schemes import find_scheme
from ..schemes.common.inside import count_units
from ..schemes.scheme import Scheme
from ..training.curves.curve import conditions_of
from ..training.scoring import scored_on
from ..workloads import find_task
from . import overrides
from .batches import batch_sizes, check_weighed, wrong_sizes
from .device_memory import check_device_memory
from .entries import SchemeEntry, WorkloadEntry, labels_of, with_proxy
from .measured import Priced, price
from .parts import Cluster, CollectiveSettings, EvaluateSettings, Stop, TargetSettings, read_on
from .price import Price, fill_in
from .ranges import at_middle
from .ready import find_scenario
from .repeats import AutoRepeats, Repeats, max_repeats, read_auto
from .tuning_grid import Tune, with_values

MAX_MISTAKES: Final = 5
"""Mistakes in one error."""

_NAME: Final = re.compile(r"\w[\w.-]*")
_PLAIN: Final = "give the scheme an 'optimizer: {lr: ...}' of its own"
_FIRST: Final = re.compile(r"first +0*([1-9][0-9]{0,8}) +steps?")


def _check_name(value: str) -> str:
    if len(value) > MAX_NAME:
        raise mistake(f"has {len(value)} letters; it takes at most {MAX_NAME}")
    if not _NAME.fullmatch(value):
        raise mistake(f"{quote(value)} will not do as a name; use letters, digits, '-', '_' and '.'")
    return value


def _check_events(value: str) -> str:
    if match := _FIRST.fullmatch(value):
        return f"first {match[1]} steps"
    if value in ("all", "none", "auto"):
        return value
    raise mistake(f"unknown choice {quote(value)}; choose from: all, auto, none, first N steps")


class Scenario(Settings):
    """One question: which of these schemes is the fastest here?"""

    name: Annotated[str, AfterValidator(_check_name)] = Field(description="name of the results")
    seed: int = Field(
        default=0, ge=0, le=MAX_SEED, description="seed of the first repeat, shared by all schemes"
    )
    workload: WorkloadEntry = Field(description="training task")
    cluster: Cluster = Field(description="machines and network")
    evaluate: EvaluateSettings = Field(default=EvaluateSettings(), description="scoring of models")
    schemes: tuple[SchemeEntry, ...] = Field(
        min_length=1, max_length=MAX_SCHEMES, description="averaging schemes to compare"
    )
    stop: Stop = Field(description="end of a run: the first of these")
    repeats: Annotated[Repeats, BeforeValidator(read_auto)] = Field(
        default=1,
        description="runs of each scheme, one per seed: a number, or 'auto' with these defaults",
    )
    tune: Tune | None = Field(
        default=None, description="values tuned for each scheme before its runs, on other seeds"
    )
    checkpoint: Checkpoint | None = Field(
        default=None,
        description="checkpoints, from which schemes restart at a fault (default: none; they wait)",
    )
    price: Price | None = Field(
        default=None, description="prices of workers and of bytes between sites (default: no costs are shown)"
    )
    collectives: CollectiveSettings = Field(
        default=CollectiveSettings(), description="algorithms of collective operations"
    )
    events: Annotated[str, AfterValidator(_check_events)] = Field(
        default="auto",
        description="operations to record: all, none, 'first N steps', or auto (all below a million rows)",
    )
    gradients: Literal["auto", "batched", "looped"] = Field(
        default="auto",
        description="evaluation of the workers' gradients; auto: by model and number of workers",
    )

    @property
    def first_steps(self) -> int | None:
        """N where ``events`` is ``first N steps``, else None."""
        match = _FIRST.fullmatch(self.events)
        return int(match[1]) if match else None

    @property
    def priced(self) -> Priced | None:
        """The measured curves of its schemes, if it has any."""
        curves, labels = self.workload.curves, [entry.label for entry in self.schemes]
        if curves is None:
            return None
        return price(curves, labels, self.cluster.workers, self.evaluate.on, self.stop)

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, data: Any) -> Any:
        """Fill in prices of a table, the proxy, and ``evaluate.on`` as the default of ``stop.target.on``."""
        data = with_proxy(fill_in(data))
        match data:
            case {"evaluate": {"on": on}, "stop": {"target": Mapping() as target} as stop} if read_on(
                on
            ) in get_args(On):
                return {**data, "stop": {**stop, "target": {"on": on, **target}}}
        return data

    @field_validator("schemes", mode="after")
    @classmethod
    def _label(cls, entries: tuple[SchemeEntry, ...]) -> tuple[SchemeEntry, ...]:
        labels = labels_of(entries)
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
                self.price.wrong_places(self.cluster.network.sites or {}) if self.price else (),
                self._wrong_statistics(),
            )
        )
        return self

    def _wrong_clock(self) -> Iterator[Mistake]:
        measured, profile = self.cluster.compute.measured, self.workload.layer_profile
        sizes = batch_sizes(self.workload, self.cluster, self.seed)
        if self.cluster.compute.time == 0 and self.stop.max_iterations is None:
            text = "0 s needs stop.max_iterations too, or the clock may stand still for ever"
            yield Mistake(("cluster", "compute", "time"), text)
        elif self.cluster.compute.speed is not None and profile is None:
            text = (
                "needs workload.layer_profile, whose operations it divides; add it, for example 'resnet-50'"
            )
            yield Mistake(("cluster", "compute", "speed"), text)
        elif self.cluster.compute.speed is not None and profile is not None and profile.timed:
            text = (
                "divides operations, and the layers of workload.layer_profile have times; write compute.time"
            )
            yield Mistake(("cluster", "compute", "speed"), text)
        elif measured is not None and not all(map(measured.known_at, sizes)):
            other = next(size for size in sizes if not measured.known_at(size))
            text = (
                f"one batch size ({measured.batch_sizes[0]}) tells nothing about another "
                f"({other}); measure at two or more, or write 'measured' alone"
            )
            yield Mistake(("cluster", "compute", "measured"), text)

    def _wrong_workload(self) -> Iterator[Mistake]:
        target, name = self.stop.target, self.workload.task
        yield from wrong_sizes(
            self.workload.batch_size, self.cluster.workers, self.cluster.network.sites or {}
        )
        if (priced := self.priced) is not None:
            workload = self.workload.model_copy(update={"curves": None})
            here = conditions_of(self.model_copy(update={"workload": workload}).model_dump(mode="json"))
            seeds = range(self.seed, self.seed + max_repeats(self.repeats))
            runs = itertools.product(enumerate(here), seeds)
            problems = (
                Mistake(("schemes", number), text)
                for (number, label), seed in runs
                if (text := priced.problem(label, seed, here[label]))
            )
            undecided = [Mistake(("stop", "target", "metric"), text)] if (text := priced.undecided) else []
            yield from itertools.islice(itertools.chain(undecided, problems), 1)
        elif self.workload.timing_only and target is not None:
            text = "nothing is trained (timing_only); use max_time or max_iterations"
            yield Mistake(("stop", "target"), text)
        untrained = self.workload.timing_only or priced is not None
        if untrained and self.evaluate.gradient_noise is not None:
            text = "nothing is trained here, so there are no gradients to measure; leave it out"
            yield Mistake(("evaluate", "gradient_noise"), text)
        if self.workload.timing_only:
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
        if kind in ("dirichlet", "by_label") and not facts.labelled and facts.sources < 2:
            text = f"'{kind}' needs examples with classes or sources, which '{name}' has not; use iid"
            yield Mistake(("workload", "partition", "kind"), text)
        if kind == "by_source" and facts.sources < workers:
            has = f"{facts.sources} sources" if facts.sources else "examples of no known source"
            text = f"'{name}' has {has}; by_source needs one at least for each of {workers} workers; use iid"
            yield Mistake(("workload", "partition", "kind"), text)
        if self.workload.curves is None and target is not None:
            yield from _wrong_target(target, name, facts.metrics)

    def _wrong_collectives(self) -> Iterator[Mistake]:
        """Check the algorithms; a user's own is tried, for which any number of bytes will do."""
        name, transport = self.collectives.all_reduce, TRANSPORTS[self.cluster.network.transport]
        if name != AUTO_ALGORITHM and not is_import_path(name) and name not in transport.all_reduces:
            hint = did_you_mean(name, (AUTO_ALGORITHM, *transport.all_reduces))
            text = f"{quote(name)} is nothing that transport '{transport.name}' can use; {hint}"
            yield Mistake(("collectives", "all_reduce"), text)
        elif name == "hierarchical":
            network = build_network(self.cluster.network, self.cluster.workers)
            if len(set(network.site_of)) < 2 and not network.node_of:
                text = "'hierarchical' needs two sites, or hosts of several GPUs; use halving_doubling"
                yield Mistake(("collectives", "all_reduce"), text)
        elif is_import_path(name):
            try:
                users_all_reduce(name)(self.cluster.workers, 2**20)
            except InputError as error:
                yield Mistake(("collectives", "all_reduce"), str(error))
        if (inside := self.collectives.inside) in ("hosts", "sites"):
            try:
                count_units(inside, build_network(self.cluster.network, self.cluster.workers))
            except InputError as error:
                yield Mistake(("collectives", "inside"), str(error).removeprefix("inside: "))

    def _wrong_statistics(self) -> Iterator[Mistake]:
        if isinstance(self.repeats, AutoRepeats) and self.stop.target is None:
            text = "auto narrows ratios of time to target; add stop.target, or give a number"
            yield Mistake(("repeats",), text)
        if self.tune is not None and (self.workload.timing_only or self.workload.curves is not None):
            yield Mistake(("tune",), "nothing is trained here, so nothing can be tuned")
        elif self.tune is not None:
            for key, values in self.tune.grid.items():
                for (index, value), entry in itertools.product(enumerate(values), self.schemes):
                    try:
                        with_values(entry, self.workload.optimizer, {key: value})
                    except InputError as error:
                        yield Mistake(("tune", key, index), str(error))
                        break

    def _wrong_schemes(self) -> Iterator[Mistake]:
        scored = scored_on(self.evaluate.on, self.stop.target.on if self.stop.target else None)
        network = build_network(self.cluster.network, self.cluster.workers)
        for number, entry in enumerate(self.schemes):
            scheme = find_scheme(entry.name)
            try:
                scheme.check(entry.options, scheme.units(entry.options, network))
                if entry.on_fault == "skip" and any(
                    0 in unit for each in self.cluster.faults for unit in self.cluster.units_of(each)
                ):
                    raise InputError(
                        "with skip worker 0, which collects the averages, cannot fail: say in 'workers' "
                        "of cluster.faults who does"
                    )
                if entry.on_fault == "shrink" and not scheme.inside(entry.options):
                    scheme.check(entry.options, self.cluster.workers - 1)
                if scheme.check_network is not None:
                    scheme.check_network(entry.options, network)
                if self.workload.payload is not None and self.workload.layer_profile is None:
                    scheme.num_buckets(entry.options, self.workload.payload)
                if self.workload.uneven:
                    check_weighed(entry, network)
                check_device_memory(self.workload, self.cluster, entry, self.seed)
            except InputError as error:
                yield Mistake(("schemes", number, entry.name), str(error))
            if "averaged" in scored and scheme.publishes(entry.options) not in ("averaged", None):
                text = "publishes no average of all workers, which evaluate.on or stop.target.on asks for; "
                yield Mistake(("schemes", number, entry.name), f"{text}use published there")
            for text in _wrong_updates(scheme, entry, self.workload):
                yield Mistake(("schemes", number, entry.name), text)


def _wrong_updates(scheme: Scheme, entry: SchemeEntry, workload: WorkloadEntry) -> Iterator[str]:
    """What of an optimiser or of gradients does not go with a scheme."""
    optimizer = entry.optimizer or workload.optimizer
    if scheme.in_shards(entry.options) and (whole := optimizer.needs_whole):
        yield f"steps in shards, and {whole} needs the whole gradient; leave one of them out"
    if getattr(entry.options, "gradients", None) and workload.precision == "float32":
        yield (
            "reduces gradients in the precision of the model; leave 'gradients' out, or write 'precision: "
            "bf16' in workload"
        )
    if scheme.own_momentum and optimizer.momentum:
        yield f"has its own momentum, its optimizer must not have any; {_PLAIN}"


def _wrong_target(target: TargetSettings, task: str, metrics: Sequence[str]) -> Iterator[Mistake]:
    if target.metric not in metrics:
        text = f"task '{task}' has no metric '{target.metric}'; {did_you_mean(target.metric, metrics)}"
        yield Mistake(("stop", "target", "metric"), text)
    elif text := _wrong_value(target, *find_task(task).range_of(target.metric)):
        yield Mistake(("stop", "target", "value"), text)


def _wrong_value(target: TargetSettings, lowest: float, highest: float) -> str:
    """Reason why no score from ``lowest`` to ``highest`` reaches the target, and a remedy; "" if one does."""
    metric, value = target.metric, target.value
    if lowest <= value <= highest:
        return ""
    if highest < math.inf:
        instead = value / 100 if 10 <= value <= 100 else 0.95  # who writes 95 means per cent
        beyond = f"{metric} goes from {lowest:g} to {highest:g}, {value:g} is beyond"
        return f"{beyond}; write for example {instead:g}"
    return f"{metric} is never below {lowest:g}, so it cannot reach {value:g}; write for example 0.1"


def over_transport(scenario: Scenario, name: TransportName) -> Scenario:
    """Scenario over transport ``name``; one with a profile keeps the profile's transport.

    An all-reduce algorithm that ``name`` does not have becomes ``auto``. Of earlier choices only ``inside``
    stays (whose values are encoded), as models depend on it.
    """
    cluster, collectives = scenario.cluster, scenario.collectives
    if cluster.profile is not None or cluster.network.transport == name:
        return scenario
    network = cluster.network.model_copy(update={"transport": name})
    forced = collectives.all_reduce
    kept = is_import_path(forced) or forced in TRANSPORTS[name].all_reduces
    chosen = collectives.chosen if isinstance(collectives.chosen, dict) else {}
    units = {label: {"inside": each["inside"]} for label, each in chosen.items() if "inside" in each}
    algorithms = {"all_reduce": forced if kept else AUTO_ALGORITHM, "chosen": units or None}
    update = {
        "cluster": cluster.model_copy(update={"network": network}),
        "collectives": collectives.model_copy(update=algorithms),
    }
    return scenario.model_copy(update=update)


def load(path: str | Path, changes: Sequence[overrides.Change] = ()) -> Scenario:
    """Load a scenario: a YAML file in UTF-8 or a ready one's name, with ``dotted.key=value`` changes.
    ``InputError``: place and nearest valid choice of each of the first mistakes.
    """
    return next(load_each(path, [changes]))


def load_each(path: str | Path, settings: Iterable[Sequence[overrides.Change]]) -> Iterator[Scenario]:
    """Read a scenario file once; yield it with each list of changes. Raises as ``load``."""
    file = find_scenario(Path(path))
    yield from parse_each(yaml_file.read_text(file), str(file), settings, file.parent)


def parse(text: str, source: str = "scenario", changes: Sequence[overrides.Change] = ()) -> Scenario:
    """Parse YAML text as ``load`` does; ``source`` names it in errors.

    Code is searched for in the working folder and loaded modules alone.
    """
    return next(parse_each(text, source, [changes]))


def parse_each(
    text: str, source: str, settings: Iterable[Sequence[overrides.Change]], code: Path | None = None
) -> Iterator[Scenario]:
    """Read YAML text once; the scenario with each list of changes. ``code``: folder. Raises as ``parse``."""
    document = yaml_file.parse(text, source)
    return (_validate(document, source, changes, code) for changes in settings)


def _validate(
    document: yaml_file.Document, source: str, changes: Sequence[overrides.Change], code: Path | None
) -> Scenario:
    """Apply ``changes`` and validate a document; arguments and errors are those of ``parse``."""
    if document.value is None:
        raise InputError(f"{source}: is empty; a scenario needs name, workload, cluster, schemes and stop")
    document = at_middle(overrides.apply(document, changes))
    try:
        with search_beside(code):
            return Scenario.model_validate(document.value, context={"folder": Path(source).parent})
    except ValidationError as error:
        mistakes = explain(error, Scenario, document.value)
    placed = sorted(((document.place(each.at), each) for each in mistakes), key=lambda pair: pair[0].line)
    raise InputError("\n".join(f"{place}: {each}" for place, each in placed[:MAX_MISTAKES]))


def dump(scenario: Scenario) -> str:
    """Resolved scenario as YAML, every default written out; ``parse`` reads an equal one."""
    return yaml_file.write(scenario.model_dump(mode="json"))


def _write(scenario: Any, at: str = "scenario") -> str:
    try:
        return yaml_file.write(scenario)
    except InputError as error:
        inner = scenario.items() if isinstance(scenario, Mapping) and "nested" not in str(error) else ()
        for key, value in inner:
            _write(value, f"{at}.{key}")
        raise InputError(f"{at}: {error}") from None


def resolve_scenario(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    task: Callable[..., Any] | None = None,
    changes: Sequence[overrides.Change] = (),
    schemes: Sequence[Any] | None = None,
) -> Scenario:
    """Resolve an object, mapping, path or name to a scenario, with ``changes``, and its ``task`` and
    ``schemes`` replaced if given. Raises ``InputError``.
    """
    return next(resolve_each(scenario, task, [changes], schemes))


def resolve_each(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    task: Callable[..., Any] | None,
    settings: Iterable[Sequence[overrides.Change]],
    schemes: Sequence[Any] | None = None,
) -> Iterator[Scenario]:
    """Resolve a scenario once, and yield it with each list of changes. Raises as ``load_each``."""
    own = {} if task is None else {"task": f"workload.task={user_code.import_path_of(task)}"}
    if schemes is not None:
        own["schemes"] = f"schemes={user_code.with_import_paths(schemes)}"
    all_changes = ([*own.values(), *changes] for changes in settings)
    try:
        if isinstance(scenario, str | Path):
            yield from load_each(scenario, all_changes)
        elif isinstance(scenario, Scenario):
            yield from _change_each(scenario, task is not None, all_changes)
        else:
            yield from parse_each(_write(scenario), "scenario", all_changes, script_folder())
    except InputError as error:
        message = str(error)
        for argument, change in own.items():
            message = message.replace(f"--set {shorten(change)}", argument)
        raise InputError(message) from error


def _change_each(
    scenario: Scenario, with_other_task: bool, settings: Iterable[Sequence[overrides.Change]]
) -> Iterator[Scenario]:
    """``scenario`` with each list of changes; options of its task do not carry over to another task."""
    document = None
    for changes in settings:
        if not changes:
            yield scenario
            continue
        if document is None:
            written = scenario.model_dump(mode="json")
            for option in type(scenario.workload.options).model_fields if with_other_task else ():
                written["workload"].pop(option, None)
            document = yaml_file.parse(_write(written), "scenario")
        yield _validate(document, "scenario", changes, None)
