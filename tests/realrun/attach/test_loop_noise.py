"""Gradient noise in a user's own loop, on gloo processes, against the same training in one process."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import paceline
from paceline.sim.errors import InputError
from paceline.sim.training.gradient_noise import Moments, moments_of_halves
from tests.support.attach_jobs import _loss, _model, train_with_noise
from tests.support.cluster_pool import Pool
from tests.support.factory import make_problem

PAIRS, ALONE = [[0, 1], [2, 3]], [[0], [1], [2], [3]]


def in_one_process(workers: int, batch_size: int, steps: int) -> dict[int, tuple[Moments, float]]:
    """Moments and mean loss in every second step of an all-reduce training, of shards without end."""
    model, problem = _model(1), make_problem("digits-mlp", workers, 1, "looped", batch_size)
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9), {}
    for k in range(steps):
        halves, losses = [], []
        for worker in range(workers):
            rows = problem.batches.examples(worker, k)
            for part in (rows[::2], rows[1::2]):
                loss = _loss(model, problem, part)
                losses.append(loss.item())
                gradients = torch.autograd.grad(loss, list(model.parameters()))
                halves.append(torch.cat([each.reshape(-1) for each in gradients]))
        stacked = torch.stack(halves).view(workers, 2, -1)
        if k and k % 2 == 0:
            moments = moments_of_halves(stacked, [batch_size] * workers, [np.inf] * workers)
            found[k] = moments, float(np.mean(losses))
        mean, offset = stacked.mean(dim=(0, 1)), 0
        for parameter in model.parameters():
            parameter.grad = mean[offset : offset + parameter.numel()].view(parameter.shape)
            offset += parameter.numel()
        optimizer.step()
    return found


@pytest.mark.parametrize("teams", [PAIRS, ALONE], ids=["ddp", "halves"])
def test_all_reduce_has_all_moments(four: Pool, teams: list[list[int]]) -> None:
    answers = four.ask(
        train_with_noise, scheme="all_reduce", steps=6, teams=teams, batch_size=8, calls_half=True
    )
    assert [answer["error"] for answer in answers] == [""] * 4
    (points,) = [answer["gradients"] for answer in answers if answer["gradients"] is not None]
    expected = in_one_process(len(teams), 8, 6)
    assert [point["step"] for point in points] == list(expected) == [2, 4]
    for point in points:
        moments, loss = expected[point["step"]]
        got = (point["noise"], point["heterogeneity"], point["norm2"])
        assert got == pytest.approx(moments, rel=1e-3, abs=1e-5)
        assert point["loss"] == pytest.approx(loss, rel=1e-4)
        assert (point["lr"], point["examples"]) == (0.1, 8 * len(teams))


@pytest.mark.parametrize("scheme", [{"gossip": {"topology": "ring"}}, {"local_sgd": {"period": 2}}])
def test_other_schemes_have_noise_alone(four: Pool, scheme: dict[str, object]) -> None:
    answers = four.ask(train_with_noise, scheme=scheme, steps=4, teams=ALONE, batch_size=8, calls_half=True)
    (points,) = [answer["gradients"] for answer in answers if answer["gradients"] is not None]
    assert [(p["step"], p["noise"] > 0, p["heterogeneity"], p["norm2"]) for p in points] == [
        (2, True, None, None)
    ]


def test_a_missing_half_is_named(four: Pool) -> None:
    answers = four.ask(
        train_with_noise, scheme="all_reduce", steps=4, teams=ALONE, batch_size=8, calls_half=False
    )
    assert all("call worker.half() between a batch's two halves" in answer["error"] for answer in answers)


@pytest.mark.parametrize("noise", [(0, 8), (2, 0), (2,), (1, 2, 3)])
def test_numbers_out_of_range(noise: tuple[int, ...]) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    with pytest.raises(InputError, match=r"attach: gradient_noise is \(.*; write \(every, batch_size\)"):
        paceline.attach(model, optimizer, "all_reduce", steps=2, gradient_noise=noise)  # type: ignore[arg-type]
