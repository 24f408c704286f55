"""A rank that gives no sign of life ends the others' waits within the time-out; a slow one does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._C._distributed_c10d import FileStore, Store

from paceline.realrun.group.store import Control, SignsOfLife
from paceline.sim.errors import RunError

PATIENCE_S = 0.8
LONG_S = 300.0


@pytest.fixture
def stores(tmp_path: Path) -> list[Store]:
    return [FileStore(str(tmp_path / "store"), 2) for _ in range(2)]


@pytest.fixture
def lives(stores: list[Store]) -> Iterator[list[SignsOfLife]]:
    both = [SignsOfLife(store, rank, PATIENCE_S, "rank") for rank, store in enumerate(stores)]
    yield both
    for each in both:
        each.close()


def test_a_silent_rank_is_named_within_the_time_out(stores: list[Store], lives: list[SignsOfLife]) -> None:
    lives[1].close()
    with pytest.raises(RunError, match=r"worker 1 has not answered for 0\.8 s: .* \(scenario\)"):
        Control(stores[0], 0, 2, life=lives[0]).meet("scenario", "", LONG_S)


def test_a_slow_rank_has_all_its_time(stores: list[Store], lives: list[SignsOfLife]) -> None:
    others = Control(stores[1], 1, 2, life=lives[1])
    threading.Timer(2.5 * PATIENCE_S, others.put, ("scenario/1", "late")).start()
    assert Control(stores[0], 0, 2, life=lives[0]).meet("scenario", "there", LONG_S) == ["there", "late"]


def test_without_signs_only_the_time_counts(stores: list[Store]) -> None:
    with pytest.raises(RunError, match=r"worker 1 did not come within 0\.1 s \(scenario\)"):
        Control(stores[0], 0, 2).meet("scenario", "", 0.1)


def test_who_was_stopped_itself_accuses_nobody(stores: list[Store], lives: list[SignsOfLife]) -> None:
    """As with Ctrl-Z, which stops all ranks of a terminal."""
    lives[1].close()
    looks = lives[0]
    time.sleep(PATIENCE_S / 8)
    assert looks.silent([1]) == []
    time.sleep(1.2 * PATIENCE_S)  # in which it does not look
    assert looks.silent([1]) == []
