"""What a collective sends and receives, round by round, and how long its critical path takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from ..config.free_memory import free_bytes
from ..config.limits import MAX_MESSAGES
from ..config.units import format_bytes
from ..errors import Deadlock, RunError

_MESSAGE_BYTES: Final = 600
"""Bytes that a message of a collective takes while it is laid out, roughly."""
_FEW_MESSAGES: Final = 100_000
"""So many always fit."""


@dataclass(frozen=True, slots=True)
class Round:
    """What one rank does at once: all its receives are posted, then all its sends.

    It is complete when each message has arrived or left.

    Attributes:
        receives: (source, bytes) of each message.
        sends: (destination, bytes) of each message.
    """

    receives: tuple[tuple[int, int], ...]
    sends: tuple[tuple[int, int], ...]


@dataclass(frozen=True, eq=False)
class Schedule:
    """The messages of one collective.

    Two workers swap 100 bytes, on links that carry 100 bytes a second:

    >>> swap = Schedule(
    ...     rounds=(
    ...         (Round(receives=((1, 100),), sends=((1, 100),)),),
    ...         (Round(receives=((0, 100),), sends=((0, 100),)),),
    ...     ),
    ...     window=1,
    ... )
    >>> critical_path_s(swap, latency_s=0.5, bandwidth_bytes_per_s=100.0)
    1.5

    Attributes:
        rounds: ``rounds[rank]`` in order; ranks may have different numbers of them.
        window: how many rounds of one rank are in flight. Its round i starts when its rounds up to i - window
            are complete: 1 is strictly in order.
    """

    rounds: tuple[tuple[Round, ...], ...]
    window: int


@dataclass(frozen=True)
class RankRounds:
    """The rounds of one rank in a collective, in order, and the ``window`` of its schedule."""

    rounds: tuple[Round, ...]
    window: int

    @cached_property
    def bytes_sent(self) -> int:
        """Bytes that the rank sends."""
        return sum(size for one in self.rounds for _, size in one.sends)


@lru_cache(maxsize=256)
def among(schedule: Schedule, members: tuple[int, ...]) -> Mapping[int, RankRounds]:
    """A collective of some ranks only: ``schedule`` with its ranks renamed.

    Args:
        schedule: of as many ranks as there are members.
        members: the ranks that take part; member i plays the part of rank i.

    Returns:
        For each member its own rounds.
    """
    renamed: dict[Round, Round] = {}
    for rounds in schedule.rounds:
        for one in rounds:
            if one not in renamed:
                renamed[one] = Round(
                    tuple((members[peer], size) for peer, size in one.receives),
                    tuple((members[peer], size) for peer, size in one.sends),
                )
    return {
        member: RankRounds(tuple(renamed[one] for one in rounds), schedule.window)
        for member, rounds in zip(members, schedule.rounds, strict=True)
    }


def split_evenly(num_bytes: int, pieces: int) -> list[int]:
    """The sizes of so many pieces of ``num_bytes``: whole numbers, as equal as can be."""
    return [(k + 1) * num_bytes // pieces - k * num_bytes // pieces for k in range(pieces)]


def refuse_many(name: str, ranks: int, messages: int) -> None:
    """Refuse a collective whose messages nobody could follow, before memory is taken for them.

    Raises:
        RunError: it has more than ``MAX_MESSAGES``, or they would not fit into the memory that is free.
    """
    if messages <= _FEW_MESSAGES:
        return
    needed, free = float(messages * _MESSAGE_BYTES), free_bytes()
    if messages <= MAX_MESSAGES and needed <= free:
        return
    why = (
        f"at most {MAX_MESSAGES:,} are followed"
        if messages > MAX_MESSAGES
        else f"they need about {format_bytes(needed)} of memory, and {format_bytes(free)} are free"
    )
    raise RunError(
        f"{name} among {ranks:,} workers has {messages:,} messages; {why}: use smaller groups, or for "
        "all-reduces another algorithm (collectives.all_reduce, auto on transport ideal)"
    )


def critical_path_s(schedule: Schedule, latency_s: float, bandwidth_bytes_per_s: float) -> float:
    """Seconds that a schedule takes on equal hosts behind one non-blocking switch, if all begin together.

    A transfer's bytes start when both sides have reached its round (rendezvous; the announcement takes no
    time). It has left after bytes / bandwidth and has arrived ``latency_s`` later. Each host's access link is
    full duplex.

    Exact where no access link has two transfers at once in one direction, as with a window of 1 and rounds of
    one message each way. Elsewhere the transfers of one direction are taken one after another, in the order
    of the rounds; sharing the link fairly (as the event driver does) can take longer or shorter.

    Args:
        schedule: any table whose sends and receives match.
        latency_s: one way, end to end.
        bandwidth_bytes_per_s: of every access link, each way.

    Raises:
        Deadlock: some rounds can never be reached.
    """
    hosts = [_Host(rounds, schedule.window) for rounds in schedule.rounds]
    # Senders whose next transfer may have become possible.
    retry = list(range(len(hosts)))
    while retry:
        rank = retry.pop()
        sender = hosts[rank]
        if not sender.can_send():
            continue
        i, peer, num_bytes = sender.sends[sender.num_sent]
        receiver = hosts[peer]
        if not receiver.can_receive() or receiver.receives[receiver.num_received][1] != rank:
            continue
        j = receiver.receives[receiver.num_received][0]
        left_s = num_bytes / bandwidth_bytes_per_s + max(
            sender.reached_s[i], receiver.reached_s[j], sender.up_free_s, receiver.down_free_s
        )
        sender.up_free_s = receiver.down_free_s = left_s
        sender.num_sent += 1
        receiver.num_received += 1
        sender.complete(i, left_s)
        receiver.complete(j, left_s + latency_s)
        retry += [rank, peer]
        retry += [host.receives[host.num_received][1] for host in (sender, receiver) if host.can_receive()]
    blocked = tuple(
        f"worker {rank} in round {host.first_open} of {len(host.open)}"
        for rank, host in enumerate(hosts)
        if host.first_open < len(host.open)
    )
    if blocked:
        raise Deadlock(blocked)
    return max(host.done_s for host in hosts)


class _Host:
    """One rank on its way through its rounds."""

    def __init__(self, rounds: tuple[Round, ...], window: int) -> None:
        self.sends = [(i, *message) for i, one in enumerate(rounds) for message in one.sends]
        self.receives = [(i, *message) for i, one in enumerate(rounds) for message in one.receives]
        self.num_sent = self.num_received = 0
        self.up_free_s = self.down_free_s = 0.0
        self.open = [len(one.sends) + len(one.receives) for one in rounds]  # messages not through, per round
        self.ended_s = [0.0] * len(rounds)
        self.reached_s = [0.0] * min(window, len(rounds))  # of the rounds reached so far
        self.first_open = 0
        self.done_s = 0.0  # when all rounds before first_open were complete
        self._advance()

    def can_send(self) -> bool:
        return self.num_sent < len(self.sends) and self.sends[self.num_sent][0] < len(self.reached_s)

    def can_receive(self) -> bool:
        return self.num_received < len(self.receives) and self.receives[self.num_received][0] < len(
            self.reached_s
        )

    def complete(self, i: int, time_s: float) -> None:
        """Count one message of round i as through."""
        self.open[i] -= 1
        self.ended_s[i] = max(self.ended_s[i], time_s)
        self._advance()

    def _advance(self) -> None:
        while self.first_open < len(self.open) and self.open[self.first_open] == 0:
            self.done_s = max(self.done_s, self.ended_s[self.first_open])
            self.first_open += 1
            if len(self.reached_s) < len(self.open):
                self.reached_s.append(self.done_s)
