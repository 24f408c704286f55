"""When the last needed peer had started: found out by joining the ranks' rows after a run."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from paceline.sim.records.accounting import Account
from paceline.sim.records.run import Event

from .diary import Diary, Exchange

_AFTERWARDS = frozenset({"wait", "wait_any", "poll", "segment"})
"""Rows about an operation that has a row of its own."""


class Starts:
    """When each worker started its part of each exchange."""

    def __init__(self, diaries: Sequence[Diary]) -> None:
        self._start_s = {
            (diary.rank, row.exchange.key): row.start_s
            for diary in diaries
            for row in diary.rows
            if row.exchange.key and row.operation not in _AFTERWARDS
        }

    def last_s(self, exchange: Exchange, default_s: float) -> float:
        """When the last peer of an exchange started; ``default_s`` where none is known."""
        known = (self._start_s.get((peer, exchange.key)) for peer in exchange.peers)
        return max((time_s for time_s in known if time_s is not None), default=default_s)


def joined_events(diaries: Sequence[Diary], starts: Starts) -> list[Event]:
    """All workers' events with their ``peer_s``, in order of time, each worker's in its own order."""
    columns = []
    for diary in diaries:
        column = []
        for row in diary.rows:
            last_s = starts.last_s(row.exchange, row.start_s)
            column.append(row.event(diary.rank, min(max(last_s, row.start_s), row.end_s)))
        columns.append(column)
    return list(heapq.merge(*columns, key=lambda event: event.end_s))


def account(diary: Diary, starts: Starts) -> Account:
    """A worker's account, with its blocked time split into waiting and communicating."""
    found = Account(diary.rank, diary.bytes_sent, diary.steps, ended_s=diary.ended_s)
    for each in diary.exposures:
        peer_s = starts.last_s(each.exchange, each.peer_s)
        found.blocked(each.start_s, each.start_s + each.exposed_s, peer_s, 0.0)
    return found
