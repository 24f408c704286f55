"""The two sides of a transfer, and what is posted of it until they meet."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..program.encoding import Payload

Tag = str | tuple[str, int, int]


class TransferSide(Protocol):
    """Whoever waits for one side of a transfer."""

    def sent(self, time_s: float, peer_s: float) -> None:
        """The send is complete at ``time_s`` (now or later); the receive was posted at ``peer_s``."""

    def received(self, slot: int, value: Payload | None, source: int, time_s: float, peer_s: float) -> None:
        """The value is there at ``time_s`` (now or later); the send was posted at ``peer_s``."""


class Notice:
    """A receiver's announcement on its way to the sender; ``then`` is called when it is there."""

    __slots__ = ("arrival_s", "then")

    def __init__(self) -> None:
        self.arrival_s: float | None = None
        self.then: Callable[[float], None] | None = None

    def arrives(self, time_s: float) -> None:
        """It is known when it will be there."""
        self.arrival_s = time_s
        then, self.then = self.then, None  # it holds the transfer, which holds this notice
        if then is not None:
            then(time_s)


Announced = float | Notice
"""When the sender knows of a receive."""


@dataclass(slots=True, init=False, eq=False)
class Transfer:
    """A send and its receive: the side that is posted first creates it, the other one adds its fields.

    Attributes:
        sender, sender_s: who waits for the send, which was posted at that time.
        num_bytes, value: what is sent.
        receiver, receiver_s: who waits for the receive, which was posted at that time.
        slot: the receiver's number of it.
        announced: when the sender knows of the receive.
        source, destination: hosts, once the transfer begins.
        plain: neither announcements nor the overhead of messages count, nor any stream.
        latency_s, links, cap, weight: of the route; ``cap`` in bytes/s, the weight as in ``FairSharing``.
    """

    sender: TransferSide
    sender_s: float
    num_bytes: float
    value: Payload | None
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


class Posted:
    """What is posted under one tag and not yet matched: by source * n + destination, oldest first.

    ``known``: by destination, the sources of sends that it knows of; only once it has received from anybody.
    """

    __slots__ = ("known", "receives", "sends")

    def __init__(self) -> None:
        # Few have more than one, and none is empty: deques of all pairs would fill the processor's cache.
        self.sends: dict[int, list[Transfer]] = {}
        self.receives: dict[int, list[Transfer]] = {}
        self.known: dict[int, deque[int]] | None = None


def take_first(posted: dict[int, list[Transfer]], key: int) -> Transfer | None:
    """Take out what was posted first under ``key``; None where nothing is."""
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
    value: Payload | None,
    plain: bool,
) -> Transfer | None:
    """Post a send; the transfer if its receive is there."""
    matched = take_first(box.receives, key)
    transfer = matched or Transfer()
    transfer.sender, transfer.sender_s = side, now_s
    transfer.num_bytes, transfer.value, transfer.plain = num_bytes, value, plain
    if matched is None:
        box.sends.setdefault(key, []).append(transfer)
    return matched


def post_receive(
    box: Posted, key: int, side: TransferSide, now_s: float, slot: int, announced: Announced
) -> Transfer | None:
    """Post a receive; the transfer if its send is there."""
    matched = take_first(box.sends, key)
    transfer = matched or Transfer()
    transfer.receiver, transfer.receiver_s = side, now_s
    transfer.slot, transfer.announced = slot, announced
    if matched is None:
        box.receives.setdefault(key, []).append(transfer)
    return matched


def forget(posted: dict[int, list[Transfer]], is_lost: Callable[[Transfer], bool]) -> None:
    """Take out all of ``posted`` that is lost."""
    for key, waiting in list(posted.items()):
        waiting[:] = [each for each in waiting if not is_lost(each)]
        if not waiting:
            del posted[key]
