"""A scheme inside a training loop of its user, on gloo processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from realrun.attach import _write_times, attach
from sim.compute.traces import read_durations
from sim.errors import InputError
from tests.attach_jobs import train
from tests.cluster_pool import Pool
from tests.factory import make_job, run_events


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gossip", {"topology": "ring"}),
        ("gossip", {"topology": "one_peer_exponential"}),
        ("gossip", {"topology": "ring", "order": "combine_while_adapting"}),
        ("sgp", {"topology": "one_peer_exponential", "overlap": 1}),
    ],
)
def test_a_loop_goes_through_the_models_of_the_driver(four: Pool, name: str, options: dict[str, Any]) -> None:
    answers = four.ask(train, scheme={name: options}, steps=8, loops=8)
    job = make_job(name, options, task="digits-mlp", momentum=0.9, method="looped", max_iterations=8)
    for answer, expected in zip(answers, run_events(job).finals, strict=True):
        assert answer["error"] == ""
        assert torch.equal(torch.tensor(answer["final"]), expected)


def test_a_library_collective_agrees_to_its_rounding(four: Pool) -> None:
    answers = four.ask(train, scheme={"local_sgd": {"period": 2}}, steps=8, loops=8)
    job = make_job(
        "local_sgd", {"period": 2}, task="digits-mlp", momentum=0.9, method="looped", max_iterations=8
    )
    for answer, expected in zip(answers, run_events(job).finals, strict=True):
        assert torch.tensor(answer["final"]) == pytest.approx(expected, abs=1e-6)
    assert [answer["status"] for answer in answers].count("completed") == 1


def test_parts_of_a_gradient_come_with_its_end(four: Pool) -> None:
    answers = four.ask(train, scheme={"all_reduce": {"overlap": True}}, steps=4, loops=4)
    job = make_job("all_reduce", {}, task="digits-mlp", momentum=0.9, method="looped", max_iterations=4)
    for answer, expected in zip(answers, run_events(job).finals, strict=True):
        assert torch.tensor(answer["final"]) == pytest.approx(expected, abs=1e-6)


def test_an_asynchronous_scheme_runs_while_the_loop_computes(four: Pool) -> None:
    answers = four.ask(train, scheme="ad_psgd", steps=12, loops=12, adam=True)
    assert [answer["error"] for answer in answers] == [""] * 4
    assert all(torch.isfinite(torch.tensor(answer["final"])).all() for answer in answers)
    found = next(answer for answer in answers if answer["status"])
    assert {"gradient", "send", "receive"} <= set(found["operations"])


def test_leader_sgd_gets_the_losses(four: Pool) -> None:
    answers = four.ask(train, scheme={"leader_sgd": {"period": 2}}, steps=6, loops=6)
    assert [answer["error"] for answer in answers] == [""] * 4


def test_a_loop_that_ends_early_ends_all(four: Pool) -> None:
    broken = Pool(2)
    try:
        answers = broken.ask(train, scheme={"gossip": {"topology": "ring"}}, steps=8, loops=5)
    finally:
        broken.close()
    assert all("ended after" in answer["error"] for answer in answers)


def _loop(**changes: Any) -> None:
    model = changes.pop("model", nn.Linear(2, 1))
    optimizer = changes.pop("optimizer", torch.optim.SGD(model.parameters(), 0.1))
    with attach(model, optimizer, changes.pop("scheme", "all_reduce"), **{"steps": 1, **changes}):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set: start this script with torchrun"),
        ({"steps": 0}, "steps is 0"),
        ({"scheme": "gosip"}, "unknown scheme 'gosip'.*gossip"),
        ({"scheme": {"gossip": {"topologie": "ring"}}}, "topologie.*topology"),
        ({"model": nn.Linear(2, 1).half()}, "float32 or float64"),
        ({"optimizer": torch.optim.Rprop(nn.Linear(1, 1).parameters())}, "Rprop is not supported"),
        ({"optimizer": torch.optim.Adam(nn.Linear(1, 1).parameters(), amsgrad=True)}, "amsgrad"),
    ],
)
def test_what_will_not_do_is_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=message):
        _loop(**changes)


def test_times_of_gradients_can_be_a_trace(tmp_path: Path) -> None:
    _write_times(tmp_path / "records", 3, [0.25, 0.1])
    assert read_durations(tmp_path / "records" / "gradient_s_3.csv", None, "") == [0.25, 0.1]
