"""What a job adds to the scores of a scheme that publishes no model of all."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.sim.records.run import Evaluation
from tests.support.factory import make_job, scored, simulated

WORKERS, LATENCY_S, BYTES_PER_S, EVERY = 4, 0.25, 1000.0, 2
CLUSTER: dict[str, Any] = {
    "task": "quadratic", "workers": WORKERS, "latency_s": LATENCY_S, "bandwidth_bytes_per_s": BYTES_PER_S,
    "every": EVERY, "max_iterations": 6,
}  # fmt: skip


def evaluations(scheme: str, options: dict[str, Any], **changes: Any) -> list[Evaluation]:
    job = scored(make_job(scheme, options, **CLUSTER), **changes)
    return list(simulated(job).evaluations)


@pytest.mark.parametrize("scheme", ["gossip", "sgp"])
def test_the_mean_model_comes_by_one_all_reduce(scheme: str) -> None:
    """A ring: 2 (n - 1) messages of a share of the model after one another on each of n links."""
    options = {"topology": "ring"} if scheme == "gossip" else {"topology": "static_exponential"}
    published = evaluations(scheme, options)
    of_mean = evaluations(scheme, options, on="mean")
    model_bytes = make_job(scheme, options, **CLUSTER).start.numel() * 4
    later_s = 2 * (WORKERS - 1) * (LATENCY_S + model_bytes / WORKERS / BYTES_PER_S)
    sent = 2 * (WORKERS - 1) * model_bytes
    assert len(published) == 4
    for late, early in zip(published[1:], of_mean[1:], strict=True):
        assert late.metrics == early.metrics
        assert late.time_s == pytest.approx(early.time_s + later_s)
        assert late.bytes_sent == early.bytes_sent + sent
    assert published[0] == of_mean[0]


@pytest.mark.parametrize(
    ("scheme", "options", "same"),
    [
        ("all_reduce", {}, "averaged"),
        ("local_sgd", {"period": 2}, "averaged"),
        ("diloco", {"period": 3}, "averaged"),
        ("fedavg", {"period": 3}, "averaged"),
        ("easgd", {"period": 2, "pull": 0.5}, "averaged"),
        ("easgd", {"period": 2, "pull": 0.5, "asynchronous": True}, "leader"),
        ("downpour", {"period": 2}, "leader"),
        ("leader_sgd", {"period": 2}, "leader"),
        ("all_reduce", {"quorum": 3}, "averaged"),
        ("local_sgd", {"period": 2, "quorum": 3}, "averaged"),
        ("diloco", {"period": 2, "deadline": "0.5 s"}, "averaged"),
        ("fedavg", {"period": 2, "quorum": 3}, "averaged"),
    ],
)
def test_a_model_of_all_is_scored_as_it_is(scheme: str, options: dict[str, Any], same: Any) -> None:
    published = evaluations(scheme, options)
    assert published == evaluations(scheme, options, on=same)
    first, last = published[0].metrics["train_loss"], published[-1].metrics["train_loss"]
    assert first is not None
    assert last is not None
    assert last < first
