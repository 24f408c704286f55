"""Jobs of a scenario: one per scheme and repeat."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import torch
from pydantic import ValidationError

from ..compute.compute_settings import MeasuredCompute
from ..compute.timing import device_name, timer_of, typical_times_s
from ..config import yaml_file
from ..devices import keep_freed_memory, one_thread
from ..drivers.job import UNRECORDED, Job, JobCollectives, JobLayers, Recording, Scoring
from ..errors import InputError, KeyedError
from ..faults.outages import Churn, over_tcp
from ..network.build import build_network
from ..network.network import Network
from ..network.network_settings import NetworkSettings
from ..network.profile import Profile
from ..network.transport import AUTO_ALGORITHM, TRANSPORTS, TransferModel, nccl_hosts
from ..network.variation import changes_per_s
from ..program.encoding import message_bytes
from ..scenario.batches import batch_sizes, compute_model, speeds_of, weights_of
from ..scenario.entries import SchemeEntry, WorkloadEntry
from ..scenario.parts import EvaluateSettings, Stop, format_keep
from ..scenario.repeats import max_repeats
from ..scenario.schema import Scenario, dump
from ..schemes import find_scheme
from ..schemes.common.inside import possible_units
from ..traffic.selection import Algorithms
from ..training.gradients import SAMPLER_KEY, Method, TrainingProblem, cannot_batch, choose_method, on_drawn
from ..training.optimizer import NullOptimizer, make_optimizer
from ..training.scoring import Target
from ..workloads import find_task
from ..workloads.layers.layer import UNITS, equal_segments, forward_fractions, layer_segments, ready_fractions
from ..workloads.partition import Batches, shards
from ..workloads.sampler import Sampler
from ..workloads.workload import Task
from .memory import check_memory, check_task_memory, kept_rule

MAX_EVENTS = 1_000_000
"""Operations of a run above which ``events: auto`` keeps none."""
MAX_CHANGES = 1e8
"""Changes of links in a run that can be followed in minutes."""
_Chosen = str | dict[str, dict[str, str]] | None


def device_named(name: str) -> torch.device:
    """Device ``auto`` (CUDA where there is one), ``cpu`` or ``cuda``; ``InputError`` if there is none."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError("--device cuda: this machine has no CUDA device; use --device cpu")
    if name not in ("cpu", "cuda"):
        raise InputError(f"--device {name}: choose from auto, cpu, cuda")
    return torch.device(name)


def resolve(scenario: Scenario, device: torch.device) -> Scenario:
    """Resolve open choices: ``gradients: auto`` by a rule, ``compute: measured`` by measuring.

    The results, ``evaluate.keep`` and the all-reduce of ``auto`` are recorded, so that nothing else depends
    on the machine. A CPU is measured with one thread. Raises ``InputError`` if gradients cannot be batched as
    asked.
    """
    return resolve_each([scenario], device)[0]


def resolve_each(scenarios: Sequence[Scenario], device: torch.device) -> list[Scenario]:
    """``resolve`` several scenarios, faster if they differ in speeds alone."""
    measured = []
    for scenario in scenarios:
        check_memory(scenario)
        check_queue(scenario.cluster.network.queue)
        _check_changes(scenario)
        measured.append(_measured(scenario, device))
    return [_with_training(scenario, device) for scenario in _with_chosen_each(measured)]


def _with_training(scenario: Scenario, device: torch.device) -> Scenario:
    if scenario.workload.timing_only:
        return scenario
    problem = _problem(scenario, scenario.seed, "looped", device)
    _check_sampler(problem, scenario.workload)
    evaluate = scenario.evaluate
    left_open = {
        "examples": problem.workload.scored_examples(evaluate.examples),
        "keep": evaluate.keep or format_keep(kept_rule(scenario, problem.workload.start.nbytes)),
    }
    if (filled := evaluate.model_copy(update=left_open)) != evaluate:
        scenario = scenario.model_copy(update={"evaluate": filled})
    if scenario.gradients == "auto":
        return scenario.model_copy(update={"gradients": _method_for(problem)})
    if scenario.gradients == "batched" and (reason := cannot_batch(problem.workload, problem.batches)):
        raise InputError(f"gradients: {scenario.workload.task} cannot be batched, {reason}; use looped")
    return scenario


def check_queue(queue: str) -> None:
    """Refuse a queue that only the lab has: ``InputError``."""
    if queue == "token_bucket":
        raise InputError(
            "cluster.network.queue: token_bucket drops packets, which no model here predicts; run it with "
            "`paceline realrun --lab`, or write fair or fifo"
        )


def _check_changes(scenario: Scenario) -> None:
    """Refuse links that change so often that following them would have no end."""
    cluster, stop = scenario.cluster, scenario.stop
    if not cluster.network.variation or cluster.compute.time is None:
        return
    fewest_steps = scenario.evaluate.every if stop.target is not None else math.inf
    gradient_s = scenario.workload.accumulate * cluster.compute.time
    least_s = gradient_s * min(fewest_steps, stop.max_iterations or math.inf)
    least_s = min(least_s, math.inf if stop.max_time is None else stop.max_time)
    changes = changes_per_s(build_network(cluster.network, cluster.workers).links) * least_s
    if changes > MAX_CHANGES:
        raise KeyedError(
            ("cluster", "network", "variation"),
            f"the links change some {changes:.1g} times in a run, which are too many to follow (the most is "
            f"{MAX_CHANGES:g}); where periods are so short, a steady bandwidth, their mean, says the same",
        )


@lru_cache(maxsize=8)
def _method_for(problem: TrainingProblem) -> Method:
    """Method of ``gradients: auto``; scenarios that differ in the network alone share the problem."""
    return choose_method(problem.workload, problem.batches, len(problem.batches.shards))


def with_chosen(scenario: Scenario, entries: Sequence[SchemeEntry]) -> Scenario:
    """Fill in the choices of ``auto`` for schemes; a resolved scenario changed since may have old names."""
    return _with_chosen_each([scenario], entries)[0]


def _with_chosen_each(
    scenarios: Sequence[Scenario], entries: Sequence[SchemeEntry] | None = None
) -> list[Scenario]:
    """``with_chosen``, for the schemes of each unless ``entries`` are given."""
    undecided = [_with_names(scenario, None) for scenario in scenarios]
    names: list[dict[str, dict[str, str]]] = [{} for _ in scenarios]
    left: list[tuple[dict[str, str], Job, tuple[str | None, ...]]] = []
    for scenario, own in zip(undecided, names, strict=True):
        by_price = TRANSPORTS[scenario.cluster.network.transport].by_price
        for entry in scenario.schemes if entries is None else entries:
            job = clock_only(prepare(scenario, entry, scenario.seed))
            units, taken = units_to_encode(scenario, job), own.setdefault(entry.label, {})
            if (by_price and job.scheme.collectives(job.options)) or any(units):
                left.append((taken, job, units))
    if left:
        from .choice import choose_all

        for (taken, *_), chosen in zip(left, choose_all([each[1:] for each in left]), strict=True):
            taken.update(chosen)
    named = map(_library_named, undecided, names)
    return [_with_names(scenario, *each) for scenario, each in zip(scenarios, named, strict=True)]


def _library_named(undecided: Scenario, names: dict[str, dict[str, str]]) -> tuple[_Chosen, str | None]:
    """The names to record, and what they assume; a library's choice for a model stands for all schemes."""
    chosen = assumed = None
    by_price = TRANSPORTS[undecided.cluster.network.transport].by_price
    if not by_price and undecided.collectives.all_reduce == AUTO_ALGORITHM:
        job = prepare(undecided, undecided.schemes[0], undecided.seed)
        model_bytes = message_bytes(job.start, job.bytes_per_parameter)
        members = tuple(range(job.workers))
        chosen = job.choice.name_of_all_reduce(members, model_bytes)
        assumed = job.choice.assumed(members, model_bytes)
        names = {label: each | {"all_reduce": chosen} for label, each in names.items() if any(names.values())}
    return {label: each for label, each in names.items() if each} or chosen, assumed


def _with_names(scenario: Scenario, chosen: _Chosen, assumed: str | None = None) -> Scenario:
    update = {"chosen": chosen, "assumed": assumed}
    collectives = scenario.collectives.model_copy(update=update)
    if collectives == scenario.collectives:
        return scenario
    return scenario.model_copy(update={"collectives": collectives})


def with_units(scenario: Scenario) -> Scenario:
    """Fill in the choices on which models depend (whose values are encoded), for real runs."""
    for entry in scenario.schemes:
        if any(units_to_encode(scenario, prepare(scenario, entry, scenario.seed))):
            return with_chosen(scenario, scenario.schemes)
    return scenario


def units_to_encode(scenario: Scenario, job: Job) -> tuple[str | None, ...]:
    """Choices for ``Job.sums_inside``; none where they make no difference to the job."""
    if not job.scheme.encodes(job.options) or job.scheme.inside(job.options) is not None:
        return ()
    if scenario.collectives.inside != "auto":
        return (job.collectives.sums_inside,)
    return (None, *possible_units(job.transfer.network))


def resolved_in(text: str, requested: Scenario) -> Scenario | None:
    """Apply the choices in the text of a resolved scenario to ``requested``; None for another scenario.

    Nothing else is taken: the text stands in a result folder, which may be a stranger's and supplies no code.
    """
    try:
        document = yaml_file.parse(text, "scenario").value
        method, compute = document["gradients"], document["cluster"]["compute"]
        resolved, wanted = requested, requested.cluster.compute.measured
        if wanted is not None and not wanted.times:
            resolved = _with_measured(resolved, MeasuredCompute.model_validate(compute["measured"]))
        resolved = with_chosen(resolved, resolved.schemes)  # which follows from the scenario alone
        if requested.gradients == "auto" and method in ("batched", "looped"):
            resolved = resolved.model_copy(update={"gradients": method})
        written = requested.evaluate.model_dump(mode="json")
        chosen = {key: document["evaluate"].get(key) for key in ("keep", "examples") if key not in written}
        evaluate = EvaluateSettings.model_validate(written | chosen)
        resolved = resolved.model_copy(update={"evaluate": evaluate})
    except (InputError, ValidationError, LookupError, TypeError, AttributeError):
        return None
    return resolved if dump(resolved) == text else None


def read_resolved(text: str, requested: Scenario) -> Scenario:
    """``resolved_in`` of a text written for ``requested``; ``InputError`` if, written out, it is too long."""
    resolved = resolved_in(text, requested)
    if resolved is None:
        yaml_file.parse(text, "the scenario, with the files that it names")
        raise RuntimeError("a resolved scenario does not read as it was written")
    return resolved


def measure_gradients_s(
    scenario: Scenario, batch_sizes: Sequence[int], device: torch.device
) -> tuple[float, ...]:
    """Time one gradient of one worker at each batch size on this device, with one thread on a CPU."""
    problem = _problem(scenario, scenario.seed, "looped", device)
    numbers = itertools.count()

    def gradient_of(batch_size: int) -> Callable[[], object]:
        # Separate batches: those of the runs are kept, and have another size.
        batches = replace(problem.batches, batch_size=batch_size, sizes=())
        sized = replace(problem, batches=batches, accumulate=1)
        return lambda: sized.gradient(0, next(numbers), sized.workload.start)

    runs = [gradient_of(batch_size) for batch_size in batch_sizes]
    with one_thread():
        return tuple(typical_times_s(runs, timer_of(device)))


def _measured(scenario: Scenario, device: torch.device) -> Scenario:
    measured = scenario.cluster.compute.measured
    if measured is None or measured.times:
        return scenario
    if scenario.workload.timing_only:
        raise InputError("cluster.compute: nothing is trained (timing_only), so there is nothing to measure")
    sizes = measured.batch_sizes or tuple(sorted({*_sizes(scenario, scenario.seed)}))
    times = measure_gradients_s(scenario, sizes, device)
    update = {"batch_sizes": sizes, "times": times, "device": device_name(device)}
    return _with_measured(scenario, measured.model_copy(update=update))


def _with_measured(scenario: Scenario, measured: MeasuredCompute) -> Scenario:
    compute = scenario.cluster.compute.model_copy(update={"measured": measured})
    return scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"compute": compute})})


def seeds_of(scenario: Scenario) -> range:
    """Seed of every possible repeat; all schemes share them."""
    return range(scenario.seed, scenario.seed + max_repeats(scenario.repeats))


def prepare(scenario: Scenario, entry: SchemeEntry, seed: int, device: torch.device | None = None) -> Job:
    """Prepare the job of one scheme under one seed.

    ``scenario.gradients`` should be resolved; ``auto`` counts as ``looped``.
    """
    device = device or torch.device("cpu")
    workload, cluster, stop = scenario.workload, scenario.cluster, scenario.stop
    chosen = scenario.collectives.chosen
    names = chosen.get(entry.label, {}) if isinstance(chosen, dict) else {}
    wanted = scenario.collectives.inside
    inside: str = names.get("inside", "workers") if wanted == "auto" else wanted
    transport, share = TRANSPORTS[cluster.network.transport], cluster.network.averaging
    share = transport.averaging_share if share is None else share
    task = find_task(workload.task)
    network = build_network(cluster.network, cluster.workers)
    scheme = find_scheme(entry.name)
    built = None if workload.timing_only else _trained(scenario, seed, device)
    if built is not None and (drawn := built.batches.sizes):
        own, models = weights_of(drawn, entry, network)
        built = replace(built, gradient_weights=own, model_weights=models)
    priced = scenario.priced
    problem = built if priced is None else None
    buffers = built.workload.num_buffers if built else 0
    profile = workload.layer_profile
    standing = workload.model_bytes  # for another model
    buckets = 0 if standing is None or profile else scheme.num_buckets(entry.options, standing)
    parts = scheme.parts(entry.options)
    members = cluster.workers // scheme.units(entry.options, network)
    length = max(1, buckets, parts) * members if profile is None else UNITS
    start = built.workload.start if built else torch.zeros(length)
    keep_freed_memory(start.nbytes * cluster.workers)
    _check_pieces(scenario, entry, parts, buckets, start.numel())
    layers = _layers(workload, built, start.numel(), buckets)
    rule = make_optimizer(entry.optimizer or workload.optimizer, buffers, layers.tensors(start.numel()))
    model_bytes = standing if standing is not None else start.numel() * start.element_size()
    kept = kept_rule(scenario, start.nbytes)
    return Job(
        scheme=scheme,
        options=entry.options,
        label=entry.label,
        workers=cluster.workers,
        seed=seed,
        start=start,
        optimizer=rule if problem else NullOptimizer.like(rule, start),
        problem=problem,
        task=task if problem else None,
        bytes_per_parameter=model_bytes / start.numel(),
        compute=compute_model(workload, cluster, seed, built.sampler if built else None),
        transfer=transport.transfer(_nominal(cluster.network, network, seed)),
        collectives=JobCollectives(
            scenario.collectives.all_reduce,
            transport,
            Algorithms(names),
            sums_inside=None if inside == "workers" else inside,
        ),
        layers=layers,
        averaging_share=share if scheme.averages_gradients(entry.options) else 0.0,
        scoring=Scoring(
            every=scenario.evaluate.every,
            on=scenario.evaluate.on,
            time_s=scenario.evaluate.time or 0.0,
            keep=kept.apart,
            keep_share=kept.share,
            curve=None if priced is None else priced.points(entry.label, seed),
            gradient_noise=scenario.evaluate.gradient_noise,
            target=_target(stop, task) if priced is None else priced.target,
        ),
        churn=churn_of(scenario, entry, seed),
        max_iterations=stop.max_iterations,
        max_time_s=stop.max_time if stop.max_time is not None else math.inf,
        speeds=speeds_of(workload, cluster, seed, entry),
        recording=Recording(
            scenario.events != "none", MAX_EVENTS if scenario.events == "auto" else None, scenario.first_steps
        ),
    )


def churn_of(scenario: Scenario, entry: SchemeEntry, seed: int) -> Churn | None:
    """Faults and checkpoints of a scheme's run; None if they cost no time."""
    cluster, checkpoint = scenario.cluster, scenario.checkpoint
    policy = entry.on_fault or ("restart" if checkpoint else "wait")
    if not cluster.faults and (checkpoint is None or policy == "wait"):
        return None
    farthest_s = build_network(cluster.network, cluster.workers).farthest_s
    faults = tuple(over_tcp(each, farthest_s) if policy == "wait" else each for each in cluster.faults)
    units = tuple(map(cluster.units_of, faults))
    in_step, max_time = find_scheme(entry.name).in_step(entry.options), scenario.stop.max_time
    return Churn(faults, units, policy, checkpoint, seed, in_step, max_time or math.inf)


def _trained(scenario: Scenario, seed: int, device: torch.device) -> TrainingProblem:
    method: Method = "batched" if scenario.gradients == "batched" else "looped"
    problem = _problem(scenario, seed, method, device)
    return _with_sampler(on_drawn(problem, seed, scenario.evaluate.examples), scenario.workload)


def _target(stop: Stop, task: Task) -> Target | None:
    goal = stop.target
    return None if goal is None else Target(goal.metric, goal.value, goal.metric in task.falling, goal.on)


def _check_pieces(scenario: Scenario, entry: SchemeEntry, parts: int, buckets: int, length: int) -> None:
    """Raise ``InputError`` if a trained model of ``length`` parameters is too short for its pieces."""
    trained, profile = scenario.workload.task, scenario.workload.layer_profile
    if parts > length:
        raise InputError(
            f"schemes ({entry.label}): the model is cut into {parts} parts, but the one that is trained "
            f"({trained}) has only {length} parameters; write fewer"
        )
    if buckets > length:
        raise InputError(
            f"schemes ({entry.label}): the payload has {buckets} buckets, the model that is trained "
            f"({trained}) only {length} parameters; write a larger bucket"
        )
    if profile is not None and len(profile.layers) > length:
        raise InputError(
            f"workload.layer_profile: {len(profile.layers)} layers, and the model that is trained "
            f"({trained}) has only {length} parameters; train a larger one"
        )


def _nominal(settings: NetworkSettings, network: Network, seed: int) -> TransferModel:
    return TransferModel(
        network=network,
        sharing=settings.sharing,
        overhead_s=settings.overhead,
        announcement=settings.announcement,
        connect_s=settings.connect,
        seed=seed,
        queue=settings.queue,
        tcp=settings.tcp,
        nccl=nccl_hosts(settings, network),
    )


def _layers(workload: WorkloadEntry, problem: TrainingProblem | None, length: int, buckets: int) -> JobLayers:
    own = () if problem is None else problem.workload.parameters
    if problem is not None and workload.model_bytes is None:
        return JobLayers(problem.workload.segments, parameters=own)
    if workload.layer_profile is None:
        return JobLayers(equal_segments(length, buckets), parameters=own)
    layers = workload.layer_profile.layers
    return JobLayers(layer_segments(length, layers), ready_fractions(layers), forward_fractions(layers), own)


def over_profile(job: Job, profile: Profile | None) -> Job:
    """``job`` with the factors and transport of a profile, if there is one."""
    if profile is None:
        return job
    transport = TRANSPORTS[profile.hosts.transport]
    of = job.collectives
    known = of.transport is transport and of.all_reduce in transport.all_reduces
    all_reduce = of.all_reduce if known else AUTO_ALGORITHM
    job = job.over(profile.transfer(job.transfer))
    return replace(job, collectives=replace(job.collectives, transport=transport, all_reduce=all_reduce))


def clock_only(job: Job) -> Job:
    """``job`` without training, target, limit of time and events: only its steps' costs are left."""
    return replace(
        job, problem=None, task=None, scoring=replace(job.scoring, curve=None, target=None),
        optimizer=NullOptimizer.like(job.optimizer, job.start), recording=UNRECORDED, max_time_s=math.inf,
    )  # fmt: skip


def _sizes(scenario: Scenario, seed: int) -> tuple[int, ...]:
    return batch_sizes(scenario.workload, scenario.cluster, seed)


def _problem(scenario: Scenario, seed: int, method: Method, device: torch.device) -> TrainingProblem:
    """Workload of one seed, spread over its workers; all schemes share it."""
    task, sizes = find_task(scenario.workload.task), _sizes(scenario, seed)
    workload = scenario.workload.model_copy(update={"batch_size": max(sizes)})  # which can be hashed
    return _built(task, workload, sizes, seed, method, device)


def _with_sampler(problem: TrainingProblem, workload: WorkloadEntry) -> TrainingProblem:
    """Give the problem its own sampler, which remembers gradients, where the workload names one.

    Raises:
        KeyedError: the task's examples cannot be weighed one by one, or their smoothness is unknown.
    """
    if workload.sampler is None:
        return problem
    batches, smoothness = problem.batches, problem.workload.smoothness
    if workload.sampler.srg_plus is not None and smoothness is None:
        known = "logistic, quadratic and random-features do"
        text = f"task '{workload.task}' does not know the smoothness of its examples ({known}); use srg"
        raise KeyedError(SAMPLER_KEY, text)
    constants = None if smoothness is None else smoothness.double().cpu().numpy()
    sampler = Sampler(workload.sampler, batches.shards, batches.batch_size, batches.seed, constants)
    return replace(problem, sampler=sampler)


def _check_sampler(problem: TrainingProblem, workload: WorkloadEntry) -> None:
    """Raise ``KeyedError`` if a sampler is to weigh examples whose gradients torch cannot compute singly."""
    try:
        if workload.sampler is not None:
            _with_sampler(problem, workload).gradient(0, 0, problem.workload.start)
    except (RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())[:120]
        raise KeyedError(
            SAMPLER_KEY, f"task '{workload.task}' cannot weigh examples one by one: {why}"
        ) from None


@lru_cache(maxsize=8)
def _built(
    task: Task,
    workload: WorkloadEntry,
    sizes: tuple[int, ...],
    seed: int,
    method: Method,
    device: torch.device,
) -> TrainingProblem:
    # The task is a part of the key: a user's function may be defined anew under its name.
    check_task_memory(workload, sizes, seed)
    with one_thread():
        built = task.build(workload.options, seed).to(device)
    labels, sources = (None if t is None else t.cpu().numpy() for t in (built.labels, built.sources))
    parts = shards(workload.partition, len(built.inputs), labels, len(sizes), seed, sources)
    drawn = workload.drawn_examples(sizes)
    uneven = drawn if len(set(drawn)) > 1 else ()
    batches = Batches(parts, max(drawn), seed, workload.replacement, uneven)
    return TrainingProblem(built, batches, method, accumulate=workload.drawn_batches)
