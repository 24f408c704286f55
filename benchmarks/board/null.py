"""Two spreadsheets to beat: what a page of arithmetic says of a row, fed with what the simulator is fed.

A mapping turns a row into scenarios, and the clock's seconds into the row's number. Here a formula takes the
clock's place (``runs.timed_by``): payload, computing, network, scheme and the mapping's own constants are
those of the simulator, and constants that a mapping works out with the clock are worked out with the formula.

Symbols: n workers, g of them a host, S bytes of a model, c seconds of computing, of which c/3 is the forward
pass; alpha the latency and beta the seconds a byte, each the largest on the ring 0 -> 1 -> ... -> 0.

*Naive*: c, and then an average as a flat ring, T_ring = 2 (n - 1) (alpha + S beta / n), whatever the scheme
averages. A message is alpha + S beta; of other collectives see ``_ring``.

*Expert* knows beside that

- overlap with the backward pass in k = S / bucket parts of t = T(S / k) each, one after another:
  c/3 + max(2c/3 / k + k t, 2c/3 + t);
- rings in hosts: their hops inside have the inside's latency, and the slower of both links decides;
- NCCL's double tree on two hosts, whose cards send a model once: S beta + 2 alpha + 2 (g - 1) alpha_inside;
- gloo's binomial broadcast, ceil(log2 n) (alpha + S beta);
- the all-reduce that a scenario names: NCCL's ring; its tree, 2 S beta + 2 ceil(log2 hosts) alpha + 2 (g - 1)
  alpha_inside; hivemind's, twice alpha + max(S / n by the slowest connection, (n - 1) / n S by a card);
- that one-peer averages are one message, and which of them go beside the computing.

Outages add their own length and what is computed anew in both. Neither knows TCP, windows, software
overheads, jitter, shared links or waiting for one another.

Sources: Patarasuk and Yuan, JPDC 2009 (ring); Li et al., VLDB 2020 (buckets during the backward pass);
Sanders, Speck, Traff, Parallel Computing 2009 (two trees); Thakur, Rabenseifner, Gropp, IJHPCA 2005
(binomial tree).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Final

from benchmarks.board.runs import Clock
from paceline import Scenario
from paceline.sim.compute.model import steady_compute
from paceline.sim.experiments.prepare import prepare
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Route, rate_of
from paceline.sim.schemes.all_reduce import bucket_bytes


@dataclass(frozen=True)
class Inputs:
    """The numbers of a scenario that a spreadsheet has cells for.

    Attributes:
        workers, gpus: in all, and of a host.
        compute_s: one step of the first worker, without jitter.
        payload_bytes: of one model.
        latency_s, bytes_per_s: the largest and the least on the ring of workers, one way.
        inside_s, inside_bytes_per_s: likewise between the GPUs of a host; those of the ring without hosts.
        card_bytes_per_s: of a host's own link, the slowest; infinite without.
        is_nccl: whether the library is NCCL.
        algorithm: the all-reduce that the scenario names; ``auto``: none.
    """

    workers: int
    gpus: int
    compute_s: float
    payload_bytes: float
    latency_s: float
    bytes_per_s: float
    inside_s: float
    inside_bytes_per_s: float
    card_bytes_per_s: float = math.inf
    is_nccl: bool = False
    algorithm: str = "auto"

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return self.workers // self.gpus


def inputs_of(scenario: Scenario) -> Inputs:
    """The cells of a scenario with one scheme; ``InputError``: it has no network or payload to speak of."""
    cluster = scenario.cluster
    network, workers, gpus = (
        build_network(cluster.network, cluster.workers),
        cluster.workers,
        cluster.network.gpus,
    )
    job = prepare(scenario, scenario.schemes[0], scenario.seed)
    ring = [network.route(rank, (rank + 1) % workers) for rank in range(workers)]
    inside = [ring[0]] if gpus > 1 else ring
    cards = [network.links[link].bandwidth_bytes_per_s for link in network.up.values()]

    def slowest(routes: list[Route]) -> tuple[float, float]:
        return max(each.latency_s for each in routes), min(rate_of(network, each) for each in routes)

    return Inputs(
        workers,
        gpus,
        steady_compute(job.compute, workers).duration_s(0, 0),
        len(job.start) * job.bytes_per_parameter,
        *slowest(ring),
        *slowest(inside),
        min(cards, default=math.inf),
        cluster.network.transport == "nccl",
        scenario.collectives.all_reduce,
    )


def naive_s(scenario: Scenario, operation: str) -> float:
    """Seconds of a run by the naive spreadsheet, or of one collective; a ``Clock``."""
    known = inputs_of(scenario)
    if operation:
        return _ring(known, operation, known.payload_bytes)
    steps, averages = _steps(scenario)
    average_s = _ring(known, "all_reduce", known.payload_bytes)
    return steps * known.compute_s + averages * average_s + _outages_s(scenario, known)


def expert_s(scenario: Scenario, operation: str) -> float:
    """Seconds of a run by the expert's spreadsheet, or of one collective; a ``Clock``."""
    known = inputs_of(scenario)
    if operation:
        return _expert_collective(known, operation, known.payload_bytes)
    (entry,) = scenario.schemes
    steps, averages = _steps(scenario)
    if entry.name in _STEPS:
        return steps * _STEPS[entry.name](known, entry.options) + _outages_s(scenario, known)
    average_s = _expert_collective(known, "all_reduce", known.payload_bytes)
    return steps * known.compute_s + averages * average_s + _outages_s(scenario, known)


CLOCKS: Final[Mapping[str, Clock]] = {"naive": naive_s, "expert": expert_s}


def _steps(scenario: Scenario) -> tuple[int, int]:
    """Steps of a run, and averages among them."""
    steps = scenario.stop.max_iterations or 1
    return steps, steps // int(getattr(scenario.schemes[0].options, "period", 1))


def _outages_s(scenario: Scenario, known: Inputs) -> float:
    """Time until workers are back; from a checkpoint also its restart and the steps since."""
    total_s = 0.0
    for fault in scenario.cluster.faults:
        total_s += fault.back_after
        if (checkpoint := scenario.checkpoint) is not None:
            total_s += checkpoint.restart
            total_s += (fault.at_step or 0) % int(checkpoint.every) * known.compute_s
    return total_s


def _ring(known: Inputs, operation: str, payload_bytes: float) -> float:
    """A collective around the flat ring: twice for an all-reduce, else once; a message goes one hop.

    A broadcast and a reduce go along it in small pieces.
    """
    n, alpha_s, once_s = known.workers, known.latency_s, payload_bytes / known.bytes_per_s
    each_s = (n - 1) * (alpha_s + once_s / n)
    return {
        "all_reduce": 2 * each_s,
        "reduce_scatter": each_s,
        "all_gather": each_s,
        "all_to_all": each_s,
        "broadcast": (n - 1) * alpha_s + once_s,
        "reduce": (n - 1) * alpha_s + once_s,
        "point_to_point": alpha_s + once_s,
    }[operation]


def _expert_collective(known: Inputs, operation: str, payload_bytes: float) -> float:
    n, hosts, beta = known.workers, known.hosts, 1 / known.bytes_per_s
    if operation == "broadcast" and not known.is_nccl:
        return math.ceil(math.log2(n)) * (known.latency_s + payload_bytes * beta)
    if operation != "all_reduce":
        return _ring(known, operation, payload_bytes)
    if known.algorithm.endswith(":all_to_all"):
        part_bytes = payload_bytes / n
        return 2 * (known.latency_s + part_bytes * max(beta, (n - 1) / known.card_bytes_per_s))
    up_s = known.latency_s * math.ceil(math.log2(hosts)) + (known.gpus - 1) * known.inside_s
    if known.algorithm == "nccl_tree" or (known.is_nccl and hosts == 2 and known.algorithm == "auto"):
        return 2 * up_s + payload_bytes * beta * (1 if hosts == 2 else 2)
    if known.gpus == 1:
        return _ring(known, operation, payload_bytes)
    hops_s = (hosts - 1) * known.latency_s + (n - hosts) * known.inside_s
    slower = max(beta if hosts > 1 else 0.0, 1 / known.inside_bytes_per_s)
    return 2 * hops_s + 2 * (n - 1) / n * payload_bytes * slower


def _data_parallel_s(known: Inputs, options: Any) -> float:
    """A step of an all-reduce of gradients, in buckets beside the backward pass where it overlaps."""
    buffers_s = _expert_collective(known, "broadcast", options.buffers) if options.buffers else 0.0
    sizes = bucket_bytes(options)
    if sizes is None:
        return buffers_s + known.compute_s + _expert_collective(known, "all_reduce", known.payload_bytes)
    parts = max(1, math.ceil(known.payload_bytes / sizes[1])) if sizes[1] else 1
    part_s = _expert_collective(known, "all_reduce", known.payload_bytes / parts)
    forward_s, backward_s = known.compute_s / 3, 2 * known.compute_s / 3
    return buffers_s + forward_s + max(backward_s / parts + parts * part_s, backward_s + part_s)


def _message_s(known: Inputs) -> float:
    return _ring(known, "point_to_point", known.payload_bytes)


def _inside_s(known: Inputs) -> float:
    """An all-reduce among the GPUs of a host."""
    return (
        2 * (known.gpus - 1) * (known.inside_s + known.payload_bytes / known.gpus / known.inside_bytes_per_s)
    )


def _gossip_s(known: Inputs, options: Any) -> float:
    together = options.order == "combine_while_adapting"
    return max(known.compute_s, _message_s(known)) if together else known.compute_s + _message_s(known)


def _sgp_s(known: Inputs, options: Any) -> float:
    return max(known.compute_s + _inside_s(known), _message_s(known))


def _bluefog_s(known: Inputs, options: Any) -> float:
    """Averages start after the forward pass; hierarchical: a sum and a broadcast inside hosts around them."""
    around_s = _inside_s(known) * 1.5 if options.hierarchical else 0.0
    return known.compute_s / 3 + around_s + max(2 * known.compute_s / 3, _message_s(known))


def _decent_s(known: Inputs, options: Any) -> float:
    """Averages over the length of the next step: of pairs, or of hosts and of pairs of hosts in turn."""
    if options.graph == "exponential":
        return max(known.compute_s, _message_s(known))
    two = replace(known, workers=2 * known.gpus)
    both_s = _inside_s(known), _expert_collective(two, "all_reduce", known.payload_bytes)
    return fmean(max(known.compute_s, each_s) for each_s in both_s)


_STEPS: Final[Mapping[str, Callable[[Inputs, Any], float]]] = {
    "all_reduce": _data_parallel_s,
    "gossip": _gossip_s,
    "sgp": _sgp_s,
    "benchmarks.board.bluefog.scheme:bluefog": _bluefog_s,
    "benchmarks.board.decent_dp.scheme:decent": _decent_s,
}
"""Scheme -> seconds of a step of the expert's."""
