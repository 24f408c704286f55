"""A user's module timed layer by layer: what is a layer, and that the times are those of its passes."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from typing_extensions import override

import paceline
from paceline.sim.compute.timing import time_layers
from paceline.sim.config.csv_tables import read_table
from paceline.sim.errors import InputError
from paceline.sim.experiments.simulate import simulate
from paceline.sim.scenario.schema import load

INPUTS, TARGETS = torch.ones(4, 8), torch.zeros(4, 8)
FORWARD_S, BACKWARD_S = 0.004, 0.012


class _Pause(torch.autograd.Function):
    """Takes its time both ways."""

    @staticmethod
    @override
    def forward(context: Any, values: Tensor) -> Tensor:
        time.sleep(FORWARD_S)
        return values.clone()

    @staticmethod
    @override
    def backward(context: Any, gradient: Tensor) -> Tensor:
        time.sleep(BACKWARD_S)
        return gradient


class Slow(nn.Module):
    """A linear layer, and behind it a pause without parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 8, bias=False)

    @override
    def forward(self, inputs: Tensor) -> Tensor:
        between: Tensor = _Pause.apply(self.first(inputs))  # type: ignore[no-untyped-call]
        return self.last(between)  # type: ignore[no-any-return]


def test_what_has_no_parameters_counts_with_the_layer_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.sim.compute.timing.RUNS", 5)
    first, last = time_layers(Slow(), nn.functional.mse_loss, INPUTS, TARGETS)
    assert (first.name, first.parameters) == ("first", 72)
    assert (last.name, last.parameters) == ("last", 64)
    assert first.forward_s >= FORWARD_S > last.forward_s
    assert first.backward_s >= BACKWARD_S > last.backward_s


def test_parameters_that_a_parent_uses_itself_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.sim.compute.timing.RUNS", 1)
    block = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    layers = time_layers(block, nn.functional.mse_loss, INPUTS[None], TARGETS[None])
    assert sum(each.parameters for each in layers) == sum(each.numel() for each in block.parameters())
    attention = next(each for each in layers if each.name == "self_attn")
    assert attention.parameters == 4 * (64 + 8)  # its child `out_proj` is never called


def test_shared_parameters_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.sim.compute.timing.RUNS", 1)
    model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.ReLU(), nn.Linear(8, 8, bias=False))
    model[2].weight = model[0].weight
    assert [each.parameters for each in time_layers(model, nn.functional.mse_loss, INPUTS, TARGETS)] == [64]


def test_hooks_do_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.sim.compute.timing.RUNS", 1)
    model = nn.Linear(8, 8)
    time_layers(model, nn.functional.mse_loss, INPUTS, TARGETS)
    assert not model._forward_pre_hooks
    assert not model.weight._post_accumulate_grad_hooks


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.ReLU(), "no parameters that are trained"),
        (nn.ModuleList([nn.Linear(8, 8)]), "parameter 'there.0.weight' takes no part"),
    ],
)
def test_models_without_a_gradient_are_refused(
    model: nn.Module, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.sim.compute.timing.RUNS", 1)

    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.there = model

        @override
        def forward(self, inputs: Tensor) -> Tensor:
            return (inputs + 0).requires_grad_()

    with pytest.raises(InputError, match=message):
        time_layers(Unused(), nn.functional.mse_loss, INPUTS, TARGETS)


@pytest.mark.parametrize(
    "loss",
    [
        lambda outputs, targets: (outputs - targets) ** 2,
        lambda outputs, targets: 3.0,
        lambda outputs, targets: nn.functional.mse_loss(outputs, targets).detach(),
    ],
)
def test_a_loss_that_is_no_number_with_a_gradient_is_refused(loss: Any) -> None:
    with pytest.raises(InputError, match=r"^loss: must return one number with a gradient"):
        time_layers(nn.Linear(8, 8), loss, INPUTS, TARGETS)


def test_names_of_modules_with_commas_and_quotes_are_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.sim.compute.timing.RUNS", 1)
    model = nn.Sequential()
    for name in ("a,b", 'c"d'):
        model.add_module(name, nn.Linear(8, 8))
    paceline.profile_layers(model, nn.functional.mse_loss, INPUTS, TARGETS, tmp_path / "mine.csv")
    assert [cells[0] for _, cells in read_table(tmp_path / "mine.csv").rows] == ["a,b", 'c"d']


def test_a_timed_module_is_a_layer_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paceline.sim.compute.timing.RUNS", 5)
    seconds = paceline.profile_layers(Slow(), nn.functional.mse_loss, INPUTS, TARGETS, tmp_path / "mine.csv")
    assert seconds >= FORWARD_S + BACKWARD_S
    (tmp_path / "mine.yaml").write_text(f"""\
name: timed
workload: {{timing_only: true, layer_profile: mine.csv}}
cluster: {{workers: 2, compute: {{time: {seconds!r} s}}, network: {{latency: 1 ms, bandwidth: 1 Mbit/s}}}}
schemes: [{{all_reduce: {{overlap: true}}}}]
stop: {{max_iterations: 2}}
""")
    scenario = load(tmp_path / "mine.yaml")
    profile = scenario.workload.layer_profile
    assert profile is not None
    assert profile.timed
    assert [layer.name for layer in profile.layers] == ["first", "last"]
    (run,) = simulate(scenario)
    assert run.bytes_sent == 2 * 2 * 4 * 136


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"model": None}, "model: must be a module"),
        ({"loss": "mse"}, "loss: must be a function"),
        ({"inputs": [1.0]}, "inputs: must be a tensor"),
        ({"targets": None}, "targets: must be a tensor"),
        ({"inputs": INPUTS[:0], "targets": TARGETS[:0]}, "at least one example"),
        ({"file": None}, "file: must be the path"),
    ],
)
def test_wrong_arguments_are_refused(changed: dict[str, Any], says: str, tmp_path: Path) -> None:
    given = {"inputs": INPUTS, "targets": TARGETS, "file": tmp_path / "l.csv", "loss": nn.functional.mse_loss}
    arguments: Any = {"model": nn.Linear(8, 8), **given, **changed}
    with pytest.raises(InputError, match=says):
        paceline.profile_layers(**arguments)
