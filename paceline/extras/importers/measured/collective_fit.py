"""Latency and bandwidth with which a cluster's collectives last as measured, by our own prices of NCCL's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import numpy as np

from paceline.sim.collectives.algorithm_registry import algorithms
from paceline.sim.collectives.algorithms import Sites, count_ranks
from paceline.sim.collectives.collective import Collective, CollectiveBlock, of_blocks
from paceline.sim.collectives.pipelines import NEWEST_NCCL, NcclHosts, nccl_choice
from paceline.sim.network.build import build_network
from paceline.sim.network.network_settings import NetworkSettings
from paceline.sim.network.transport import TRANSPORTS, TransferModel
from paceline.sim.seeds import Floats
from paceline.sim.traffic.placing import place, price_s

MAX_RANKS: Final = 256
"""More take minutes to price."""
_ROUNDS: Final = 5
_FITTED: Final = 16
"""Most times that are fitted: of more every k-th by size."""
_STEP: Final = 0.01
"""Relative step of a numerical derivative: prices are linear but for corners."""


class Timed(NamedTuple):
    """A collective's measured time; ``num_bytes`` of all ranks together where each has a part."""

    operation: str
    num_bytes: int
    seconds: float


class LinkFit(NamedTuple):
    """One-way latency, bandwidth, and predicted over measured time of those fitted."""

    latency_s: float
    bytes_per_s: float
    fitted: Sequence[Timed]
    ratios: Floats


AllReduceRule = str | NcclHosts
"""The algorithm of all-reduces, or hosts on which NCCL chooses."""


def fit_collectives(
    timed: Sequence[Timed], gpus: Sequence[int], by: AllReduceRule, latency_s: float | None = None
) -> LinkFit:
    """Fit by least squares of relative errors.

    ``gpus``: of each host. A single host's inner links are fitted, else those between hosts, while inner ones
    are unlimited. ``latency_s``: None: fitted too.
    """
    timed = sorted(timed, key=lambda each: each.num_bytes)
    timed, slowest = timed[:: -(-len(timed) // _FITTED)], timed[-1]
    measured_s = np.array([each.seconds for each in timed])
    known = np.array([latency_s is not None, False])
    guess_s = measured_s.min() / (2 * sum(gpus)) if latency_s is None else latency_s
    point = np.array([guess_s, slowest.seconds / slowest.num_bytes])
    for _ in range(_ROUNDS):
        base_s = prices_s(timed, gpus, point, by)
        moves = [point * np.where(np.arange(2) == k, 1 + _STEP, 1.0) for k in range(2)]
        slopes = np.stack([(prices_s(timed, gpus, each, by) - base_s) / _STEP for each in moves], axis=1)
        slopes = np.where(known, 0.0, slopes) / measured_s[:, None]
        change = np.linalg.lstsq(slopes, 1 - base_s / measured_s, rcond=None)[0]
        point = point * np.clip(1 + change, 0.2, 5.0)
    return LinkFit(float(point[0]), float(1 / point[1]), timed, prices_s(timed, gpus, point, by) / measured_s)


def prices_s(
    timed: Sequence[Timed], gpus: Sequence[int], point: Floats, by: AllReduceRule = NEWEST_NCCL
) -> Floats:
    """Predicted times at ``point``: one-way latency and seconds per byte of the links that are fitted."""
    latency_s, s_per_byte = point.tolist()
    link = {"latency": f"{latency_s!r} s", "bandwidth": f"{8 / s_per_byte!r} bit/s"}
    alone = len(gpus) == 1
    settings = (
        {"latency": "0 s", "host": {"gpus": gpus[0], **link}} if alone else link | {"host": {"gpus": gpus[0]}}
    )
    network = build_network(NetworkSettings.model_validate(settings), sum(gpus))
    model = TRANSPORTS["nccl"].transfer(TransferModel(network))
    members, sites = tuple(range(sum(gpus))), ((tuple(gpus),) if max(gpus) > 1 else (sum(gpus),))
    return np.array([price_s(place(_collective(each, sites, by), members, model)) for each in timed])


def _collective(timed: Timed, sites: Sites, by: AllReduceRule) -> Collective:
    n = count_ranks(sites)
    if timed.operation == "sendrecv":
        return of_blocks(n, [CollectiveBlock(rank, (rank + 1) % n, timed.num_bytes) for rank in range(n)])
    kinds = algorithms(timed.operation, "nccl")
    if timed.operation != "all_reduce":
        by = next(iter(kinds))
    elif isinstance(by, NcclHosts):
        by = nccl_choice(sites, timed.num_bytes, by)
    return kinds[by].build(sites, timed.num_bytes)
