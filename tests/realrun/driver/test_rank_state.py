"""Checkpoints of ranks, and alarms of one that was stopped."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.realrun.driver.rank_log import Exchange, Exposure, RankLog
from paceline.realrun.driver.rank_state import Life, Loop
from paceline.sim.errors import SchemeError
from paceline.sim.program.worker import State
from paceline.sim.records.run import Counts


def _log(rank: int) -> RankLog:
    log = RankLog(rank, torch.arange(3.0), counts=Counts(steps=4, bytes_sent=70, sent_to={1: 70}))
    log.exposures.append(Exposure(0.5, 0.25, Exchange("mix 3", (1,)), 0.6))
    log.timing.gradients = 5
    return log


def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path) -> None:
    kept = (torch.ones(3), State(4, (torch.zeros(3),)), 7, None, (0.5, "text"))
    Life(str(tmp_path)).save(4, 1, kept, _log(0))
    (x, state, *rest), log = Life(str(tmp_path), first_step=4).load(0)
    assert torch.equal(x, kept[0])
    assert isinstance(state, State)
    assert (state.updates, rest) == (4, [7, None, (0.5, "text")])
    assert (log.counts, log.timing.gradients) == (_log(0).counts, 5)
    assert log.exposures[0].exchange == Exchange("mix 3", (1,))


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2)), max_size=20))
def test_a_checkpoint_counts_once_all_have_written_it(written: list[tuple[int, int]]) -> None:
    whole = [steps for steps in range(1, 6) if {(steps, rank) for rank in range(3)} <= {*written}]
    with tempfile.TemporaryDirectory() as folder:
        for steps, rank in written:
            (Path(folder) / f"{steps}.state-{rank}").touch()
        for rank in range(3):
            (Path(folder) / f"9.part-{rank}").touch()
        assert Life(folder).last_checkpoint(3) == max(whole, default=0)


def test_a_scheme_that_keeps_nothing_has_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(SchemeError, match="publish what it resumes from"):
        Life(str(tmp_path)).save(2, 1, (), _log(0))
    assert not [*tmp_path.iterdir()]


def test_older_checkpoints_are_removed_once_a_later_one_is_complete(tmp_path: Path) -> None:
    life = Life(str(tmp_path))
    for steps in (2, 4):
        life.save(steps, 2, (1,), _log(0))
    assert life.last_checkpoint(2) == 0
    life.save(2, 2, (1,), _log(1))
    life.save(4, 2, (1,), _log(1))
    assert life.last_checkpoint(2) == 4
    assert {path.name for path in tmp_path.iterdir()} == {"2.state-0", "4.state-0", "4.state-1"}


@given(st.lists(st.floats(1e3, 1e4), min_size=1, max_size=9), st.floats(0, 1e3))
def test_alarms_are_put_off_in_their_order(times_s: list[float], by_s: float) -> None:
    loop, rung = Loop(0.0), []
    for time_s in times_s:
        loop.alarm(time_s, lambda time_s=time_s: rung.append(time_s))  # type: ignore[misc]
    loop.postpone(by_s)
    assert loop.next_s == pytest.approx(min(times_s) + by_s)
    while (call := loop.due(2e4)) is not None:
        call()
    assert rung == sorted(times_s)
