"""Storms of faults measured by others: their model, and that its page is up to date."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import torchft_storm
from benchmarks.shared_gpu_storms.__main__ import MARK, PAGE, table
from benchmarks.shared_gpu_storms.storm import (
    AVERAGE_S,
    EVALUATION_S,
    PERIOD,
    RELAUNCH_S,
    STEP_S,
    Event,
    Storm,
)

WARMUP_S = 90.0


def run(events: list[Event], until_s: float, *, checkpoints: bool = False) -> Storm:
    storm = Storm(events, WARMUP_S, checkpoints=checkpoints)
    storm.run(until_s)
    return storm


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text("utf-8").partition(MARK)[2] == "\n" + table()


def test_without_faults_both_commit_each_round_together() -> None:
    moments = run([], 1000.0).commits
    assert [number for _, number in moments] == [0, 1] * (len(moments) // 2)
    rounds = [moment_s for moment_s, number in moments if number == 0]
    lengths = {round(b - a, 6) for a, b in pairwise(rounds)}
    usual_s = PERIOD * STEP_S[True] + AVERAGE_S
    assert lengths == {round(usual_s, 6), round(usual_s + EVALUATION_S[True], 6)}


@given(at_s=st.floats(0, 400), victim=st.integers(0, 1))
@settings(max_examples=300, deadline=None)
def test_a_survivor_of_one_kill_commits_within_a_round_of_its_own(at_s: float, victim: int) -> None:
    storm = run([Event(at_s, "kill_safe", victim)], 1000.0)
    assert storm.kills == [(at_s, victim)]
    after = [(moment_s - at_s, number) for moment_s, number in storm.commits if moment_s > at_s]
    survivor_s = next(wait_s for wait_s, number in after if number != victim)
    victim_s = next(wait_s for wait_s, number in after if number == victim)
    assert survivor_s <= EVALUATION_S[True] + PERIOD * STEP_S[True] + AVERAGE_S + 1e-6
    assert victim_s > RELAUNCH_S + PERIOD * STEP_S[False]


FAULTS = st.builds(
    Event,
    st.floats(0, 900),
    st.sampled_from(["kill_safe", "stop", "cont", "partition", "heal"]),
    st.integers(0, 1),
)


@given(events=st.lists(FAULTS, max_size=30), checkpoints=st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_storm_ends_and_goes_on_when_it_is_over(events: list[Event], checkpoints: bool) -> None:
    over = [Event(901.0, fault, number) for fault in ("cont", "heal") for number in (0, 1)]
    storm = run([*events, *over], 1500.0, checkpoints=checkpoints)
    assert storm.commits == sorted(storm.commits)
    assert {number for moment_s, number in storm.commits if moment_s > 1200} == {0, 1}


def test_without_torchft_the_real_one_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert torchft_storm.main() == 2
    assert "needs torchft: pip install torchft" in capsys.readouterr().err
    assert torchft_storm.MARK in torchft_storm.PAGE.read_text("utf-8")
