"""Which number of a run answers a row: seconds of a round of 32,768 examples, all peers together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Final

from benchmarks.board.runs import chosen, other_clock
from paceline import Round, RunError, Schedule
from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import parse

TITLE: Final = "hivemind across regions and clouds"
UNIT: Final = "s"
BLIND: Final = "8 of the 28 rows: mapping and predictions are older in the history"
GRADES: Final = {"measured": "rates by iperf3, and the speed of hosts of one GPU"}
FITTED: Final = {"cost of a round beside computing and sending": "one for each model, on A-2"}
ASSUMED: Final = {
    "rate of a peer": "1.1 Gbit/s, 0.33 ms one way inside a site",
    "pipe between two sites": "4 Gbit/s for all connections",
}


@dataclass(frozen=True)
class Model:
    """What was trained.

    Attributes:
        payload_bytes: of its gradient in 16 bits.
        work_s: how long a T4 computes for a round; both peers of A-2 together took half of it.
        measured_s: a round of A-2, off which the constant is read.
    """

    payload_bytes: float
    work_s: float
    measured_s: float


MODELS: Final = {
    "ConvNextLarge": Model(395.6e6, 2 * 456.0, 467.4),
    "RoBERTa-XLM": Model(1_120.2e6, 2 * 135.3, 155.0),
}
_LINKS: Final = {
    "us-europe": (103.11, 0.21), "us-asia": (157.09, 0.13), "us-australia": (176.19, 0.12),
    "europe-asia": (253.10, 0.08), "europe-australia": (271.98, 0.07), "asia-australia": (131.45, 0.16),
    "us-aws": (15.3, 1.52), "us-azure": (51.22, 0.45),
    "office-europe": (16.73, 0.45), "office-us": (150.80, 0.06),
}  # fmt: skip
"""Ping in ms and Gbit/s of one connection, by iperf3, from the first to the second."""
_SCENARIO: Final = """\
name: multi-cloud
workload: {{timing_only: true, payload: {payload:.0f} B}}
cluster:
  compute: {{time: {compute_s!r} s}}
  network:
    sites: {{{sites}}}
    within: {{latency: 0.33 ms, bandwidth: 1.1 Gbit/s}}
    {between}
collectives: {{all_reduce: "benchmarks.board.multi_cloud.mapping:all_to_all"}}
schemes: [all_reduce]
stop: {{max_iterations: 1}}
events: none
"""


def predict(row: Mapping[str, str]) -> float:
    """Seconds of a round."""
    model = chosen(MODELS, row["model"])
    return round_s(model, row["peers"], model.work_s / sum(_counts(row["peers"]).values()))


def round_s(model: Model, peers: str, compute_s: float) -> float:
    """Seconds of a round of peers such as ``2 us + 1 europe``, which compute for ``compute_s``."""
    constant_s = model.measured_s - _simulated_s(model, "2 us", model.work_s / 2)
    return _simulated_s(model, peers, compute_s) + constant_s


def _counts(peers: str) -> dict[str, int]:
    return {site: int(number) for number, site in (part.split() for part in peers.split(" + "))}


def _simulated_s(model: Model, peers: str, compute_s: float) -> float:
    counts = _counts(peers)
    pairs = [f"{a}-{b}" for a, b in combinations(counts, 2)]
    links = {pair: chosen(_LINKS, pair) for pair in pairs}
    between = "between: {{latency: {{{}}}, bandwidth: 4 Gbit/s, per_flow: {{{}}}}}".format(
        ", ".join(f"{pair}: {ping_ms / 2!r} ms" for pair, (ping_ms, _) in links.items()),
        ", ".join(f"{pair}: {gbit!r} Gbit/s" for pair, (_, gbit) in links.items()),
    )
    text = _SCENARIO.format(
        payload=model.payload_bytes,
        compute_s=compute_s,
        sites=", ".join(f"{site}: {number}" for site, number in counts.items()),
        between=between if links else "",
    )
    scenario, clock = parse(text), other_clock()
    if clock is not None:
        return clock(scenario, "")
    (run,) = simulate(scenario)
    if run.status != "completed":
        raise RunError(run.message)
    return run.wall_clock_s


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
