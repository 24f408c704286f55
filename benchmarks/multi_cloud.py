"""Training across regions and clouds that others have measured, predicted from runs inside one region.

Inputs and rules were committed before anything was computed from them.

Source: Erben, Mayer, Jacobsen, How Can We Train Deep Learning Models Across Clouds and Continents?, VLDB
17(6) 2024, arXiv 2306.03163, and the logs of its runs (cirquit/hivemind-multi-cloud at 654cc02) [O].
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from paceline import Round, Schedule
from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import parse

EXAMPLES: Final = 32_768
"""Of all peers together, between two averages [O]."""
INSIDE: Final = "{latency: 0.33 ms, bandwidth: 1.1 Gbit/s}"
"""What a peer was seen to send at most inside a zone while training, and half of the ping [O]."""


def all_to_all(workers: int, num_bytes: int) -> Schedule:
    """Hivemind's all-reduce: everybody adds up a part of the vector, and has all parts sent by all others.

    Each sends its values of a part to whoever adds that part up, to all of them at once, and gets the sums
    the same way: 2 (n - 1) / n of the vector, in two steps. That the second begins when the first is complete
    is a simplification: hivemind sends back what is ready.
    """
    offset = [k * num_bytes // workers for k in range(workers + 1)]
    part = [offset[k + 1] - offset[k] for k in range(workers)]

    def rounds(rank: int) -> tuple[Round, Round]:
        others = [peer for peer in range(workers) if peer != rank]
        own, theirs = (
            tuple((peer, part[rank]) for peer in others),
            tuple((peer, part[peer]) for peer in others),
        )
        return Round(receives=own, sends=theirs), Round(receives=theirs, sends=own)

    return Schedule(rounds=tuple(rounds(rank) for rank in range(workers)), window=1)


@dataclass(frozen=True)
class Model:
    """What was trained.

    Attributes:
        name: in the page.
        payload_bytes: of its gradient in 16 bits [O].
        work_s: how long a T4 computes for ``EXAMPLES``; both peers of A-2 together took half of it [C].
    """

    name: str
    payload_bytes: float
    work_s: float


MODELS: Final = (
    Model("ConvNextLarge", 395.6e6, 2 * 456.0),
    Model("RoBERTa-XLM", 1_120.2e6, 2 * 135.3),
)


@dataclass(frozen=True)
class Link:
    """Between two sites: one way, and what one connection gets, from the first to the second [O]."""

    latency_s: float
    bit_per_s: float


EUROPE: Final = Link(0.103_11 / 2, 0.21e9)
AWS: Final = Link(0.0153 / 2, 1.52e9)
AZURE: Final = Link(0.051_22 / 2, 0.45e9)


@dataclass(frozen=True)
class Fleet:
    """Peers of a run, each a T4.

    Attributes:
        name: of the paper.
        us: how many are in Google's US region.
        others: how many are elsewhere.
        link: to them.
        without: the run of the same peers without those elsewhere; None: there is none.
    """

    name: str
    us: int
    others: int = 0
    link: Link | None = None
    without: str | None = None


FLEETS: Final = (
    Fleet("A-2", 2),
    Fleet("A-3", 3),
    Fleet("A-4", 4),
    Fleet("A-6", 6),
    Fleet("A-8", 8),
    Fleet("B-2", 1, 1, EUROPE, "A-1"),
    Fleet("B-4", 2, 2, EUROPE, "A-2"),
    Fleet("B-6", 4, 2, EUROPE, "A-4"),
    Fleet("B-8", 4, 4, EUROPE, "A-4"),
    Fleet("D-2", 2, 2, AWS, "A-2"),
    Fleet("D-3", 2, 2, AZURE, "A-2"),
)
FITTED: Final = "A-2"
"""What a round costs beside computing and sending follows from this run, and is the same in all others."""

PUBLISHED: Final[Mapping[str, tuple[tuple[float, float], tuple[float, float]]]] = {
    "A-2": ((467.4, 11.5), (155.0, 19.7)),
    "A-3": ((319.4, 14.4), (110.4, 22.6)),
    "A-4": ((233.4, 15.1), (86.5, 23.2)),
    "A-6": ((163.8, 17.6), (65.5, 24.6)),
    "A-8": ((125.1, 19.6), (57.0, 26.5)),
    "B-2": ((479.1, 31.1), (184.8, 59.2)),
    "B-4": ((241.3, 23.4), (103.5, 43.0)),
    "B-6": ((164.0, 21.4), (78.6, 38.7)),
    "B-8": ((127.1, 21.5), (73.1, 44.9)),
    "D-2": ((231.6, 15.2), (87.8, 24.8)),
    "D-3": ((234.1, 17.1), (88.8, 29.7)),
}
"""Seconds of a round, and of its communication, for each of ``MODELS`` [O; C]."""
ALONE_S: Final = (404.7, 156.6)
"""A-1: one T4, nothing averaged [C]."""

SCENARIO: Final = """\
name: multi-cloud
workload: {{timing_only: true, payload: {payload:.0f} B}}
cluster:
  compute: {{time: {compute_s!r} s}}
  network:
    sites: {{{sites}}}
    within: {inside}
    {between}
collectives: {{all_reduce: "benchmarks.multi_cloud:all_to_all"}}
schemes: [all_reduce]
stop: {{max_iterations: 1}}
events: none
"""
BETWEEN: Final = "between: {{latency: {latency_s!r} s, bandwidth: 4 Gbit/s, per_flow: {per_flow!r} bit/s}}"
"""Many connections together get 4 Gbit/s between the US and Europe [O], taken for the clouds too."""


@cache
def simulated_s(model: Model, fleet: Fleet) -> float:
    """Seconds of a round without what it costs beside computing and sending."""
    link = fleet.link
    between = "" if link is None else BETWEEN.format(latency_s=link.latency_s, per_flow=link.bit_per_s)
    sites = f"us: {fleet.us}" + (f", elsewhere: {fleet.others}" if fleet.others else "")
    compute_s = model.work_s / (fleet.us + fleet.others)
    text = SCENARIO.format(
        payload=model.payload_bytes, compute_s=compute_s, sites=sites, inside=INSIDE, between=between
    )
    (run,) = simulate(parse(text))
    return run.wall_clock_s


def fixed_s(number: int) -> float:
    """What a round of a model costs beside computing and sending: matchmaking, encoding, its own averages."""
    (fitted,) = (fleet for fleet in FLEETS if fleet.name == FITTED)
    return PUBLISHED[FITTED][number][0] - simulated_s(MODELS[number], fitted)


def round_s(number: int, fleet: Fleet) -> float:
    """Seconds of a round, predicted."""
    return simulated_s(MODELS[number], fleet) + fixed_s(number)
