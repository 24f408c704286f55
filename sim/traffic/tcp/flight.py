"""What a connection lets leave, what is on its way, and what that waits for."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import NamedTuple


class Departure(NamedTuple):
    """What may leave now.

    Attributes:
        num_bytes: of those that wait; 0: nothing before ``not_before_s``.
        cap_bytes_per_s: the most that they may get, ``inf`` where only links limit them.
        not_before_s: when to ask again; inf: once the other direction's bytes have left.
    """

    num_bytes: float
    cap_bytes_per_s: float = inf
    not_before_s: float = -inf


class Queues(NamedTuple):
    """What waits at first-in-first-out links on the way of a connection.

    Attributes:
        there: how long something short waits that leaves at a time, in seconds.
        back: the same of its acknowledgement.
    """

    there: Callable[[float], float]
    back: Callable[[float], float]


class Chunk(NamedTuple):
    """Bytes on their way.

    Attributes:
        acked_s: when their acknowledgement comes, if it does not have to wait.
        num_bytes: how many count for the window.
        in_flight: what was on its way with them.
        waited_s: in queues, before they left.
    """

    acked_s: float
    num_bytes: float
    in_flight: float
    waited_s: float = 0.0
