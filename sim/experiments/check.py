"""What a scenario means before it is run: its cluster and routes, what a step costs, how long it will take.

A step is followed on the clock alone, for a few steps of the scheme's own code, on three networks: one that
costs nothing, one with latencies only, and the nominal one. The differences are the latency term and the
bandwidth term; for an all-reduce by a ring of n equal workers, with S bytes, latency L and bandwidth B, they
are 2 (n - 1) L and 2 (n - 1) S / (n B). Whatever is random counts with its mean, or not at all, and in a
second pass as it is.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from dataclasses import dataclass, replace
from typing import Any, Final

import torch

from ..compute.measure import timer_of
from ..compute.model import ComputeModel
from ..compute.settings import Straggler
from ..devices import one_thread
from ..drivers.job import Job
from ..errors import RunError
from ..network.network import Network, Route
from ..records.run import Run
from ..scenario.entries import SchemeEntry
from ..scenario.repeats import max_repeats
from ..scenario.schema import Scenario
from ..training.scoring import score_models
from .prepare import clock_only, prepare, resolve
from .simulate import simulate_job

PROBED_STEPS: Final = (1, 12, 60, 240)
"""Numbers of steps to try: the most that fit into ``PATIENCE_S`` count; 240 is a multiple of most periods."""
PATIENCE_S: Final = 0.5
"""Seconds on this machine that following one scheme once may take."""


@dataclass(frozen=True)
class StepCost:
    """What a step of one scheme costs.

    Attributes:
        label: of the scheme.
        steps: of how many first steps this is the mean.
        compute_s, latency_s, bandwidth_s: they add up to a step without anything random.
        random_s: a step with everything that is random in the scenario; None where nothing is.
        bytes_per_worker: sent in a step, mean over the workers.
        clock_s: what the simulation of a step takes on this machine, without its gradients.
        problem: why nothing is known; empty where all is well.
    """

    label: str
    steps: int = 0
    compute_s: float = math.nan
    latency_s: float = math.nan
    bandwidth_s: float = math.nan
    random_s: float | None = None
    bytes_per_worker: float = math.nan
    clock_s: float = math.nan
    problem: str = ""

    @property
    def step_s(self) -> float:
        """A step without anything random."""
        return self.compute_s + self.latency_s + self.bandwidth_s


@dataclass(frozen=True)
class RouteKind:
    """Routes that cost the same.

    Attributes:
        source, destination: the sites that they join.
        pairs: how many ordered pairs of hosts have one.
        latency_s: one-way.
        bytes_per_s: nominal, of the slowest link or the cap on one connection; ``inf``: unlimited.
        hosts, links: of one of them.
    """

    source: str
    destination: str
    pairs: int
    latency_s: float
    bytes_per_s: float
    hosts: tuple[int, int]
    links: tuple[str, ...]


def step_cost(scenario: Scenario, entry: SchemeEntry) -> StepCost:
    """Follow a scheme on the clock alone; one that cannot do without values has a ``problem`` instead."""
    job = clock_only(prepare(scenario, entry, scenario.seed))
    network = job.transfer.network
    nominal = _nominal(network)
    steady = _with(replace(job, compute=_steady(job.compute, job.workers)), nominal)
    try:
        steps, whole, clock_s = _follow(steady)
        free = _unlimited(nominal, latency=False)
        compute_s = _per_step(_with(steady, free, overhead_s=0.0), steps)
        latency_s = _per_step(_with(steady, _unlimited(nominal, latency=True)), steps) - compute_s
        random = nominal != network or _varies(job.compute)
        random_s = _per_step(job, steps) if random else None
    except RunError as error:
        return StepCost(entry.label, problem=str(error))
    step_s = whole.wall_clock_s / whole.iterations
    return StepCost(
        label=entry.label,
        steps=steps,
        compute_s=compute_s,
        latency_s=latency_s,
        bandwidth_s=step_s - latency_s - compute_s,
        random_s=random_s,
        bytes_per_worker=whole.bytes_sent / whole.iterations / job.workers,
        clock_s=clock_s,
    )


def _follow(job: Job) -> tuple[int, Run, float]:
    """Run as many steps as ``PATIENCE_S`` allows: their number, the run, and seconds here per step."""
    done: tuple[int, Run, float] | None = None
    for steps in PROBED_STEPS:
        if done is not None and done[2] * steps > PATIENCE_S:
            break
        begin_s = time.perf_counter()
        run = _run(job, steps)
        done = steps, run, (time.perf_counter() - begin_s) / steps
    assert done is not None
    return done


def _run(job: Job, steps: int) -> Run:
    """Run the first steps of a job.

    Raises:
        RunError: they cannot be followed.
    """
    staying = replace(job.compute, stragglers=[each for each in job.compute.stragglers if not each.crash])
    run = simulate_job(replace(job, compute=staying, max_iterations=steps, every=steps))
    if run.status == "partial" or not run.iterations:
        raise RunError(run.message or "no worker came through a step")
    return run


def _per_step(job: Job, steps: int) -> float:
    run = _run(job, steps)
    return run.wall_clock_s / run.iterations


def _steady(model: ComputeModel, workers: int) -> ComputeModel:
    """Every computation takes its mean; only workers that are always slow are slow.

    Of the user's own function the mean over everybody's first gradients counts, for all workers.
    """
    compute = model.compute
    mean_s = compute.time
    if compute.trace is not None:
        mean_s = statistics.fmean(compute.trace.all_durations)
    elif compute.model is not None:
        undisturbed = ComputeModel(compute, (), model.seed)
        mean_s = sum(float(undisturbed.block_s(rank, 0).mean()) for rank in range(workers)) / workers
    always = [s for s in model.stragglers if _is_always(s)]
    update = {"time": mean_s, "jitter": None, "trace": None, "model": None}
    return ComputeModel(compute.model_copy(update=update), always, model.seed)


def _varies(model: ComputeModel) -> bool:
    compute = model.compute
    return (
        compute.jitter is not None
        or compute.trace is not None
        or compute.model is not None
        or not all(_is_always(straggler) for straggler in model.stragglers)
    )


def _is_always(straggler: Straggler) -> bool:
    return straggler.probability is None and straggler.markov is None and straggler.at is None


def _with(job: Job, network: Network, **changes: Any) -> Job:
    return replace(job, transfer=replace(job.transfer, network=network, **changes))


def _nominal(network: Network) -> Network:
    """Without jitter, and with every link at its nominal bandwidth."""
    return replace(network, jitter=None, links=tuple(replace(link, variation=None) for link in network.links))


def _unlimited(network: Network, latency: bool) -> Network:
    """``network`` without a link or cap that limits anything; with its latencies, or none."""
    routes = {
        (a, b): Route((), network.route(a, b).latency_s if latency else 0.0, math.inf)
        for a, b in itertools.permutations(range(network.num_hosts), 2)
    }
    return replace(network, links=(), routes=routes)


def route_kinds(network: Network) -> list[RouteKind]:
    """Group all routes: those of equal cost between the same sites together, in the order of the hosts."""
    alike: dict[tuple[int, int, float, float], list[tuple[int, int]]] = {}
    for a in range(network.num_hosts):
        for b in range(network.num_hosts):
            if a != b:
                route = network.route(a, b)
                widths = [network.links[link].bandwidth_bytes_per_s for link in route.links]
                key = (
                    network.site_of[a], network.site_of[b], route.latency_s,
                    min([route.per_flow_bytes_per_s, *widths]),
                )  # fmt: skip
                alike.setdefault(key, []).append((a, b))
    return [
        RouteKind(
            source=network.sites[source],
            destination=network.sites[destination],
            pairs=len(pairs),
            latency_s=latency_s,
            bytes_per_s=bandwidth,
            hosts=pairs[0],
            links=tuple(network.links[link].name for link in network.route(*pairs[0]).links),
        )
        for (source, destination, latency_s, bandwidth), pairs in alike.items()
    ]


@dataclass(frozen=True)
class Effort:
    """What the mathematics of a simulation takes on this machine, in seconds.

    Attributes:
        gradients_s: one gradient of every worker.
        score_s: one evaluation.
    """

    gradients_s: float
    score_s: float

    def of(self, scenario: Scenario, cost: StepCost, steps: float) -> float:
        """So many steps of one scheme."""
        return steps * (cost.clock_s + self.gradients_s + self.score_s / scenario.evaluate.every)


def measure_effort(scenario: Scenario, device: torch.device) -> Effort:
    """Time one round of gradients and one evaluation, after one of each that does not count."""
    job = prepare(scenario, scenario.schemes[0], scenario.seed, device)
    problem, task = job.problem, job.task
    if problem is None or task is None:
        return Effort(0.0, 0.0)
    ranks = list(range(job.workers))
    points = [job.start + 1e-3 * rank for rank in ranks]  # not equal: equal models are scored once
    timer = timer_of(device)
    with one_thread():
        rounds = [timer(lambda: problem.gradients(ranks, [0] * job.workers, points)) for _ in range(2)]
        scores = [timer(lambda: score_models(problem.workload, task, points, (job.on,))) for _ in range(2)]
    return Effort(rounds[-1], scores[-1])


def most_steps(scenario: Scenario, cost: StepCost) -> float:
    """How many steps a run has at most."""
    stop = scenario.stop
    steps = math.inf if stop.max_iterations is None else float(stop.max_iterations)
    step_s = cost.step_s if cost.random_s is None else cost.random_s
    if stop.max_time is not None and step_s > 0:
        steps = min(steps, math.ceil(stop.max_time / step_s))
    return steps


def check(scenario: Scenario, device: torch.device) -> dict[str, Any]:
    """Compute what ``paceline check`` shows, as plain values; times in seconds, None for what is unknown."""
    resolved = resolve(scenario, device)
    job = prepare(resolved, resolved.schemes[0], resolved.seed)
    network = job.transfer.network
    effort = measure_effort(resolved, device)
    costs = [step_cost(resolved, entry) for entry in resolved.schemes]
    compute = _steady(job.compute, job.workers)
    durations = [compute.duration_s(rank, 0) for rank in range(job.workers)]
    rows = [_row(resolved, cost, effort) for cost in costs]
    takes = [row["simulation_s_at_most"] for row in rows if row["problem"] is None]
    return {
        "scenario": resolved.name,
        "workers": resolved.cluster.workers,
        "sites": {name: network.site_of.count(number) for number, name in enumerate(network.sites)},
        "compute_s": {"fastest": min(durations), "slowest": max(durations)},
        "model_bytes": job.num_bytes(job.start),
        "links": [
            {"name": each.name, "bytes_per_s": each.bandwidth_bytes_per_s, "varies": bool(each.variation)}
            for each in network.links
        ],
        "routes": [
            {
                "from": kind.source,
                "to": kind.destination,
                "pairs": kind.pairs,
                "latency_s": kind.latency_s,
                "bytes_per_s": None if math.isinf(kind.bytes_per_s) else kind.bytes_per_s,
                "example": {"source": kind.hosts[0], "destination": kind.hosts[1], "links": list(kind.links)},
            }
            for kind in route_kinds(network)
        ],
        "schemes": rows,
        "repeats": max_repeats(resolved.repeats),
        "simulation_s_at_most": sum(takes),
    }


def _row(scenario: Scenario, cost: StepCost, effort: Effort) -> dict[str, Any]:
    if cost.problem:
        return {"label": cost.label, "problem": cost.problem}
    steps = most_steps(scenario, cost)
    return {
        "label": cost.label,
        "problem": None,
        "step_s": cost.step_s,
        "compute_s": cost.compute_s,
        "latency_s": cost.latency_s,
        "bandwidth_s": cost.bandwidth_s,
        "random_step_s": cost.random_s,
        "bytes_per_step": cost.bytes_per_worker,
        "mean_over_steps": cost.steps,
        "simulation_s_per_100_steps": effort.of(scenario, cost, 100),
        "steps_at_most": steps,
        "simulation_s_at_most": effort.of(scenario, cost, steps) * max_repeats(scenario.repeats),
    }
