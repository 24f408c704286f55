"""Preview of a scenario: its cluster and routes, the cost of a step, the time to simulate it.

The time to simulate it is an estimate from measurements on this machine; all else is computed.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from ...compute.model import steady_compute
from ...config.tracking import track
from ...devices import one_thread
from ...drivers.job import Job
from ...network.network import Network, rate_of
from ...network.remarks import remarks
from ...program.averaging import mean_model
from ...program.encoding import message_bytes
from ...records.scenario_facts import read_facts
from ...scenario.device_memory import device_memory
from ...scenario.repeats import max_repeats
from ...scenario.schema import Scenario, dump
from ..doubts import doubts
from ..jobs import MIN_WORK_S, num_cores
from ..prepare import over_profile, prepare, resolve
from ..simulate import engine_of
from .step_cost import StepCost, clock_of, encodes, step_cost, training_s

TRIAL_S: Final = 3.0
"""Limit in processor seconds of the trial of synchronous SGD."""


def route_kinds(network: Network) -> list[dict[str, Any]]:
    """Group routes of equal cost between the same sites, in the order of the hosts.

    A row has the number of ordered pairs of hosts and one of them as an example; a rate of None has no limit.
    """
    alike: dict[tuple[int, int, float, float], tuple[tuple[int, int], int]] = {}
    for (a, b), pairs in _pairs_of_hosts(network):
        route = network.route(a, b)
        key = network.site_of[a], network.site_of[b], route.latency_s, rate_of(network, route)
        first, before = alike.get(key, ((a, b), 0))
        alike[key] = first, before + pairs
    return [
        {
            "from": network.sites[source],
            "to": network.sites[destination],
            "pairs": pairs,
            "latency_s": latency_s,
            "bytes_per_s": None if math.isinf(bandwidth) else bandwidth,
            "example": {
                "source": a,
                "destination": b,
                "links": [network.links[link].name for link in network.route(a, b).links],
            },
        }
        for (source, destination, latency_s, bandwidth), ((a, b), pairs) in alike.items()
    ]


def _pairs_of_hosts(network: Network) -> list[tuple[tuple[int, int], int]]:
    """Ordered pairs of hosts, in order, each with the number of pairs like it, itself included."""
    hosts = range(network.num_hosts)
    if network.routes:
        return [(pair, 1) for pair in itertools.permutations(hosts, 2)]
    kinds: dict[tuple[int, float | None, float | None], list[int]] = {}
    for host in hosts:
        ways = (network.up.get(host), network.down.get(host))
        up, down = (None if link is None else network.links[link].bandwidth_bytes_per_s for link in ways)
        kinds.setdefault((network.site_of[host], up, down), []).append(host)
    nodes = network.nodes
    pairs = []
    for of_source, of_destination in itertools.product(kinds.values(), repeat=2):
        itself = len(of_source) if of_source is of_destination else 0
        in_node = Counter(nodes[host] for host in of_destination)
        together = sum(in_node[nodes[host]] for host in of_source)
        numbers = {True: together - itself, False: len(of_source) * len(of_destination) - together}
        for inside, number in numbers.items():
            if number:
                both = ((a, b) for a in of_source for b in of_destination if a != b)
                first = next(pair for pair in both if (nodes[pair[0]] == nodes[pair[1]]) == inside)
                pairs.append((first, number))
    return sorted(pairs)


@dataclass(frozen=True)
class Effort:
    """Measured seconds of a simulation's mathematics on this machine without other load.

    Attributes:
        training_s: by label: what training adds to a step of the clock alone.
        score_s: one scoring of ``evaluate.on`` and ``stop.target.on``.
        steps_to_target: steps in which a trial of synchronous SGD met the target; infinite where there is no
            target or the limits come first, None where the trial did not get there within ``TRIAL_S``.
    """

    training_s: Mapping[str, float] = field(default_factory=dict)
    score_s: float = 0.0
    steps_to_target: float | None = math.inf

    def of(self, scenario: Scenario, cost: StepCost, steps: float) -> float:
        """Seconds for ``steps`` of one scheme."""
        training_s = self.training_s.get(cost.label, 0.0)
        return steps * (cost.clock_s + training_s + self.score_s / scenario.evaluate.every)


def measure_effort(scenario: Scenario, device: torch.device, known: Collection[str]) -> Effort:
    """Time training of the schemes with ``known`` labels, and scoring; try to meet the target."""
    job = prepare(scenario, scenario.schemes[0], scenario.seed, device)
    problem = job.problem
    if problem is None:
        return Effort()
    entries = [entry for entry in scenario.schemes if entry.label in known]
    each_s = {
        entry.label: training_s(scenario, entry, device) for entry in track("training of scheme", entries)
    }
    points = [job.start + 1e-3 * rank for rank in range(job.workers)]
    clock = clock_of(device)
    marks_s = [clock()]
    for measured in (problem.workload.score, problem.workload.score, lambda x: mean_model(points)):
        measured(job.start)
        marks_s.append(clock())
    model_s, mean_s = marks_s[2] - marks_s[1], marks_s[3] - marks_s[2]
    return Effort(each_s, mean_s + models_scored(scenario) * model_s, _try_to_meet_target(job))


def models_scored(scenario: Scenario) -> int:
    """Number of models in one scoring: each worker's where its own scores are wanted, else one."""
    target = scenario.stop.target
    wanted = {scenario.evaluate.on} | ({target.on} if target is not None else set())
    of_each = not wanted.isdisjoint({"workers", "worst", "leader"})
    return len(wanted - {"workers", "worst", "leader"}) + scenario.cluster.workers * of_each


def _try_to_meet_target(job: Job) -> float | None:
    """Steps of synchronous SGD, without a clock, until the target is met, as in ``Effort``."""
    problem, target = job.problem, job.target
    if problem is None or target is None:
        return math.inf
    x, state = job.start, job.optimizer.init(job.start)
    ranks = list(range(job.workers))
    begin_s = time.process_time()
    for step in itertools.count(1):
        each = problem.gradients(ranks, [step - 1] * job.workers, [x] * job.workers)
        x, state = job.optimizer.update(x, mean_model([gradient.value for gradient in each]), state)
        if step % job.every == 0:
            scores = problem.workload.score(x)
            reached = target.reached(scores[target.metric])
            if reached or not math.isfinite(scores["train_loss"]):
                return step if reached else math.inf
        if step == job.max_iterations or time.process_time() - begin_s > TRIAL_S:
            return math.inf if step == job.max_iterations else None
    return None


def most_steps(scenario: Scenario, cost: StepCost) -> float:
    """Largest possible number of steps of a run."""
    stop = scenario.stop
    steps = math.inf if stop.max_iterations is None else float(stop.max_iterations)
    if stop.max_time is not None and cost.step_s > 0:
        steps = min(steps, math.ceil(stop.max_time / cost.step_s))
    return steps


def check(scenario: Scenario, device: torch.device, begin_s: float | None = None) -> dict[str, Any]:
    """Compute the output of ``paceline check``, as plain values; times in seconds, None for unknown ones.

    ``begin_s``: reading of ``time.process_time`` from which on the preparation counts (default: now).
    """
    begin_s = time.process_time() if begin_s is None else begin_s
    import_s = time.process_time() - begin_s  # by each process of parallel runs, too
    resolved = resolve(scenario, device)
    jobs = [prepare(resolved, entry, resolved.seed) for entry in resolved.schemes]
    prepare_s = time.process_time() - begin_s
    job, network = jobs[0], jobs[0].transfer.network
    with one_thread():
        engines = [engine_of(over_profile(each, resolved.cluster.profile)) for each in jobs]
        costs = [step_cost(resolved, entry) for entry in track("step of scheme", resolved.schemes)]
        effort = measure_effort(resolved, device, [cost.label for cost in costs if not cost.problem])
    compute = steady_compute(job.compute, job.workers)
    durations = [compute.duration_s(rank, 0) for rank in range(job.workers)]
    rows = [
        {
            **_row(resolved, cost, effort),
            "engine": engine,
            "engine_reason": reason or None,
            "encodes": encodes(resolved, entry),
            "memory": device_memory(resolved.workload, resolved.cluster, entry, resolved.seed),
        }
        for cost, entry, (engine, reason) in zip(costs, resolved.schemes, engines, strict=True)
    ]
    facts = read_facts(dump(resolved))
    timed = [row for row in rows if "simulation_s_at_most" in row]
    prepare_s += sum(cost.start_s for cost in costs)
    runs = max_repeats(resolved.repeats), 0 if resolved.tune is None else resolved.tune.trials
    cores = min(num_cores(), max(runs) * len(timed) or 1)

    def total_s(kind: str) -> float:
        work_s: float = sum(row[f"simulation_s_{kind}"] for row in timed)
        return prepare_s + work_s + import_s * cores * (cores > 1 and work_s >= MIN_WORK_S)

    return {
        "scenario": resolved.name,
        "workers": resolved.cluster.workers,
        "gpus_per_host": resolved.cluster.network.gpus,
        "sites": {name: network.site_of.count(number) for number, name in enumerate(network.sites)},
        "compute_s": {"fastest": min(durations), "slowest": max(durations)},
        "parameters": _num_parameters(resolved, job),
        "model_bytes": message_bytes(job.start, job.bytes_per_parameter),
        "transport": facts.transport,
        "doubts": list(doubts(resolved)),
        "remarks": [] if resolved.cluster.profile else remarks(resolved.cluster.network, network),
        "proxy": None if resolved.workload.timing_only else facts.proxy,
        "links": [
            {"name": each.name, "bytes_per_s": each.bandwidth_bytes_per_s, "varies": bool(each.variation)}
            for each in network.links
        ],
        "routes": route_kinds(network),
        "schemes": rows,
        "score_s": effort.score_s,
        "repeats": runs[0],
        "trials": runs[1],
        "cores": cores,
        "preparation_s": prepare_s,
        "steps_to_target_in_trial": None if effort.steps_to_target == math.inf else effort.steps_to_target,
        "simulation_s_expected": total_s("expected") if effort.steps_to_target is not None else None,
        "simulation_s_at_most": total_s("at_most"),
    }


def _num_parameters(scenario: Scenario, job: Job) -> int | None:
    """Parameters of the model behind the messages; None where a payload alone is known."""
    workload = scenario.workload
    if workload.layer_profile is not None:
        return workload.layer_profile.num_parameters
    if workload.payload is not None or job.problem is None:
        return None
    return job.start.numel() - job.problem.workload.num_buffers


def _row(scenario: Scenario, cost: StepCost, effort: Effort) -> dict[str, Any]:
    steps, repeats = most_steps(scenario, cost), max_repeats(scenario.repeats)
    repeats += 0 if scenario.tune is None else scenario.tune.trials
    expected = None if effort.steps_to_target is None else min(steps, effort.steps_to_target)
    simulation = {
        "simulation_s_per_100_steps": effort.of(scenario, cost, 100),
        "steps_at_most": steps,
        "simulation_s_expected": None if expected is None else effort.of(scenario, cost, expected) * repeats,
        "simulation_s_at_most": effort.of(scenario, cost, steps) * repeats,
    }
    if cost.problem:
        known = math.isfinite(effort.of(scenario, cost, steps))
        return {"label": cost.label, "problem": cost.problem, "exchanges": []} | (simulation if known else {})
    return {
        "label": cost.label,
        "problem": None,
        "step_s": cost.step_s,
        "step_shares": list(cost.shares),
        "average_s": list(cost.average_s),
        "leaves_out": list(cost.leaves_out),
        "compute_s": cost.compute_s,
        "latency_s": cost.latency_s,
        "bandwidth_s": cost.bandwidth_s,
        "random_s": cost.random_s,
        "bytes_per_step": cost.bytes_per_worker,
        "exchanges": list(cost.exchanges),
        "heartbeat": cost.heartbeat,
        "mean_over_steps": cost.steps,
        **simulation,
    }
