"""A scheme inside a training loop of its user, on gloo processes."""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from paceline.realrun.attach import attach as attaching
from paceline.realrun.attach.attach import _Loop, attach
from paceline.realrun.attach.loop_objects import check_wrappers
from paceline.realrun.calibration import fit as calibrate
from paceline.realrun.calibration import fit as measured
from paceline.sim.compute.attached import load as load_run
from paceline.sim.errors import InputError
from paceline.sim.training.curves.curve import CurveFile
from paceline.sim.training.curves.read import read_curves
from tests.support import nccl_rules
from tests.support.attach_jobs import joined_by_others, train, train_together
from tests.support.cluster_pool import Pool
from tests.support.factory import make_job, run_events
from tests.support.made_records import nominal


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gossip", {"topology": "ring"}),
        ("gossip", {"topology": "one_peer_exponential"}),
        ("gossip", {"topology": "ring", "order": "combine_while_adapting"}),
        ("sgp", {"topology": "one_peer_exponential", "overlap": 1}),
        ("gradient_tracking", {"topology": "ring"}),
    ],
)
def test_a_loop_goes_through_the_models_of_the_driver(four: Pool, name: str, options: dict[str, Any]) -> None:
    answers = four.ask(train, scheme={name: options}, steps=8, loops=8)
    job = make_job(name, options, task="digits-mlp", momentum=0.9, method="looped", max_iterations=8)
    for answer, expected in zip(answers, run_events(job).finals, strict=True):
        assert answer["error"] == ""
        assert torch.equal(torch.tensor(answer["final"]), expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [("local_sgd", {"period": 2}), ("diloco", {"period": 4, "fragments": 2, "delay": 1, "alpha": 0.5})],
)
def test_a_library_collective_agrees_to_its_rounding(four: Pool, name: str, options: dict[str, Any]) -> None:
    answers = four.ask(train, scheme={name: options}, steps=8, loops=8)
    job = make_job(name, options, task="digits-mlp", momentum=0.9, method="looped", max_iterations=8)
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


@pytest.mark.parametrize("label", ["", "swaps"])
def test_an_own_scheme(four: Pool, label: str) -> None:
    options = {"label": label} if label else {}
    answers = four.ask(train, scheme={"tests.support.own_schemes:pairs": options}, steps=4, loops=4)
    job = make_job(
        "tests.support.own_schemes:pairs",
        {},
        task="digits-mlp",
        momentum=0.9,
        method="looped",
        max_iterations=4,
    )
    for answer, expected in zip(answers, run_events(job).finals, strict=True):
        assert torch.equal(torch.tensor(answer["final"]), expected)
    assert [answer["label"] for answer in answers if answer["label"]] == [
        label or "tests.support.own_schemes:pairs"
    ]


def test_pattern_operations_over_another_backend(four: Pool) -> None:
    answers = four.ask(
        train, scheme={"gossip": {"topology": "ring"}}, steps=4, loops=4, backend=nccl_rules.NAME
    )
    job = make_job(
        "gossip", {"topology": "ring"}, task="digits-mlp", momentum=0.9, method="looped", max_iterations=4
    )
    for answer, expected in zip(answers, run_events(job).finals, strict=True):
        assert torch.equal(torch.tensor(answer["final"]), expected)


def test_a_run_is_written_down_for_calibration(four: Pool, tmp_path: Path) -> None:
    scheme = {"gossip": {"topology": "ring"}}
    folder = tmp_path / "records"
    four.ask(train, scheme=scheme, steps=12, loops=12, adam=True, records=str(folder))
    assert {each.name for each in folder.iterdir()} == {"attached.json", "losses.jsonl"}
    found = load_run(folder / "attached.json")
    assert (found.workers, found.steps, found.seed, found.moments) == (4, 12, 1, 2)
    assert (found.parameters, found.bytes_per_parameter) == (64 * 64 + 64 + 640 + 10, 4.0)
    assert [len(each) for each in found.gradients_s()] == [12] * 4
    assert found.settings["net.ipv4.tcp_wmem"]
    assert found.round_s is None  # every step averages
    fit = calibrate.calibrate([measured.load(folder / "attached.json", nominal())])
    assert fit.labels == ("mix",) * 4
    assert fit.profile.range.largest_bytes == 4 * found.parameters


def test_a_record_says_what_a_round_took_besides_its_exchange(four: Pool, tmp_path: Path) -> None:
    four.ask(train, scheme={"diloco": {"period": 3}}, steps=12, loops=12, records=str(tmp_path))
    found = load_run(tmp_path / "attached.json").round_s
    assert found is not None
    assert 0 <= found < 0.1  # an outer step of 4,810 numbers


@pytest.mark.parametrize(("teams", "workers"), [(None, 4), ([[0, 1], [2, 3]], 2)])
def test_losses_are_a_measured_curve(
    four: Pool, tmp_path: Path, teams: list[list[int]] | None, workers: int
) -> None:
    scheme, records = {"local_sgd": {"period": 4}}, str(tmp_path)
    if teams is None:
        four.ask(train, scheme=scheme, steps=9, loops=9, records=records)
    else:
        four.ask(
            train_together, scheme=scheme, steps=9, loops=9, teams=teams, wrapper="ddp", batch_size=32,
            records=records,
        )  # fmt: skip
    file = CurveFile(file="losses.jsonl", conditions={"batch_size": 32})
    (curve,) = read_curves(tmp_path / "losses.jsonl", file)
    assert (curve.scheme, curve.seed) == ("local_sgd", 1)
    assert curve.under == {"batch_size": 32, "workers": workers, "period": 4}
    assert curve.steps == tuple(range(9))
    first, *_, last = curve.known("train_loss").values()
    assert first == pytest.approx(math.log(10), abs=0.2)  # ten classes, before any step
    assert last < first


# --- several ranks a worker ---------------------------------------------------------------------

PAIRS = [[0, 1], [2, 3]]


@pytest.mark.parametrize(
    ("wrapper", "teams", "scheme"),
    [
        ("ddp", PAIRS, {"gossip": {"topology": "complete"}}),
        ("ddp", [[1, 2, 3], [0]], {"local_sgd": {"period": 2}}),
        ("ddp", PAIRS, {"leader_sgd": {"period": 2}}),
        ("fsdp", PAIRS, {"gossip": {"topology": "complete"}}),
        ("fsdp", [[0, 2], [1, 3]], {"all_reduce": {"overlap": True}}),
    ],
)
def test_ranks_together_are_one_worker(
    four: Pool, wrapper: str, teams: list[list[int]], scheme: dict[str, dict[str, Any]]
) -> None:
    answers = four.ask(
        train_together, scheme=scheme, steps=6, loops=6, teams=teams, wrapper=wrapper, batch_size=30
    )
    ((name, options),) = scheme.items()
    job = make_job(
        name, options, workers=2, task="digits-mlp", batch_size=30, momentum=0.9, method="looped",
        max_iterations=6,
    )  # fmt: skip
    finals = run_events(job).finals
    assert [answer["error"] for answer in answers] == [""] * 4
    for number, team in enumerate(sorted(teams)):
        for rank in team:
            assert answers[rank]["worker"] == [number, 2]
            assert torch.tensor(answers[rank]["final"]) == pytest.approx(finals[number], abs=1e-6)
            assert answers[rank]["final"] == answers[team[0]]["final"]
    assert [answer["status"] for answer in answers].count("completed") == 1


@pytest.mark.parametrize("wrapper", ["ddp", "fsdp"])
def test_workers_that_end_early_end_all_of_their_ranks(wrapper: str) -> None:
    broken = Pool(4)
    scheme = {"gossip": {"topology": "complete"}}
    try:
        answers = broken.ask(
            train_together, scheme=scheme, steps=8, loops=5, teams=PAIRS, wrapper=wrapper, batch_size=30
        )
    finally:
        broken.close()
    (error,) = {answer["error"] for answer in answers}
    assert "its loop ended after 5 of its steps" in error


def test_groups_that_do_not_go_together(four: Pool) -> None:
    everybody, alone, *overlapping = zip(*four.ask(joined_by_others), strict=True)
    for rank, (too_many, too_few) in enumerate(zip(everybody, alone, strict=True)):
        pair = "0, 1" if rank < 2 else "2, 3"
        assert f"DDP joins ranks 0, 1, 2, 3, but this worker is {pair}: give the group" in too_many
        assert f"DDP joins ranks {pair}, but this worker is {rank}: give the group" in too_few
    in_two, not_in_it = overlapping
    assert all("a rank can be in one worker only, but 'inside' says" in answer for answer in in_two)
    assert "rank 3 is not in the group given as 'inside'" in not_in_it[3]


def test_fsdp_of_old_is_refused() -> None:
    wrapped = FullyShardedDataParallel.__new__(FullyShardedDataParallel)
    nn.Module.__init__(wrapped)
    with pytest.raises(InputError, match=r"flat pieces .* use torch.distributed.fsdp.fully_shard"):
        check_wrappers(wrapped, [0])


def test_ranks_together_exchange_over_gloo() -> None:
    with pytest.raises(InputError, match=r"with 'inside' .* over gloo, not nccl: two communicators"):
        _loop(inside=cast("Any", object()), backend="nccl")


# --- what goes wrong ----------------------------------------------------------------------------


def test_whatever_the_driver_raises_ends_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def stumbles(*arguments: Any, **options: Any) -> None:
        raise ValueError("no such thing")

    monkeypatch.setattr(attaching, "run_job", stumbles)
    job = make_job("all_reduce")
    loop = _Loop(1, job.start, job.layers.segments)
    loop.drive(cast("Any", None), job, "gloo", 1.0)
    assert loop.points.get_nowait() is None
    assert str(loop.error) == "worker 1: ValueError: no such thing"


def test_a_loop_that_ends_early_ends_all(four: Pool) -> None:
    broken = Pool(2)
    try:
        answers = broken.ask(train, scheme={"gossip": {"topology": "ring"}}, steps=8, loops=5)
    finally:
        broken.close()
    assert all("ended after" in answer["error"] for answer in answers)


def _loop(**changes: Any) -> None:
    model = changes.pop("model", nn.Linear(2, 1))
    optimizer = changes.pop("optimizer", torch.optim.SGD)(model.parameters(), 0.1)
    with attach(model, optimizer, changes.pop("scheme", "all_reduce"), **{"steps": 1, **changes}):
        pass


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT not set: start this script with torchrun"),
        ({"steps": 0}, "steps is 0"),
        ({"scheme": "gosip"}, "unknown scheme 'gosip'.*gossip"),
        ({"scheme": {"gossip": {"topologie": "ring"}}}, "topologie.*topology"),
        (
            {"scheme": {"all_reduce": {"optimizer": {"lr": 0.1}}}},
            "all_reduce.optimizer: the optimizer is the loop's own; leave this out",
        ),
        ({"model": nn.Linear(2, 1).half()}, "float32 or float64"),
        ({"optimizer": torch.optim.Rprop}, "Rprop is not supported"),
        ({"optimizer": partial(torch.optim.Adam, amsgrad=True)}, "amsgrad"),
    ],
)
def test_what_will_not_do_is_refused(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], message: str
) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(InputError, match=message):
        _loop(**changes)
