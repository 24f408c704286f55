"""A process of a training job that is killed ends every other one, and they say who was lost."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.attach_jobs import train, train_together
from tests.support.cluster_pool import ask_once

pytestmark = pytest.mark.slow
TIMEOUT_S = 3.0
PAIRS = [[0, 1], [2, 3]]
AT_ONCE = 6
"""Jobs that run beside each other: they wait most of the time."""

GOSSIP = {"gossip": {"topology": "complete"}}


def lost(error: str, worker: int) -> bool:
    """Whether the message says so."""
    return f"worker {worker} was lost" in error or f"worker {worker} does not answer" in error


@pytest.mark.parametrize(
    ("scheme", "operations"),
    [
        (GOSSIP, 9),  # in two steps and the end
        ("ad_psgd", 15),
    ],
)
def test_whenever_a_worker_dies_the_others_end(scheme: Any, operations: int) -> None:
    def ended(at: int) -> list[Any]:
        return ask_once(2, train, scheme=scheme, steps=2, loops=2, timeout_s=TIMEOUT_S, dies=at)

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for at, (dead, other) in enumerate(threads.map(ended, range(operations))):
            assert dead is None, at
            assert lost(other["error"], 0), (at, other["error"])
            assert other["status"] == "partial", at


def test_whichever_rank_of_a_worker_dies_all_ranks_end() -> None:
    def ended(dies: list[int]) -> list[Any]:
        return ask_once(
            4, train_together, scheme=GOSSIP, steps=2, loops=2, teams=PAIRS, wrapper="ddp", batch_size=30,
            timeout_s=TIMEOUT_S, dies=dies,
        )  # fmt: skip

    leaders = [[2, at] for at in range(0, 9, 2)]
    members = [[3, 0], [3, 1], [1, 1]]
    with ThreadPoolExecutor(AT_ONCE) as threads:
        for dies, answers in zip(leaders + members, threads.map(ended, leaders + members), strict=True):
            assert answers[dies[0]] is None, dies
            errors = {rank: answer["error"] for rank, answer in enumerate(answers) if answer}
            assert all(errors.values()), (dies, errors)
            team = dies[0] // 2
            for rank in PAIRS[1 - team]:
                said = errors[rank]
                assert lost(said, team) or f"worker {team}: its loop ended" in said, (dies, said)
            (mate,) = (rank for rank in PAIRS[team] if rank != dies[0])
            said = errors[mate]
            assert f"worker {team}: one of its ranks was lost" in said or said.startswith("torch: "), (
                dies,
                said,
            )
