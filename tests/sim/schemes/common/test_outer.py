"""Outer steps of workers that share every step: DiLoCo's, with all workers as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.sim.errors import InputError
from paceline.sim.schemes import find_scheme
from tests.support.factory import make_job, run_events, simulated

GIVEN: dict[str, Any] = {"task": "digits-mlp", "momentum": 0.9, "max_iterations": 9, "every": 3}


@pytest.mark.parametrize("outer", [{"lr": 0.7}, {"lr": 0.5, "momentum": 0.0}, {"lr": 1.0, "nesterov": False}])
def test_one_worker_does_what_diloco_does(outer: dict[str, Any]) -> None:
    """To the bit, through an end between two outer steps."""
    alone = simulated(make_job("diloco", {"period": 4, "outer": outer}, workers=1, **GIVEN))
    shared = simulated(make_job("all_reduce", {"outer": {"period": 4, **outer}}, workers=1, **GIVEN))
    assert shared.digest == alone.digest
    assert shared.digest != simulated(make_job("all_reduce", workers=1, **GIVEN)).digest


def test_an_outer_step_of_one_is_none() -> None:
    """Along the whole change, without momentum."""
    none = run_events(make_job("all_reduce", workers=3, **GIVEN)).finals
    outer = {"outer": {"period": 1, "lr": 1.0, "momentum": 0.0}}
    for ours, theirs in zip(
        run_events(make_job("all_reduce", outer, workers=3, **GIVEN)).finals, none, strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "options", [{"overlap": True}, {"overlap": True, "next_forward": True}, {"quorum": 3}]
)
def test_every_form_of_all_reduce_has_the_same_outer_steps(options: dict[str, Any]) -> None:
    outer = {"outer": {"period": 2}}
    plain = run_events(make_job("all_reduce", outer, workers=3, **GIVEN)).finals
    for ours, theirs in zip(
        run_events(make_job("all_reduce", {**options, **outer}, workers=3, **GIVEN)).finals,
        plain,
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_running_buffers_become_the_mean() -> None:
    """No outer step moves them: after as many batches they are those of a run without."""
    given = {**GIVEN, "task": "tests.support.own_tasks:normed", "workers": 2, "max_iterations": 1}
    job = make_job("all_reduce", {"outer": {"period": 1}}, **given)
    assert job.problem is not None
    buffers = job.problem.workload.num_buffers
    assert buffers > 0
    ours = run_events(job).finals[0]
    plain = run_events(make_job("all_reduce", **given)).finals[0]
    torch.testing.assert_close(ours[-buffers:], plain[-buffers:])
    assert not torch.equal(ours[:-buffers], plain[:-buffers])


def test_shards_have_no_outer_steps() -> None:
    scheme = find_scheme("all_reduce")
    with pytest.raises(InputError, match="outer steps are of whole models; leave outer or part_reduce out"):
        scheme.check(scheme.options.model_validate({"outer": {"period": 3}, "part_reduce": True}), 4)
