"""The time that faults and checkpoints cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.errors import RunError
from paceline.sim.faults.fault_settings import Checkpoint, Fault, Policy
from paceline.sim.faults.goodput import goodput
from paceline.sim.faults.outages import Churn, Timeline, follow

STEPS = [float(k) for k in range(1, 21)]
"""Twenty steps of a second."""


def timeline(
    faults: Sequence[dict[str, Any]] = (),
    policy: Policy = "wait",
    checkpoint: dict[str, Any] | None = None,
    most_s: float = math.inf,
    units: int = 1,
    seed: int = 0,
) -> Timeline:
    """Of a job of ``STEPS``."""
    read = tuple(Fault.model_validate(each) for each in faults)
    saves = None if checkpoint is None else Checkpoint.model_validate(checkpoint)
    struck = tuple((rank,) for rank in range(units))
    churn = Churn(read, (struck,) * len(read), policy, saves, seed, True, most_s)
    return follow(churn, STEPS, STEPS[-1], most_s)


def test_all_wait_and_repeat_the_step_in_flight() -> None:
    line = timeline([{"at": "5.25 s", "back_after": "3 s", "detect": "1 s"}])
    assert (line.down_s, line.repeated_s, line.wall_s) == (3.0, 0.25, 23.25)
    assert [line.at(each) for each in (5.0, 5.25, 6.0)] == [5.0, 5.25, 9.25]
    assert line.at(5.25, begins=True) == 8.5


def test_a_fault_that_is_seen_late_lasts_until_then() -> None:
    assert timeline([{"at": "5 s", "back_after": "1 s", "detect": "4 s"}]).wall_s == 24.0


def test_a_fault_at_a_step_begins_there() -> None:
    line = timeline([{"at_step": "7 steps", "back_after": "2 s"}])
    assert (line.wall_s, line.repeated_s, line.at(7.0), line.at(8.0)) == (22.0, 0.0, 7.0, 10.0)


def test_faults_that_overlap_end_with_the_last() -> None:
    faults = [{"at": "5 s", "back_after": "3 s"}, {"at": "6 s", "back_after": "5 s"}]
    line = timeline(faults)
    assert (line.outages, line.wall_s) == (2, 26.0)


def test_a_restart_repeats_what_no_checkpoint_has() -> None:
    every = {"every": "4 steps", "write": "500 ms", "restart": "2 s"}
    line = timeline([{"at": "10.5 s", "back_after": "3 s"}], "restart", every)
    # Two checkpoints are written before 9.5 s of work; 8 s of it are in the second.
    assert (line.down_s, line.repeated_s, line.writing_s) == (5.0, 1.5, 2.0)
    assert line.wall_s == 28.5
    by_time = timeline([{"at": "10.5 s", "back_after": "3 s"}], "restart", every | {"every": "4 s"})
    assert by_time.wall_s == line.wall_s


def test_a_fault_during_a_write_leaves_the_former_checkpoint() -> None:
    every = {"every": "4 steps", "write": "500 ms"}
    line = timeline([{"at": "8.75 s", "back_after": "1 s"}], "restart", every)
    assert (line.repeated_s, line.writing_s) == (4.0, 2.25)
    beside = timeline([{"at": "8.25 s", "back_after": "1 s"}], "restart", every | {"blocking": False})
    assert (beside.repeated_s, beside.writing_s) == (4.25, 0.0)
    written = timeline([{"at": "8.75 s", "back_after": "1 s"}], "restart", every | {"blocking": False})
    assert written.repeated_s == 0.75


def test_a_warning_in_which_a_checkpoint_can_be_written_saves_the_work() -> None:
    every = {"every": "10 steps", "write": "500 ms", "restart": "2 s"}
    fault = {"at": "8.25 s", "back_after": "3 s"}
    assert timeline([fault], "restart", every).repeated_s == 8.25
    announced = timeline([fault | {"warning": "500 ms"}], "restart", every)
    assert (announced.down_s, announced.repeated_s, announced.writing_s) == (5.0, 0.5, 0.5)
    assert timeline([fault | {"warning": "499 ms"}], "restart", every).repeated_s == 8.25
    # The regular one, at 10 s of work, is younger.
    late = timeline([{"at": "10.75 s", "back_after": "3 s", "warning": "9 s"}], "restart", every)
    assert late.repeated_s == 0.25


def test_without_a_checkpoint_all_begins_anew() -> None:
    assert timeline([{"at": "19 s", "back_after": "1 s"}], "restart").wall_s == 40.0


def test_a_run_is_cut_off_while_it_is_down() -> None:
    line = timeline([{"at": "5.5 s", "back_after": "10 s"}], most_s=8.0)
    assert (line.work_s, line.down_s, line.repeated_s, line.wall_s) == (5.5, 2.5, 0.0, 8.0)


def test_faults_that_come_too_often_end_the_run() -> None:
    with pytest.raises(RunError, match="too often"):
        timeline(
            [{"mean_time_between": "1 s", "back_after": "0 s"}],
            "restart",
            {"every": "10 s", "restart": "99 s"},
        )


seconds = st.integers(0, 30_000).map(lambda value: f"{value} ms")
drawn = st.one_of(
    st.fixed_dictionaries({"at": seconds, "back_after": seconds, "detect": seconds}),
    st.fixed_dictionaries({"at_step": st.integers(0, 25).map(lambda n: f"{n} steps"), "back_after": seconds}),
    st.fixed_dictionaries(
        {
            "mean_time_between": st.floats(5.0, 100.0).map(lambda value: f"{value!r} s"),
            "shape": st.floats(0.5, 3.0),
            "back_after": st.integers(0, 2000).map(lambda value: f"{value} ms"),
        }
    ),
)
saved = st.none() | st.fixed_dictionaries(
    {
        "every": st.sampled_from(["1 steps", "3 steps", "2.5 s", "7 s"]),
        "write": st.sampled_from(["0 s", "0.3 s"]),
        "restart": st.sampled_from(["0 s", "0.5 s"]),
        "blocking": st.booleans(),
    }
)


@settings(max_examples=200)
@given(st.lists(drawn, max_size=3), st.sampled_from(["wait", "restart"]), saved, st.integers(0, 99))
def test_a_later_moment_comes_later(
    faults: list[dict[str, Any]], policy: Policy, checkpoint: dict[str, Any] | None, seed: int
) -> None:
    line = timeline(faults, policy, checkpoint, most_s=500.0, units=2, seed=seed)
    moments = [k / 4 for k in range(int(4 * line.work_s) + 1)]
    reached = [line.at(each) for each in moments]
    assert all(b - a >= 0.25 - 1e-9 for a, b in pairwise(reached))
    assert all(line.at(each, begins=True) >= line.at(each) >= each for each in moments)
    assert min(line.down_s, line.writing_s) >= 0.0
    assert line.repeated_s >= -1e-9
    assert line.at(line.work_s) <= line.wall_s + 1e-9


@settings(max_examples=100)
@given(st.lists(drawn, max_size=3), saved, st.integers(0, 99))
def test_a_longer_absence_is_never_faster(
    faults: list[dict[str, Any]], checkpoint: dict[str, Any] | None, seed: int
) -> None:
    single = [each for each in faults if "mean_time_between" not in each]
    longer = [each | {"detect": "40 s"} for each in single]
    one, other = (timeline(each, "wait", checkpoint, seed=seed).wall_s for each in (single, longer))
    assert other >= one - 1e-9


timed = st.fixed_dictionaries({"at": seconds, "back_after": seconds, "detect": seconds})


@settings(max_examples=200)
@given(st.lists(timed, max_size=4), timed, st.sampled_from(["wait", "restart"]), saved)
def test_more_outages_never_shorten_a_run(
    faults: list[dict[str, Any]], another: dict[str, Any], policy: Policy, checkpoint: dict[str, Any] | None
) -> None:
    # Elsewhere a fault may move the moments of later checkpoints to better ones.
    checkpoint = checkpoint and checkpoint | {"every": "3 steps", "blocking": True}
    less, more = (timeline(each, policy, checkpoint).wall_s for each in (faults, [*faults, another]))
    assert more >= less - 1e-9


@settings(max_examples=100)
@given(st.lists(timed, max_size=4), st.sampled_from(["1 steps", "3 steps", "2.5 s", "7 s"]), seconds)
def test_a_warning_never_costs_time(faults: list[dict[str, Any]], every: str, warning: str) -> None:
    free = {"every": every, "restart": "500 ms"}  # to write
    warned = [each | {"warning": warning} for each in faults]
    with_it, without = (timeline(each, "restart", free).wall_s for each in (warned, faults))
    assert with_it <= without + 1e-9


@pytest.mark.slow
@pytest.mark.parametrize("between_s", [40.0, 300.0])
def test_goodput_is_the_mean_over_many_runs(between_s: float) -> None:
    faults = [{"mean_time_between": f"{between_s} s", "back_after": "2 s"}]
    every = {"every": "5 steps", "write": "0.2 s", "restart": "1 s"}
    churn = Churn(
        tuple(Fault.model_validate(each) for each in faults),
        (((0,), (1,)),),
        "restart",
        Checkpoint.model_validate(every),
        7,
    )
    walls = [timeline(faults, "restart", every, units=2, seed=seed).wall_s for seed in range(2000)]
    # A run of 20 steps ends without its last checkpoint.
    assert goodput(churn, [1.0] * 2, [1.0], 0.5, 1.0) == pytest.approx(
        20.0 / (sum(walls) / len(walls) + 0.2), rel=0.03
    )
