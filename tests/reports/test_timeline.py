from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pandas as pd

from paceline.reports.figures.activities import shown_span_s, timeline_rows
from paceline.sim.records.run import Event
from tests.support.made_runs import made_event


def frame(events: Sequence[Event]) -> pd.DataFrame:
    return pd.DataFrame([asdict(event) for event in events])


def test_an_exchange_is_split_where_the_last_peer_had_started() -> None:
    events = [
        made_event(0, operation="gradient", start_s=0.0, end_s=1.0),
        made_event(0, operation="all_reduce", start_s=1.0, peer_s=1.5, end_s=2.0),
    ]
    (row,) = timeline_rows(frame(events), 10.0, 16).values()
    assert row == {
        "compute": [(0.0, 1.0)],
        "wait": [(1.0, 1.5)],
        "communicate": [(1.5, 2.0)],
        "background": [],
    }


def test_a_running_gradient_hides_what_is_awaited_meanwhile() -> None:
    events = [
        made_event(0, operation="gradient", handle=0, start_s=0.0, end_s=3.0),
        made_event(0, operation="send", start_s=0.0, peer_s=1.0, end_s=2.0),
        made_event(0, operation="wait", handle=1, start_s=2.0, peer_s=2.0, end_s=4.0),
    ]
    (row,) = timeline_rows(frame(events), 10.0, 16).values()
    assert row == {"compute": [(0.0, 3.0)], "wait": [], "communicate": [(3.0, 4.0)], "background": []}


def test_started_operations_and_services_lie_beneath() -> None:
    events = [
        made_event(0, operation="receive", handle=1, start_s=0.0, peer_s=1.0, end_s=2.0),
        made_event(0, operation="send", task=1, start_s=4.0, peer_s=4.5, end_s=5.0),
        made_event(0, operation="segment", handle=2, start_s=6.0, end_s=7.0),
    ]
    (row,) = timeline_rows(frame(events), 10.0, 16).values()
    assert row == {"compute": [], "wait": [], "communicate": [], "background": [(1.0, 2.0), (4.5, 5.0)]}


def test_a_gradient_takes_its_part_out_of_what_is_awaited() -> None:
    events = [
        made_event(0, operation="gradient", handle=0, start_s=1.0, end_s=2.0),
        made_event(0, operation="gradient", handle=1, start_s=3.0, end_s=4.0),
        made_event(0, operation="send", start_s=0.0, peer_s=0.0, end_s=3.5),
    ]
    (row,) = timeline_rows(frame(events), 10.0, 16).values()
    assert row["communicate"] == [(0.0, 1.0), (2.0, 3.0)]


def test_sleep_is_waiting() -> None:
    (row,) = timeline_rows(
        frame([made_event(0, operation="sleep", start_s=1.0, end_s=2.0)]), 10.0, 16
    ).values()
    assert row["wait"] == [(1.0, 2.0)]


def test_what_is_shown_is_cut_in_time_and_in_workers() -> None:
    events = [made_event(worker, start_s=start) for worker in (2, 0, 1) for start in (0.0, 1.0)]
    rows = timeline_rows(frame(events), 1.5, 2)
    assert list(rows) == [0, 1]
    assert rows[0]["compute"] == [(0.0, 1.5)]


def steps(length_s: float, number: int, period: int = 1, exchange_s: float = 0.5) -> pd.DataFrame:
    events, now = [], 0.0
    for step in range(number):
        events.append(made_event(0, step, start_s=now, end_s=now + length_s))
        now += length_s
        if (step + 1) % period == 0:
            events.append(made_event(0, step, "all_reduce", start_s=now, end_s=now + exchange_s))
            now += exchange_s
    return frame(events)


def test_the_span_shows_four_steps_of_the_slowest() -> None:
    assert shown_span_s([steps(1.0, 100), steps(0.5, 100)]) == 6.0


def test_the_span_shows_a_first_exchange() -> None:
    assert shown_span_s([steps(1.0, 100, period=10)]) == 10.5


def test_the_span_keeps_the_steps_of_the_fastest_visible() -> None:
    assert shown_span_s([steps(1.0, 100), steps(0.0, 100, exchange_s=0.0625)]) == 40 * 0.0625


def test_the_span_of_nothing() -> None:
    assert shown_span_s([]) == 1.0
