"""Preview of a scenario: its cluster and routes, the cost of a step, the time to simulate it.

The time to simulate it is an estimate from trials here, runs of ``simulate`` cut short; all else is computed.
Steps of a run that ends within its trial are exact; of another, a scheme that met the target is taken to be
ahead by the same factor all the way.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import median
from typing import Any, Final

import torch

from ...compute.model import steady_compute
from ...config.tracking import track
from ...config.units import format_rate
from ...devices import one_thread
from ...drivers.job import Job
from ...network.network import Network, rate_of
from ...network.network_settings import NetworkSettings, payload_share
from ...network.profile import Profile
from ...network.transport import NCCL_CONNECT, TRANSPORTS
from ...program.encoding import message_bytes
from ...records.run import Run, metric_name
from ...records.scenario_facts import NAME_PLATES, read_facts
from ...scenario.device_memory import device_memory
from ...scenario.entries import SchemeEntry
from ...scenario.repeats import max_repeats
from ...scenario.schema import Scenario, dump
from ...schemes import find_scheme
from ..jobs import MIN_WORK_S, num_cores
from ..prepare import over_profile, prepare, resolve
from ..simulate import doubts, engine_of, simulate_job
from .encoding_units import encodes
from .step_cost import StepCost, clock_of, step_cost
from .unevenness import about_speeds

TRIALS_S: Final = 8.0
"""Processor seconds of all trials that forecast steps; else, or without a target, a sixteenth."""
FEWEST_STEPS: Final = 3


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
class Trial:
    """What a scheme's first repeat, or its beginning, has shown.

    Attributes:
        each_s: measured seconds of a step; of the processor where there is no GPU.
        steps: of the repeat, mean over the workers; None where it did not end, infinite without a target.
        reached: whether it met the target.
        progress: steps, and the best score of the target by then; larger is better.
        problem: why a run without faults could not go on; empty where all is well.
    """

    each_s: float = math.inf
    steps: float | None = None
    reached: bool = False
    progress: Sequence[tuple[int, float]] = ((0, -math.inf),)
    problem: str = ""

    def expected_steps(self, trials: Iterable[Trial]) -> float | None:
        """Steps of a run, judged by the ``trials`` that met the target; None where they say nothing."""
        if self.steps is not None:
            return self.steps
        step, best = self.progress[-1]
        known = [
            step * other.steps / (before + (after - before) * (best - low) / (high - low))
            for other in trials
            for (before, low), (after, high) in pairwise(other.progress)
            if other.reached and other.steps and -math.inf < low < best <= high
        ]
        return median(known) if known else None


def try_schemes(
    jobs: Sequence[Job], costs: Sequence[StepCost], profile: Profile | None, score_s: float, forecast: bool
) -> dict[str, Trial]:
    """Trials of the schemes whose ``costs`` are known, by label; longer ones begin anew.

    Half of the time is shared evenly. The rest is for those that have not come to their end: for the one with
    the best score, until one has met the target and is a measure for the others.
    """
    known = {job.label: (job, cost.step_s) for job, cost in zip(jobs, costs, strict=True) if not cost.problem}
    end_s = time.process_time() + TRIALS_S / (1 if forecast and jobs[0].scoring.target else 16)
    trials = dict.fromkeys(known, Trial())

    def extend(label: str, share: float) -> None:
        (job, step_s), before = known[label], trials[label]
        steps = max(FEWEST_STEPS, share * (end_s - time.process_time()) / before.each_s)
        if before.steps in (None, math.inf) and steps > 2 * before.progress[-1][0]:
            trials[label] = _try(job, profile, steps * step_s, score_s)

    for label in track("trial of scheme", [*known]):
        extend(label, 0.0)
        extend(label, 0.5 / len(known))
    cut = [label for label, trial in trials.items() if trial.steps is None]
    for place, label in enumerate(sorted(cut, key=lambda each: -trials[each].progress[-1][1])):
        extend(label, 1 / (len(cut) - place) if any(each.reached for each in trials.values()) else 1.0)
    return trials


def _try(job: Job, profile: Profile | None, cut_s: float, score_s: float) -> Trial:
    """Simulate a job until ``cut_s`` on its clock."""
    clock = clock_of(job.start.device)
    begin_s = clock()
    run = simulate_job(replace(job, max_time_s=min(cut_s, job.max_time_s)), profile=profile)
    took_s, steps, progress = max(clock() - begin_s, 1e-9), max(run.iterations, 1), _progress(job, run)
    if cut_s < job.max_time_s and run.wall_clock_s >= cut_s:
        each_s = (
            max(0.1 * took_s, took_s - len(run.evaluations) * score_s) / steps + score_s / job.scoring.every
        )
        return Trial(each_s, None if job.scoring.target else math.inf, False, progress)
    failed = run.status == "partial" and not (job.churn or any(each.crash for each in job.compute.stragglers))
    return Trial(took_s / steps, run.iterations, run.reached_target, progress, run.message if failed else "")


def _progress(job: Job, run: Run) -> list[tuple[int, float]]:
    if (target := job.scoring.target) is None:
        return [(round(run.iterations), -math.inf)]
    name, sign = metric_name(target.metric, target.on, job.scoring.on), -1 if target.falling else 1
    scores = [(each.step, each.metrics.get(name)) for each in run.evaluations]
    known = [(step, -math.inf if score is None else sign * score) for step, score in scores]
    return [*accumulate(known, lambda before, each: (each[0], max(before[1], each[1])))]


def scoring_s(job: Job) -> float:
    """Measured seconds of scoring a model of each worker; nothing to speak of where nothing is scored."""
    clock = clock_of(job.start.device)
    job.scorer().begin([job.start])  # warms up
    begin_s = clock()
    job.scorer().begin([job.start + 1e-3 * rank for rank in range(job.workers)])
    return clock() - begin_s


def most_steps(scenario: Scenario, cost: StepCost) -> float:
    """Largest possible number of steps of a run."""
    stop = scenario.stop
    steps = math.inf if stop.max_iterations is None else float(stop.max_iterations)
    if stop.max_time is not None and cost.step_s > 0:
        steps = min(steps, math.ceil(stop.max_time / cost.step_s))
    return steps


def check(
    scenario: Scenario, device: torch.device, begin_s: float | None = None, forecast: bool = False
) -> dict[str, Any]:
    """Compute the output of ``paceline check``, as plain values; times in seconds, None for unknown ones.

    ``forecast``: with longer trials, which may say after how many steps runs meet their target; ``begin_s``:
    reading of ``time.process_time`` from which on the preparation counts (default: now).
    """
    begin_s = time.process_time() if begin_s is None else begin_s
    import_s = time.process_time() - begin_s  # by each process of parallel runs, too
    resolved = resolve(scenario, device)
    jobs = [prepare(resolved, entry, resolved.seed, device) for entry in resolved.schemes]
    prepare_s = time.process_time() - begin_s
    job, network = jobs[0], jobs[0].transfer.network
    with one_thread():
        engines = [engine_of(over_profile(each, resolved.cluster.profile)) for each in jobs]
        costs = [step_cost(resolved, entry) for entry in track("step of scheme", resolved.schemes)]
        score_s = scoring_s(job)
        trials = try_schemes(jobs, costs, resolved.cluster.profile, score_s, forecast)
    compute = steady_compute(job.compute, job.workers)
    durations = [compute.duration_s(rank, 0) for rank in range(job.workers)]
    runs = max_repeats(resolved.repeats), 0 if resolved.tune is None else resolved.tune.trials
    rows = [
        {
            **_row(cost, trials, most_steps(resolved, cost), sum(runs)),
            "engine": engine,
            "engine_reason": reason or None,
            "encodes": encodes(resolved, entry),
            "memory": device_memory(resolved.workload, resolved.cluster, entry, resolved.seed),
        }
        for cost, entry, (engine, reason) in zip(costs, resolved.schemes, engines, strict=True)
    ]
    facts = read_facts(dump(resolved))
    timed = [row for row in rows if "simulation_s_at_most" in row]
    cores = min(num_cores(), max(runs) * len(timed) or 1)

    def total_s(kind: str) -> float | None:
        each_s = [row[f"simulation_s_{kind}"] for row in timed]
        if None in each_s:
            return None
        work_s: float = sum(each_s)  # after a first run, the rest decides whether processes begin
        begins = cores > 1 and work_s - each_s[0] / sum(runs) >= MIN_WORK_S
        return prepare_s + work_s + import_s * cores * begins

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
        "remarks": [
            *([] if resolved.cluster.profile else remarks(resolved.cluster.network, network)),
            *about_averages_inside(resolved.schemes),
            *about_speeds(resolved, {cost.label: cost.step_s for cost in costs if not cost.problem}),
        ],
        "proxy": None if resolved.workload.timing_only else facts.proxy,
        "links": [
            {"name": each.name, "bytes_per_s": each.bandwidth_bytes_per_s, "varies": bool(each.variation)}
            for each in network.links
        ],
        "routes": route_kinds(network),
        "schemes": rows,
        "score_s": score_s,
        "repeats": runs[0],
        "trials": runs[1],
        "cores": cores,
        "preparation_s": prepare_s,
        "simulation_s_expected": total_s("expected"),
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


def _row(cost: StepCost, trials: Mapping[str, Trial], most: float, runs: int) -> dict[str, Any]:
    trial = trials.get(cost.label, Trial(cost.clock_s, math.inf))
    steps = trial.expected_steps(trials.values())
    expected = None if steps is None else min(most, steps)
    simulation = {
        "simulation_s_per_100_steps": 100 * trial.each_s,
        "steps_expected": expected,
        "steps_at_most": most,
        "simulation_s_expected": None if expected is None else expected * trial.each_s * runs,
        "simulation_s_at_most": most * trial.each_s * runs,
    }
    if problem := cost.problem or trial.problem:
        known = math.isfinite(trial.each_s)
        return {"label": cost.label, "problem": problem, "exchanges": []} | (simulation if known else {})
    plain = ("label", "step_s", "compute_s", "round_s", "latency_s", "bandwidth_s", "random_s", "heartbeat")
    return {
        **{name: getattr(cost, name) for name in plain},
        "problem": None,
        "step_error": cost.error if math.isfinite(cost.error) else None,
        "step_shares": list(cost.shares),
        "average_s": list(cost.average_s),
        "leaves_out": list(cost.leaves_out),
        "bytes_per_step": cost.bytes_per_worker,
        "card_bytes_per_step": cost.card_bytes,
        "exchanges": list(cost.exchanges),
        "mean_over_steps": cost.steps,
        **simulation,
    }


_MTUS: Final = 1500, 9000
"""Ethernet's default, which stock hosts have, and jumbo frames."""


def remarks(settings: NetworkSettings, network: Network) -> list[str]:
    """Sentences about bandwidths that look like name plates, and about connecting; none over ``ideal``."""
    rules = TRANSPORTS[settings.transport]
    sentences = _about_plates(settings, network) if rules.gloo_messages else []
    if rules.nccl_collectives and not settings.connect:
        known = NCCL_CONNECT
        sentences.append(
            f"Connecting takes no time here; over NCCL a group's first collective takes {known.low:g} to "
            f"{known.high:g} s longer than the later ones: network.connect: {known.value:g} s adds that."
        )
    return sentences


def about_averages_inside(entries: Iterable[SchemeEntry]) -> Iterator[str]:
    """Sentences about schemes that could average gradients inside hosts or sites during the backward pass."""
    for entry in entries:
        options: Any = entry.options
        # Of sgp 'overlap' is a number, of steps between units.
        if find_scheme(entry.name).inside(options) and getattr(options, "overlap", None) is False:
            yield (
                f"{entry.label} averages gradients inside {options.inside} after the backward pass, where "
                "DistributedDataParallel does it meanwhile: 'overlap: true'."
            )


def _about_plates(settings: NetworkSettings, network: Network) -> list[str]:
    inside = {*network.inner_up.values(), *network.inner_down.values()}
    rates = {link.bandwidth_bytes_per_s for k, link in enumerate(network.links) if k not in inside}
    plates = sorted(rates.intersection(NAME_PLATES))
    if not plates:
        return []
    looks = "looks like a name plate" if len(plates) == 1 else "look like name plates"
    sizes = _MTUS[:1] if settings.tcp is not None else _MTUS
    shares = " or ".join(f"{100 * payload_share(mtu):.1f} % (MTU {mtu})" for mtu in sizes)
    return [
        f"Bandwidths are those of data, and {', '.join(map(format_rate, plates))} {looks}: TCP over Ethernet "
        f"leaves {shares} of it; iperf3 measures the rest."
    ]
