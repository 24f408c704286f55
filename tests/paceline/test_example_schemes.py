"""The schemes in docs/schemes: short, the same on both engines, and what their papers say of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.sim.config.user_code.code_files import search_beside
from paceline.sim.training.scoring import digest
from tests.support.factory import make_job, run_events, simulated
from tests.support.lockstep import run_lockstep
from tests.support.quadratics import close, finals_of, quadratic_job

FOLDER = Path(__file__).parents[2] / "docs" / "schemes"
FILES = sorted(FOLDER.glob("*.py"))
OPTIONS: dict[str, dict[str, Any]] = {
    "d2": {}, "demo": {}, "eager": {"period": 3}, "noloco": {"period": 3}, "powersgd": {"rank": 2},
    "sparseloco": {"period": 3},
}  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _beside_them() -> Iterator[None]:
    with search_beside(FOLDER):
        yield


def _path(name: str) -> str:
    return f"{name}:{name}"


def test_all_are_tried_and_have_at_most_40_lines() -> None:
    assert {path.stem for path in FILES} == set(OPTIONS)
    assert max(len(path.read_text(encoding="utf-8").splitlines()) for path in FILES) <= 40


@pytest.mark.parametrize("name", OPTIONS)
def test_lockstep_is_event(name: str) -> None:
    job = make_job(
        _path(name), OPTIONS[name], task="digits-mlp", workers=5, max_iterations=7, momentum=0.9, cv=0.2
    )
    assert job.synchronous
    assert digest(list(run_lockstep(job).unbind())) == digest(run_events(job).finals)


@pytest.mark.parametrize("name", OPTIONS)
def test_it_learns(name: str) -> None:
    lr = 0.003 if name == "demo" else 0.5
    run = simulated(
        make_job(_path(name), OPTIONS[name], task="digits-mlp", max_iterations=30, every=30, lr=lr)
    )
    first, last = (run.evaluations[i].metrics["train_loss"] for i in (0, -1))
    assert first is not None
    assert last is not None
    assert last < 0.7 * first


SAME: dict[str, Any] = {"workers": 4, "max_iterations": 24, "lr": 0.1}


def test_powersgd_of_full_rank_is_all_reduce() -> None:
    """Of each layer's matrix; with two columns of 64 x 64 and 64 x 10 it sends a twentieth."""
    same: dict[str, Any] = {"task": "digits-mlp", "workers": 4, "max_iterations": 6, "lr": 0.1}
    full, exact, thin = (
        simulated(make_job(*scheme, **same))
        for scheme in (
            ("all_reduce", {}),
            (_path("powersgd"), {"rank": 64}),
            (_path("powersgd"), {"rank": 2}),
        )
    )
    for a, b in zip(full.evaluations, exact.evaluations, strict=True):
        assert a.metrics["train_loss"] == pytest.approx(b.metrics["train_loss"], rel=1e-4)
    sent = 2 * (64 + 64) + 2 * (64 + 10) + 64 + 10
    assert thin.bytes_sent / full.bytes_sent == pytest.approx(sent / (64 * 64 + 64 * 10 + 64 + 10), rel=1e-3)


def test_noloco_of_two_workers_steps_along_their_mean() -> None:
    same = {**SAME, "workers": 2}
    options = {"period": 4, "lr": 0.7, "momentum": 0.0}
    outer = {"outer": {"lr": 0.7, "momentum": 0.0}}
    close(
        finals_of(quadratic_job(_path("noloco"), options, **same)),
        finals_of(quadratic_job("diloco", {"period": 4, **outer}, **same)),
    )


def test_sparseloco_that_sends_all_is_diloco() -> None:
    options = {"period": 4, "share": 1.0, "lr": 0.7}
    sparse = finals_of(quadratic_job(_path("sparseloco"), options, **SAME))
    outer = {"outer": {"lr": 0.7, "momentum": 0.0}}
    plain = finals_of(quadratic_job("diloco", {"period": 4, **outer}, **SAME))
    np.testing.assert_allclose(sparse, plain, rtol=1e-5, atol=1e-6)  # elements travel with 32 bits


def test_eager_updates_of_one_worker_are_diloco() -> None:
    """Nothing comes late where there is nobody else."""
    same = {**SAME, "workers": 1}
    eager = quadratic_job(_path("eager"), {"period": 4}, **same)
    close(finals_of(eager), finals_of(quadratic_job("diloco", {"period": 4}, **same)))


def test_d2_reaches_the_optimum_of_all() -> None:
    """Each worker's batch is its own shard, whole: gossip with a constant learning rate stays apart."""

    def apart(scheme: str, options: dict[str, Any]) -> float:
        job = quadratic_job(scheme, options, workers=4, max_iterations=400, lr=0.7, batch_size=24)
        assert job.problem is not None
        shards = tuple(np.arange(24 * i, 24 * (i + 1)) for i in range(4))
        batches = replace(job.problem.batches, shards=shards)
        optimum = job.problem.workload.inputs.double().mean(0).numpy()
        finals = run_lockstep(replace(job, problem=replace(job.problem, batches=batches))).numpy()
        return float(np.abs(finals - optimum).max())

    assert apart(_path("d2"), {}) < 1e-10
    assert apart("gossip", {"topology": "ring"}) > 1e-3
