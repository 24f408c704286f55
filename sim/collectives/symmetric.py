"""Hierarchical all-reduces on a cluster of equal sites, hosts and links, in closed form.

Where all members begin together, every worker sends the same, and all messages of a round get the same rate:
one link stands for all of its kind. So a round is one flow, whatever the number of workers, and collectives
that share links do so as a few such flows. Rates are the max-min fair ones of the single messages
(``sim/traffic/sharing.py``), times equal theirs to rounding; where the payload does not divide by the number
of workers, all have the longest message, a byte longer at most.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from .hierarchy import Sites, tiers


@dataclass(frozen=True)
class EqualLinks:
    """The links of a cluster whose sites, hosts and GPUs are alike.

    Attributes:
        capacities: bytes per second of a GPU's link inside its host, a host's card, a site's uplink, and the
            pipe between two sites; ``inf`` where there is none.
        latencies_s: one way, inside a host, between hosts of a site, and between sites.
        per_flow: largest bytes per second of a connection, for the same three.
    """

    capacities: tuple[float, float, float, float]
    latencies_s: tuple[float, float, float]
    per_flow: tuple[float, float, float]

    def corrected(self, efficiency: float, added_latency_s: float) -> EqualLinks:
        """The links as payloads see them: a share of the bandwidths, and longer latencies."""
        inside, card, uplink, pipe = (efficiency * each for each in self.capacities)
        within, local, between = (each + added_latency_s for each in self.latencies_s)
        caps = self.per_flow
        return EqualLinks(
            (inside, card, uplink, pipe),
            (within, local, between),
            (efficiency * caps[0], efficiency * caps[1], efficiency * caps[2]),
        )


@dataclass(frozen=True)
class SymmetricRound:
    """One round of equal messages, the same for every worker.

    Attributes:
        messages: per worker.
        num_bytes: per message.
        loads: how many of all workers' messages are on a link of each kind of ``EqualLinks.capacities``.
        cap: largest bytes per second of a message.
        latency_s: one way.
    """

    messages: int
    num_bytes: int
    loads: tuple[int, int, int, int]
    cap: float
    latency_s: float


def symmetric_rounds(sites: Sites, num_bytes: int, links: EqualLinks) -> tuple[SymmetricRound, ...] | None:
    """The rounds of ``hierarchical_all_reduce`` among all workers; None where sites or hosts differ in size.

    ``sites``: hosts of several GPUs in every site.
    """
    sizes = tiers(sites)
    if len(sizes) < 2 or any(len(set(groups)) > 1 for groups in sizes):
        return None
    gpus, hosts, number = sizes[0][0], sizes[1][0], len(sites)
    loads = [
        (gpus - 1, 0, 0, 0),
        (0, gpus * (hosts - 1), 0, 0),
        (0, gpus * (number - 1), hosts * gpus * (number - 1), hosts * gpus),
    ]
    rounds, piece = [], num_bytes
    for tier, peers in enumerate((gpus, hosts, number)):
        piece = -(-piece // peers)
        if peers > 1 and piece:
            cap, latency_s = links.per_flow[tier], links.latencies_s[tier]
            rounds.append(SymmetricRound(peers - 1, piece, loads[tier], cap, latency_s))
    return (*rounds, *reversed(rounds))


def bytes_of_rounds(rounds: Sequence[SymmetricRound]) -> int:
    """Bytes that every worker sends."""
    return sum(each.messages * each.num_bytes for each in rounds)


def alone_s(rounds: Sequence[SymmetricRound], links: EqualLinks, overhead_s: float = 0.0) -> float:
    """Seconds of the rounds one after another, with nothing else on the links.

    Two hosts of two GPUs, 8 bytes: 4 cross links inside, of 1 B/s, then 2 of each GPU the cards, of 2 B/s.

    >>> free = float("inf")
    >>> links = EqualLinks((1.0, 2.0, free, free), (0.0, 0.5, 0.5), (free, free, free))
    >>> rounds = symmetric_rounds(((2, 2),), 8, links)
    >>> [(each.num_bytes, each.loads[:2]) for each in rounds]
    [(4, (1, 0)), (2, (0, 2)), (2, (0, 2)), (4, (1, 0))]
    >>> alone_s(rounds, links)  # 4 + (2 + 0.5) + (2 + 0.5) + 4
    13.0
    """
    return sum(overhead_s + one.num_bytes * seconds_per_byte(one, links) + one.latency_s for one in rounds)


def seconds_per_byte(one: SymmetricRound, links: EqualLinks) -> float:
    """Seconds per byte of each message of a round that has all links for itself."""
    shares = (load / each for load, each in zip(one.loads, links.capacities, strict=True))
    return max(1 / one.cap, *shares)


@dataclass(slots=True, eq=False)
class _Flow:
    one: SymmetricRound
    remaining: float
    since_s: float
    rate: float = 0.0

    def left(self, now_s: float) -> float:
        if math.isinf(self.rate):
            return 0.0
        return max(0.0, self.remaining - self.rate * (now_s - self.since_s))


class SymmetricSharing:
    """Max-min fair sharing of links among the rounds of several collectives; ``flows``: rounds in flight."""

    def __init__(self, links: EqualLinks) -> None:
        self._links = links
        self._number = 0
        self.flows: dict[int, _Flow] = {}

    def start(self, one: SymmetricRound, now_s: float) -> int:
        """Begin a round; return its number."""
        self._number += 1
        self.flows[self._number] = _Flow(one, float(one.num_bytes), now_s)
        self._share(now_s)
        return self._number

    def end(self, number: int, now_s: float) -> None:
        """Remove a round whose bytes have left."""
        del self.flows[number]
        self._share(now_s)

    def next_end(self) -> tuple[float, int]:
        """Time and number of the next round to end if nothing else happens; inf if none."""
        ends = ((self._end_s(flow), number) for number, flow in self.flows.items())
        return min(ends, default=(math.inf, 0))

    @staticmethod
    def _end_s(flow: _Flow) -> float:
        return flow.since_s if math.isinf(flow.rate) else flow.since_s + flow.remaining / flow.rate

    def _share(self, now_s: float) -> None:
        free = list(self._links.capacities)
        rising = dict(self.flows)
        while rising:
            levels = {number: flow.one.cap for number, flow in rising.items()}
            for kind, capacity in enumerate(free):
                load = sum(flow.one.loads[kind] for flow in rising.values())
                if load and math.isfinite(capacity):
                    share = capacity / load
                    for number, flow in rising.items():
                        if flow.one.loads[kind]:
                            levels[number] = min(levels[number], share)
            level = min(levels.values())
            for number in [number for number, each in levels.items() if each <= level * (1 + TIE)]:
                flow = rising.pop(number)
                if flow.rate != level:
                    flow.remaining, flow.since_s, flow.rate = flow.left(now_s), now_s, level
                for kind, load in enumerate(flow.one.loads):
                    if load and math.isfinite(free[kind]):
                        free[kind] = max(0.0, free[kind] - load * level)


TIE = 1e-12
"""Relative difference below which shares, rates and times count as equal."""
