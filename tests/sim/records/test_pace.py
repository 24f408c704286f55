"""What decides the time of a step, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.records.accounting import PaceMarks
from paceline.sim.records.rows import run_of
from paceline.sim.records.run import Pace
from paceline.sim.records.summarise import summarise
from paceline.sim.records.summary import unevenness
from tests.support.made_runs import made_run


def marks_of(steps: list[tuple[int, float]], cycle: int, in_step: bool) -> PaceMarks:
    """Two workers' steps, as (worker, time); worker 1 sends 10 bytes in each of its own."""
    marks, done = PaceMarks(2, cycle, in_step), [0, 0]
    for rank, time_s in steps:
        marks.publish(rank, done[rank], time_s, 10 * rank * (done[rank] + 1))
        done[rank] += 1
    return marks


def test_the_first_to_be_through_ends_it_where_nobody_waits() -> None:
    marks = marks_of([(0, 1.0), (0, 2.0), (1, 2.5), (0, 3.0), (0, 4.0), (1, 5.0), (1, 7.5)], 4, in_step=False)
    pace = marks.last()
    assert pace == Pace(4.0, (4.0, 1.6), (0.0, 1.6), 16.0)  # worker 1 is at 1.5 of the 2.5 s of its second
    assert pace.step_s == pytest.approx(4 / 2.8)
    assert pace.average_s == [None, 2.5]
    assert pace.shares == pytest.approx([4 / 5.6, 1.6 / 5.6])
    assert unevenness(pace.shares) == pytest.approx(2.5)


def test_the_last_to_be_through_ends_it_where_all_keep_step() -> None:
    marks = marks_of([(0, 1.0), (0, 2.0), (1, 2.5), (1, 5.0)], 2, in_step=True)
    assert marks.last() == Pace(5.0, (2.0, 2.0), (0.0, 2.0), 20.0)


@pytest.mark.parametrize("in_step", [True, False])
def test_a_run_that_is_cut_off_counts_up_to_its_last_step(in_step: bool) -> None:
    marks = marks_of([(0, 1.0), (1, 1.0), (0, 2.0)], 100, in_step)
    assert marks.last() == Pace(2.0, (2.0, 1.0), (0.0, 1.0), 10.0)
    assert marks_of([], 100, in_step).last().step_s is None


def test_steps_of_one_instant_count_whole_in_any_order() -> None:
    one, other = (marks_of([*each, (0, 2.0), (1, 2.0)], 1, in_step=False) for each in (
        [(0, 1.0), (1, 1.0 + 1e-12)], [(1, 1.0), (0, 1.0)],
    ))  # fmt: skip
    assert one.at(1).steps == other.at(1).steps == (1.0, 1.0)
    assert one.at(2).since(one.at(1)).step_s == 1.0


def test_who_is_gone_has_done_what_it_had() -> None:
    marks = marks_of([(1, 0.5), *((0, float(each)) for each in range(1, 9))], 8, in_step=False)
    assert not marks.is_known(1)
    assert marks.at(1).steps == (8.0, 1.0)


STRETCH = [0.0, 1.0, 3.0]
"""Ends of two cycles in turn, of 1 s and 2 s, by worker 0; worker 1 comes half a second later."""


def in_turn(cycles: int, late_s: float = 0.5) -> list[tuple[int, float]]:
    ends = [5 + 3.0 * (k // 2) + STRETCH[k % 2 + 1] for k in range(cycles)]
    return [step for end_s in [2.0, *ends] for step in ((0, end_s), (1, end_s + late_s))]


@given(st.integers(0, 40))
def test_ends_that_repeat_are_known_from_a_few(number: int) -> None:
    whole = marks_of(in_turn(41), 1, in_step=True)
    few = marks_of(in_turn(6), 1, in_step=True)
    assert few.repeat()
    assert few.is_known(10**6)
    assert few.at(number) == whole.at(number)


def test_ends_that_may_not_repeat_are_waited_for() -> None:
    assert not marks_of(in_turn(5), 1, in_step=True).repeat()  # the period, and two ends more
    slipping = [
        (rank, float(k) * (1 + 1e-9 * rank)) for k in range(1, 40) for rank in range(2)
    ]  # worker 1 comes later each time
    assert not marks_of(slipping, 1, in_step=True).repeat()
    ahead = [(0, float(k)) for k in range(1, 9)] + [(1, float(k)) for k in range(1, 3)]
    marks = marks_of(ahead, 1, in_step=True)  # worker 0 runs ahead: its ends alone say nothing
    assert not marks.repeat()
    assert not marks.is_known(3)


def test_other_bytes_are_another_cycle() -> None:
    marks = PaceMarks(1, 1, in_step=True)
    for k in range(30):
        marks.publish(0, k, k + 1.0, k * k)
    assert not marks.repeat()


def test_older_runs_have_the_time_of_a_step_of_their_day() -> None:
    run = made_run("a", reached_s=None)
    assert run.step_s == 0.1
    newer = replace(run, pace=Pace(5.0, (100.0, 50.0), (0.0, 50.0)))
    row = summarise("s", [newer])["runs"][0]
    assert row["step_s"] == newer.step_s == pytest.approx(5 / 75)
    assert run_of(row, (), ()).pace == newer.pace


def test_no_winner_by_steps_that_are_unlike() -> None:
    uneven, even = Pace(5.0, (100.0, 40.0), (0.0, 0.0)), Pace(10.0, (70.0, 70.0), (0.0, 0.0))
    runs = [
        replace(made_run(label, reached_s=None), pace=pace) for label, pace in (("a", uneven), ("b", even))
    ]
    found = summarise("s", runs)
    assert found["winner"] is None
    assert "no winner by time per step alone: a is ahead, 2.0x" in found["verdict"]["text"]
    # Who is ahead with as many steps of each worker is.
    ahead = replace(runs[1], pace=replace(even, time_s=1.0))
    assert summarise("s", [runs[0], ahead])["winner"] == "b"
    # A target is met by whoever meets it.
    met = [
        replace(run, reached_target=True, time_to_target_s=run.wall_clock_s / (1 + (run.label == "a")))
        for run in runs
    ]
    assert summarise("s", met)["winner"] == "a"
