"""A process killed at any of its operations ends every other one, and they say who was lost."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support import nccl_rules
from tests.support.cluster_jobs import run_scheme
from tests.support.cluster_pool import Pool

pytestmark = pytest.mark.slow
TIMEOUT_S = 1.0

SCHEMES: list[tuple[str, dict[str, Any], int, int]] = [
    # name, options, workers, operations in two steps and the end: all of them are tried
    ("all_reduce", {"part_reduce": True}, 3, 11),
    ("gossip", {"topology": "ring"}, 3, 9),
    ("ad_psgd", {}, 4, 15),
    ("diloco", {"period": 2, "fragments": 2}, 3, 9),
    ("halos", {"period": 1, "exchange": 1}, 3, 7),
    ("local_sgd", {"period": 1, "quorum": 2}, 3, 11),
]


WITH_NCCLS_RULES = {
    "all_reduce": (1, 2, 5),
    "gossip": (1, 5),
    "ad_psgd": (6,),
    "diloco": (2,),
    "halos": (4,),
    "local_sgd": (3,),
}
"""Operations at which a worker dies there."""


@pytest.mark.parametrize(
    ("scheme", "options", "workers", "at", "backend"),
    [
        *[
            (name, options, workers, at, "gloo")
            for name, options, workers, count in SCHEMES
            for at in range(count)
            if at % 2 == 0 or name == "all_reduce"
        ],
        *[
            (name, options, workers, at, nccl_rules.NAME)
            for name, options, workers, _ in SCHEMES
            for at in WITH_NCCLS_RULES[name]
        ],
    ],
)
def test_everybody_ends(scheme: str, options: dict[str, Any], workers: int, at: int, backend: str) -> None:
    pool = Pool(workers)
    try:
        answers = pool.ask(
            run_scheme, scheme=scheme, options=options, task="quadratic", max_iterations=2,
            compute_s=0.002, dies=[0, at], timeout_s=TIMEOUT_S, backend=backend,
        )  # fmt: skip
    finally:
        pool.close()
    assert answers[0] is None
    alive = answers[1:]
    for answer in alive:
        assert "worker 0 was lost" in answer["error"] or "worker 0 does not answer" in answer["error"]
    (record,) = [answer["run"] for answer in alive if answer["run"]]
    assert record["status"] == "partial"
