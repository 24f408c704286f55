"""The ranks of a job do one run after another, in groups of any size, and end together."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import parse
from tests.support import job_sessions
from tests.support.cluster_pool import ask_once


def predicted(workers: int) -> str:
    (run,) = simulate(parse(job_sessions.SCENARIO.format(workers=workers, steps=6)))
    return run.digest


def test_runs_of_any_size_have_the_simulators_bits_and_all_ranks_end_alike() -> None:
    answers, *others = ask_once(3, job_sessions.session, sizes=[3, 2, 3])
    assert others == [3, 3]
    assert [each[:3] for each in answers] == [["completed", 6, predicted(n)] for n in (3, 2, 3)]


@pytest.mark.parametrize(
    ("when", "steps", "messages"),
    [
        ("idle", 6, ["", "worker 2 was lost", "a run has failed"]),
        ("running", 100, ["", "worker 2 was lost", "a run has failed"]),
    ],
)
def test_a_rank_that_dies_ends_the_runs_and_nobody_hangs(when: str, steps: int, messages: list[str]) -> None:
    answers: Any
    answers, other, dead = ask_once(3, job_sessions.session, sizes=[3, 3, 3], dying=2, when=when, steps=steps)
    assert (other, dead) == (3, None)
    assert answers[0][0] == "completed"
    assert [words in each[3] for words, each in zip(messages, answers, strict=True)] == [True] * 3
    assert answers[1][0] == ("none" if when == "idle" else "partial")


def test_the_others_notice_that_the_first_worker_died() -> None:
    dead, *others = ask_once(3, job_sessions.session, sizes=[3, 3], dying=0, when="idle")
    assert dead is None
    assert others == ["worker 0, which gives the orders, was lost"] * 2
