"""All-reduce algorithms by name: ours, and the user's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from ..config import user_code
from ..errors import Deadlock, InputError, did_you_mean
from .algorithms import ALL_REDUCE
from .schedule import Schedule, critical_path_s


@cache
def all_reduce_named(name: str) -> Callable[[int, int], Schedule]:
    """The algorithm of a name, or of a function at ``package.module:name`` that takes (workers, bytes).

    What a user's function returns is checked: every message is received, and nobody waits in a circle.

    Raises:
        InputError: there is no such algorithm or function. The algorithm raises it where its table is wrong.
    """
    if not user_code.is_import_path(name):
        if name not in ALL_REDUCE:
            raise InputError(f"unknown choice '{name}'; {did_you_mean(name, ALL_REDUCE)}")
        return ALL_REDUCE[name]
    function: Any = user_code.load_object(name)

    @cache
    def checked(workers: int, num_bytes: int) -> Schedule:
        try:
            schedule = function(workers, num_bytes)
        except user_code.RAISED as error:
            said = user_code.format_error(error)
            raise InputError(f"'{name}' raised {said}; it has to take (workers, bytes)") from error
        _check(schedule, workers, f"'{name}' with {workers} workers and {num_bytes} bytes")
        found: Schedule = schedule
        return found

    return checked


def _check(schedule: object, workers: int, who: str) -> None:
    if not isinstance(schedule, Schedule):
        raise InputError(f"{who} has to return a paceline.Schedule, not {type(schedule).__name__}")
    if len(schedule.rounds) != workers:
        raise InputError(f"{who} returned rounds for {len(schedule.rounds)} workers")
    sent: Counter[tuple[int, int, int]] = Counter()
    received: Counter[tuple[int, int, int]] = Counter()
    for rank, rounds in enumerate(schedule.rounds):
        for one in rounds:
            sent.update((rank, peer, size) for peer, size in one.sends)
            received.update((peer, rank, size) for peer, size in one.receives)
    for source, destination, size in (sent - received) + (received - sent):
        raise InputError(
            f"{who}: of the messages of {size} bytes from {source} to {destination}, "
            f"{sent[source, destination, size]} are sent and {received[source, destination, size]} received"
        )
    try:
        critical_path_s(schedule, 0.0, 1.0)
    except Deadlock as error:
        raise InputError(f"{who}: {error}") from None
