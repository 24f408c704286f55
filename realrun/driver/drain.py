"""Leave nothing in flight: completes the transfers that services leave behind.

When the mains of all workers have ended, the services are stopped where they are. A receive without a sender
is released by a message of one element, and a message without a receiver is received and dropped. The counts
of all posted operations determine each rank's part.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class PostedCounts:
    """Sends and receives posted so far by one rank.

    Attributes:
        sent: (destination, tag) -> messages.
        received: (source, tag) -> receives from that source, and from anybody if it answered.
        any_waiting: tag -> receives from anybody that are not complete.
        largest: tag -> bytes of the largest message sent.
    """

    sent: Counter[tuple[int, str]] = field(default_factory=Counter)
    received: Counter[tuple[int, str]] = field(default_factory=Counter)
    any_waiting: Counter[str] = field(default_factory=Counter)
    largest: dict[str, int] = field(default_factory=dict)

    def sends(self, destination: int, tag: str, num_bytes: int) -> int:
        """Count a message; returns its number among those to this destination under this tag."""
        self.sent[destination, tag] += 1
        self.largest[tag] = max(num_bytes, self.largest.get(tag, 0))
        return self.sent[destination, tag]

    def receives(self, source: int, tag: str) -> int:
        """Count a receive from ``source``, or an any-source one answered by it; returns its number."""
        self.received[source, tag] += 1
        return self.received[source, tag]

    def as_lists(self) -> list[Any]:
        """The counts as lists, for the control store."""
        return [
            [(*key, count) for key, count in self.sent.items()],
            [(*key, count) for key, count in self.received.items()],
            [*self.any_waiting.items()],
            [*self.largest.items()],
        ]

    @staticmethod
    def from_lists(lists: list[Any]) -> PostedCounts:
        """The inverse of ``as_lists``."""
        sent, received, any_waiting, largest = lists
        return PostedCounts(
            Counter({(peer, tag): count for peer, tag, count in sent}),
            Counter({(peer, tag): count for peer, tag, count in received}),
            Counter(dict(any_waiting)),
            dict(largest),
        )


@dataclass(frozen=True, slots=True)
class Drain:
    """A completion: ``source`` releases a receive, or (-1) ``destination`` swallows a message."""

    source: int
    destination: int
    tag: str
    num_bytes: int


def plan_drains(counts: Sequence[PostedCounts]) -> list[Drain]:
    """Drains that complete every posted send and receive. A pure function of the counts."""
    n = len(counts)
    drains: list[Drain] = []
    tags = sorted(
        {tag for t in counts for _, tag in (*t.sent, *t.received)}
        | {g for t in counts for g in t.any_waiting}
    )
    for tag in tags:
        largest = max((t.largest.get(tag, 0) for t in counts), default=0)
        for destination, own in enumerate(counts):
            surplus = 0
            for source in range(n):
                more = counts[source].sent[destination, tag] - own.received[source, tag]
                surplus += max(more, 0)
                drains += [Drain(source, destination, tag, 1)] * max(-more, 0)
            waiting = own.any_waiting[tag]
            drains += [Drain((destination - 1) % n, destination, tag, 1)] * max(waiting - surplus, 0)
            drains += [Drain(-1, destination, tag, largest)] * max(surplus - waiting, 0)
    return drains
