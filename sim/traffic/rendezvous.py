"""The two sides of a transfer, and their posts until they match."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

Tag = str | tuple[str, int, int]


class TransferSide(Protocol):
    """One end of a transfer, notified of its completion."""

    def sent(self, time_s: float, peer_s: float) -> None:
        """The send is complete at ``time_s`` (now or later); the receive was posted at ``peer_s``."""

    def received(self, slot: int, sender: Any, source: int, time_s: float, peer_s: float) -> None:
        """The message of ``sender`` arrives at ``time_s`` (now or later); it was posted at ``peer_s``."""


@dataclass(slots=True, eq=False)
class Notice:
    """A receiver's announcement in transit to the sender; ``then`` is called with its arrival time."""

    arrival_s: float | None = None
    then: Callable[[float], None] | None = None

    def arrives(self, time_s: float) -> None:
        """Set the time of arrival."""
        self.arrival_s = time_s
        then, self.then = self.then, None  # breaks a reference cycle
        if then is not None:
            then(time_s)


Announced = float | Notice
"""Time at which the sender learns of a receive."""


@dataclass(slots=True, init=False, eq=False)
class Transfer:
    """A send and its receive: the side posted first creates it, the other side fills in its fields.

    Attributes:
        sender, sender_s: the sending end, and when it posted the send.
        num_bytes: of the message, which stays with its sender.
        receiver, receiver_s: the receiving end, and when it posted the receive.
        slot: the receiver's number of it.
        announced: when the sender learns of the receive.
        source, destination: hosts, once the transfer begins.
        plain: no announcement, message overhead or stream applies.
        latency_s, links, cap, weight: of the route; ``cap`` in bytes/s, the weight as in ``FairSharing``.
    """

    sender: TransferSide
    sender_s: float
    num_bytes: float
    receiver: TransferSide
    receiver_s: float
    slot: int
    announced: Announced
    source: int
    destination: int
    plain: bool
    latency_s: float
    links: tuple[int, ...]
    cap: float
    weight: int


@dataclass(slots=True, eq=False)
class Posted:
    """Unmatched posts of one tag, by source * n + destination, oldest first.

    ``known``: by destination, the sources of sends it has learnt of; only once it has received from anybody.
    """

    # Lists, few longer than one and none empty: deques of all pairs would fill the processor's cache.
    sends: dict[int, list[Transfer]] = field(default_factory=dict)
    receives: dict[int, list[Transfer]] = field(default_factory=dict)
    known: dict[int, deque[int]] | None = None


def take_first(posted: dict[int, list[Transfer]], key: int) -> Transfer | None:
    """Remove and return the oldest post under ``key``, or None."""
    waiting = posted.pop(key, None)
    if waiting is None:
        return None
    first = waiting.pop(0)
    if waiting:
        posted[key] = waiting
    return first


def post_send(
    box: Posted,
    key: int,
    side: TransferSide,
    now_s: float,
    num_bytes: float,
    plain: bool,
) -> Transfer | None:
    """Post a send; the transfer if its receive has been posted."""
    matched = take_first(box.receives, key)
    transfer = matched or Transfer()
    transfer.sender, transfer.sender_s = side, now_s
    transfer.num_bytes, transfer.plain = num_bytes, plain
    if matched is None:
        box.sends.setdefault(key, []).append(transfer)
    return matched


def post_receive(
    box: Posted, key: int, side: TransferSide, now_s: float, slot: int, announced: Announced
) -> Transfer | None:
    """Post a receive; the transfer if its send has been posted."""
    matched = take_first(box.sends, key)
    transfer = matched or Transfer()
    transfer.receiver, transfer.receiver_s = side, now_s
    transfer.slot, transfer.announced = slot, announced
    if matched is None:
        box.receives.setdefault(key, []).append(transfer)
    return matched


def forget(posted: dict[int, list[Transfer]], is_lost: Callable[[Transfer], bool]) -> None:
    """Remove all lost transfers from ``posted``."""
    for key, waiting in list(posted.items()):
        waiting[:] = [each for each in waiting if not is_lost(each)]
        if not waiting:
            del posted[key]


class Posts(defaultdict[Tag, Posted]):
    """Unmatched posts by tag."""

    def drop(self, side: TransferSide) -> None:
        """Forget all posts of ``side``."""
        for box in self.values():  # ``known`` stays: its receiver is dead
            forget(box.sends, lambda send: send.sender is side)
            forget(box.receives, lambda receive: receive.receiver is side)

    def waiting_for(self, host: int, hosts: int) -> list[TransferSide]:
        """Sides with posts to or from ``host``, one of ``hosts``."""
        sides: dict[TransferSide, None] = {}
        for box in self.values():
            for key, sends in box.sends.items():
                if key % hosts == host:
                    sides |= dict.fromkeys(send.sender for send in sends)
            for key, receives in box.receives.items():
                if key // hosts == host:
                    sides |= dict.fromkeys(receive.receiver for receive in receives)
        return list(sides)
