"""Schedules: the messages of a collective, round by round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ..config.free_memory import free_bytes
from ..config.limits import MAX_MESSAGES
from ..config.units import format_bytes
from ..errors import RunError

_MESSAGE_BYTES: Final = 600
"""Approximate memory of one message while a collective is laid out."""
_FEW_MESSAGES: Final = 100_000
"""Collectives of up to this many messages always fit."""


@dataclass(frozen=True, slots=True)
class Round:
    """One round of a rank: all its receives are posted, then all its sends.

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

    Two workers swap 100 bytes:

    >>> swap = Schedule(
    ...     rounds=(
    ...         (Round(receives=((1, 100),), sends=((1, 100),)),),
    ...         (Round(receives=((0, 100),), sends=((0, 100),)),),
    ...     ),
    ...     window=1,
    ... )
    >>> [sum(size for one in rounds for _, size in one.sends) for rounds in swap.rounds]
    [100, 100]

    Attributes:
        rounds: ``rounds[rank]`` in order; ranks may have different numbers of them.
        window: how many rounds of one rank are in flight. Its round i begins when its rounds up to i - window
            are complete: 1 is strictly in order.
    """

    rounds: tuple[tuple[Round, ...], ...]
    window: int


def split_evenly(num_bytes: int, pieces: int) -> list[int]:
    """Split ``num_bytes`` into integer sizes that differ by at most one."""
    return [(k + 1) * num_bytes // pieces - k * num_bytes // pieces for k in range(pieces)]


def refuse_many(name: str, ranks: int, messages: int) -> None:
    """Raise ``RunError``, before allocation, for more than ``MAX_MESSAGES`` or than fit into free memory."""
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
