"""Users' all-reduces: functions of (workers, bytes) that return a ``Schedule``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache

from ..config.problems import format_value
from ..config.user_code import call as user_code
from ..errors import Deadlock, InputError, quote
from .collective import Schedule, of_rounds
from .pricing import lay_out


def users_all_reduce(name: str) -> Callable[[int, int], Schedule]:
    """Load the all-reduce at ``package.module:name``, a function of (workers, bytes).

    Its schedules are checked for unreceived messages and circular waits. Raises ``InputError`` if there is no
    such function; the all-reduce raises it for a wrong schedule.
    """
    function = user_code.load_object(name)  # refuse a missing one at once
    if not callable(function):
        raise InputError(
            f"{quote(name)} is {format_value(function)}; it must be a function of (workers, bytes)"
        )
    return _users(name, function)


@lru_cache(maxsize=64)
def _users(name: str, function: Callable[..., object]) -> Callable[[int, int], Schedule]:
    """Cache the algorithm; ``function`` is part of the key because its name may be redefined."""

    @cache
    def checked(workers: int, num_bytes: int) -> Schedule:
        arguments = {"workers": workers, "bytes": num_bytes}
        schedule = user_code.call(name, arguments, user_code.instance_of(Schedule), "a paceline.Schedule")
        who = user_code.format_call(name, arguments)
        with user_code.report_errors(f"a look at the schedule that {who} returned"):
            why = _find_mistake(schedule, workers)
        if why:
            raise InputError(f"{who} returned a schedule {why}{user_code.format_place(function)}")
        return schedule

    return checked


def _find_mistake(schedule: Schedule, workers: int) -> str:
    if len(schedule.rounds) != workers:
        return f"with rounds for {len(schedule.rounds)} workers"
    if type(schedule.window) is not int or schedule.window < 1:
        return f"whose window is {format_value(schedule.window)}; it must be a whole number from 1"
    sent: Counter[tuple[int, int, int]] = Counter()
    received: Counter[tuple[int, int, int]] = Counter()
    for rank, rounds in enumerate(schedule.rounds):
        for one in rounds:
            for peer, size in (*one.sends, *one.receives):
                if type(peer) is not int or not 0 <= peer < workers or peer == rank:
                    return f"in which {rank} has a message from or to {format_value(peer)}"
                if type(size) is not int or size < 0:
                    return f"with a message of {format_value(size)}; its bytes must be a whole number from 0"
            sent.update((rank, peer, size) for peer, size in one.sends)
            received.update((peer, rank, size) for peer, size in one.receives)
    for source, destination, size in (sent - received) + (received - sent):
        return (
            f"in which, of the messages of {size} bytes from {source} to {destination}, "
            f"{sent[source, destination, size]} are sent and {received[source, destination, size]} received"
        )
    try:
        lay_out(of_rounds(schedule))
    except Deadlock as error:
        return f"that cannot be carried out: {error}"
    return ""
