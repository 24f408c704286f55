"""Our update rules against torch.optim, and schedules against numbers worked out by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.sim.program.worker import State
from paceline.sim.scenario.schema import dump, parse
from paceline.sim.training.learning_rate import LearningRate
from paceline.sim.training.optimizer import NullOptimizer, OncePerRow, OptimizerSettings, make_optimizer
from tests.sim.scenario.test_schema import FLAT

Parameters = list[torch.nn.Parameter]
RULES: list[tuple[dict[str, Any], Callable[[Parameters], torch.optim.Optimizer]]] = [
    ({"lr": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1)),
    ({"lr": 0.1, "momentum": 0.9}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    (
        {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.03},
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.03),
    ),
    ({"adam": {"lr": 0.01}}, lambda p: torch.optim.Adam(p, lr=0.01)),
    (
        {"adam": {"lr": 0.01, "beta1": 0.8, "beta2": 0.95, "eps": 1e-3, "weight_decay": 0.1}},
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.95), eps=1e-3, weight_decay=0.1),
    ),
    ({"adamw": {"lr": 0.01}}, lambda p: torch.optim.AdamW(p, lr=0.01)),
    (
        {"adamw": {"lr": 0.01, "weight_decay": 0.5}},
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5),
    ),
]
SCHEDULES: list[dict[str, Any]] = [
    {},
    {"warmup": "4 steps", "drops": {"at": ("8 steps", "12 steps"), "factor": 0.3}},
    {"warmup": "3 steps", "cosine": {"until": "10 steps", "final": 0.1}},
]


@pytest.mark.parametrize("schedule", SCHEDULES, ids=["constant", "drops", "cosine"])
@pytest.mark.parametrize("rule", RULES, ids=[str(settings) for settings, _ in RULES])
def test_twenty_steps_are_those_of_torch(
    rule: tuple[dict[str, Any], Callable[[Parameters], torch.optim.Optimizer]], schedule: dict[str, Any]
) -> None:
    """Single workers [d] and vectorised ones [n, d] alike; nothing is written in place."""
    written, make = rule
    ours = make_optimizer(OptimizerSettings.model_validate({**written, "schedule": schedule}))
    random = torch.Generator().manual_seed(3)
    for shape in [(7,), (3, 7)]:
        x = torch.randn(shape, generator=random)
        parameter = torch.nn.Parameter(x.clone())
        theirs = make([parameter])
        rates = torch.optim.lr_scheduler.LambdaLR(theirs, LearningRate.model_validate(schedule).factor)
        state = ours.init(x)
        for k in range(20):
            gradient = torch.randn(shape, generator=random)
            parameter.grad = gradient.clone()
            assert ours.lr_at(k) == pytest.approx(theirs.param_groups[0]["lr"], rel=1e-12)
            theirs.step()
            rates.step()
            versions = [t._version for t in (x, gradient, *state.moments)]
            new_x, new_state = ours.update(x, gradient, state)
            assert versions == [t._version for t in (x, gradient, *state.moments)]
            x, state = new_x, new_state
            torch.testing.assert_close(x, parameter.detach(), rtol=2e-6, atol=1e-6)
        assert state.updates == 20


def _factors(schedule: dict[str, Any], steps: list[int]) -> list[float]:
    found = LearningRate.model_validate(schedule)
    return [found.factor(k) for k in steps]


def test_a_warm_up_rises_from_its_first_step_on() -> None:
    assert _factors({"warmup": "4 steps"}, [0, 1, 2, 3, 4, 100]) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0]


def test_ways_down() -> None:
    drops = {"warmup": "2 steps", "drops": {"at": ("4 steps", "6 steps"), "factor": 0.5}}
    assert _factors(drops, [1, 2, 3, 4, 5, 6, 99]) == [1.0, 1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    cosine = {"warmup": "2 steps", "cosine": {"until": "4 steps", "final": 0.5}}
    # 0.5 + 0.25 (1 + cos(pi j / 4)) for j = 0, 2, 4 steps after the warm-up
    assert _factors(cosine, [2, 4, 6, 50]) == pytest.approx([1.0, 0.75, 0.5, 0.5])
    linear = {"linear": {"until": "4 steps"}}
    assert _factors(linear, [0, 1, 2, 3, 4, 5]) == [1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    inverse = {"warmup": "1 step", "inverse_time": {"half": "10 steps"}}
    assert _factors(inverse, [0, 1, 11, 31]) == [1.0, 1.0, 0.5, 0.25]


@given(
    warmup=st.integers(0, 20),
    way=st.sampled_from(["cosine", "linear"]),
    until=st.integers(1, 50),
    final=st.floats(0, 1),
)
def test_the_rate_rises_to_one_and_falls_to_its_end(warmup: int, way: str, until: int, final: float) -> None:
    schedule = LearningRate.model_validate(
        {"warmup": f"{warmup} steps", way: {"until": f"{until} steps", "final": final}}
    )
    factors = [schedule.factor(k) for k in range(warmup + until + 2)]
    assert factors[:warmup] == sorted(factors[:warmup])
    assert factors[warmup] == 1.0
    assert factors[warmup:] == sorted(factors[warmup:], reverse=True)
    assert factors[-1] == pytest.approx(final)


@pytest.mark.parametrize(
    "text",
    [
        "{lr: 0.5, momentum: 0.5, schedule: {warmup: 5 steps, drops: {at: [9 steps]}}}",
        "{adam: {lr: 0.5}}",
        "{adamw: {lr: 0.5, beta2: 0.99}, schedule: {inverse_time: {half: 3 steps}}}",
    ],
)
def test_what_is_written_down_reads_the_same(text: str) -> None:
    found = parse(FLAT.replace("period: 8", f"period: 8, optimizer: {text}"))
    assert found.schemes[1].optimizer is not None
    assert parse(dump(found)) == found


def test_schemes_that_differ_in_a_nested_option_only() -> None:
    text = FLAT.replace("- all_reduce\n", "- local_sgd: {period: 8, optimizer: {adam: {lr: 0.5}}}\n")
    assert "adam.lr=0.5" in parse(text).schemes[0].label


def test_still_does_nothing() -> None:
    x = torch.ones(3)
    rule = NullOptimizer()
    assert rule.update(x, x, rule.init(x)) == (x, rule.init(x))
    assert rule.lr_at(7) == 1.0


@pytest.mark.parametrize("settings", [settings for settings, _ in RULES])
def test_rows_that_are_one_row_are_updated_once(settings: dict[str, Any]) -> None:
    """To the bits of all of them, and beside others as they are."""
    rule = make_optimizer(OptimizerSettings.model_validate(settings))
    once, row = OncePerRow(rule), torch.linspace(-1, 1, 37).expand(5, -1)
    (x, state), (y, wanted) = (row, once.init(row)), (row.contiguous(), rule.init(row.contiguous()))
    for k in range(4):
        gradient = torch.sin(row[0] * (k + 1)).expand(5, -1) if k < 2 else torch.sin(y * (k + 1))
        x, state = once.update(x, gradient, state)
        y, wanted = rule.update(y, gradient.contiguous(), wanted)
        assert (x.stride(0) == 0) == (k < 2)
        assert torch.equal(x, y)
        assert all(map(torch.equal, state.moments, wanted.moments))
        assert state.updates == wanted.updates


@given(clip=st.floats(0.01, 10), seed=st.integers(0, 2**31), sgd=st.booleans())
def test_clipping_is_that_of_torch(clip: float, seed: int, sgd: bool) -> None:
    """Of each row alone, of a worker alone to the same bits; running buffers neither count nor shrink."""
    written, make = RULES[2 if sgd else 5]
    settings = OptimizerSettings.model_validate({**written, "clip": clip})
    ours, random = make_optimizer(settings, num_buffers=2), torch.Generator().manual_seed(seed)
    x = torch.randn(3, 9, generator=random)
    parameters = [torch.nn.Parameter(row[:7].clone()) for row in x]
    theirs, state = [make([each]) for each in parameters], ours.init(x)
    for _ in range(3):
        gradient = torch.randn(3, 9, generator=random)
        alone = [
            ours.update(x[k], gradient[k], State(state.updates, tuple(each[k] for each in state.moments)))[0]
            for k in range(3)
        ]
        buffers = x[:, 7:] - gradient[:, 7:]
        x, state = ours.update(x, gradient, state)
        for k, (parameter, rule) in enumerate(zip(parameters, theirs, strict=True)):
            parameter.grad = gradient[k, :7].clone()
            torch.nn.utils.clip_grad_norm_([parameter], clip)
            rule.step()
            torch.testing.assert_close(x[k, :7], parameter.detach(), rtol=2e-6, atol=1e-6)
            assert torch.equal(x[k], alone[k])
        assert torch.equal(x[:, 7:], buffers)
