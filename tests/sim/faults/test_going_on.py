"""Runs that go on without workers that fail: what a scenario may ask for, and ``on_fault: skip``."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.sim.errors import InputError
from paceline.sim.experiments.prepare import churn_of, prepare
from paceline.sim.faults.goodput import goodput
from paceline.sim.faults.outages import Absences
from tests.sim.faults.test_runs_with_faults import runs_of, scenario

FAULT = {"workers": [1], "at": "1 s", "back_after": "1 s"}


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"ad_psgd": {"on_fault": "shrink"}}, "shrink is not for this scheme with these options"),
        ({"all_reduce": {"part_reduce": True, "on_fault": "shrink"}}, "shrink is not for this scheme"),
        ({"all_reduce": {"quorum": 2, "on_fault": "shrink"}}, "shrink is not for this scheme"),
        ({"gossip": {"topology": "hypercube", "on_fault": "shrink"}}, "power of 2|power of two"),
        ({"all_reduce": {"on_fault": "skip"}}, "give a quorum or a deadline too"),
        ({"all_reduce": {"on_fault": "shrinks"}}, "did you mean 'shrink'"),
    ],
)
def test_policies_that_do_not_fit(entry: dict[str, Any], error: str) -> None:
    with pytest.raises((InputError, ValueError), match=error):
        scenario(cluster={"faults": [FAULT]}, schemes=[entry])


def test_who_collects_averages_cannot_be_skipped() -> None:
    fault = {"at": "1 s", "back_after": "1 s"}
    with pytest.raises((InputError, ValueError), match="worker 0, which collects the averages"):
        scenario(cluster={"faults": [fault]}, schemes=[{"all_reduce": {"quorum": 2, "on_fault": "skip"}}])


def test_skip_begins_a_computation_anew_and_leaves_its_worker_out() -> None:
    """By hand: steps of 1 s, a deadline of 1.5 s, and of three workers one that fails at 1.5 s for 1.75 s.

    Its second gradient begins anew at 3.25 and ends at 4.25, and is dropped: the rounds of 1 and 2.5 s end at
    2.5 and 4 s without it. The next one waits for its third gradient, of 4.25 to 5.25 s; 6.25, 7.25.
    """
    faults = [{"workers": [2], "at": "1.5 s", "back_after": "1.75 s"}]
    network = {"latency": "0 s", "bandwidth": "1000000 Gbit/s"}
    drawn = scenario(
        cluster={"workers": 3, "network": network, "compute": {"time": "1 s"}, "faults": faults},
        stop={"max_iterations": 6},
        schemes=[{"all_reduce": {"deadline": "1.5 s", "on_fault": "skip"}}],
    )
    (run,) = runs_of(drawn)
    assert run.wall_clock_s == pytest.approx(7.25, rel=1e-6)
    assert run.faults == {
        "outages": 1,
        "down_s": pytest.approx(1.75 / 3),
        "repeated_s": pytest.approx(0.5 / 3),
        "writing_s": 0.0,
    }
    assert run.left_out[2] == (2, 6)


@given(st.integers(0, 1000))
@settings(max_examples=10)
def test_a_computation_ends_after_its_outages(seed: int) -> None:
    """More outages end no computation earlier, and none ends while its worker is away."""
    fault = {"mean_time_between": "3 s", "back_after": "700 ms"}
    faults = [{"workers": [1], **fault}, {"workers": [1, 2], **fault}]
    ends = []
    for some in ([], faults[:1], faults):
        drawn = scenario(
            seed=seed,
            cluster={"workers": 3, "faults": some},
            schemes=[{"all_reduce": {"quorum": 2, "on_fault": "skip"}}],
        )
        churn = churn_of(drawn, drawn.schemes[0], seed)
        now_s, mine = 0.0, []
        absences = None if churn is None else Absences(churn, 1)
        for index in range(20):
            now_s = now_s + 1.0 if absences is None else absences.end_s(index, now_s, 1.0)
            mine.append(now_s)
        ends.append(mine)
        if churn is not None:
            away = list(itertools.islice(churn.outages(1), 20))
            assert not any(each.at_s < end_s < each.back_s for each in away for end_s in mine)
    assert all(a <= b <= c for a, b, c in zip(*ends, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [
        {"local_sgd": {"period": 8, "on_fault": "shrink"}},
        {"gossip": {"topology": "ring", "on_fault": "shrink"}},
        {"all_reduce": {"quorum": 4, "on_fault": "skip"}},
    ],
    ids=["round", "step", "skip"],
)
def test_goodput_of_a_long_run_is_that_of_a_simulated_one(entry: dict[str, Any]) -> None:
    fault = {"mean_time_between": "40 s", "back_after": "4 s", "detect": "500 ms"}
    drawn = scenario(
        cluster={
            "workers": 6,
            "compute": {"time": "100 ms"},
            "faults": [fault | {"workers": [1, 2, 3, 4, 5]}],
        },
        workload={"timing_only": True, "payload": "1 MB"},
        evaluate={},
        schemes=[entry],
        stop={"max_iterations": 4000},
        events="none",
    )
    (run,) = runs_of(drawn)
    job = prepare(drawn, drawn.schemes[0], 0)
    assert run.faults is not None
    assert job.churn is not None
    step_s = run.wall_clock_s / 4000
    outages = 5 * run.wall_clock_s / 44  # as many as expected; the draws have their own number
    lost = (
        (1 - goodput(job.churn, [step_s] * 6, [step_s], step_s / 2, job.cycle * step_s))
        * run.faults["outages"]
        / outages
    )
    assert (run.faults["down_s"] + run.faults["repeated_s"]) / run.wall_clock_s == pytest.approx(
        lost, rel=0.07
    )
