"""Muon against torch's own, on drawn models."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from paceline.sim.errors import InputError
from paceline.sim.program.worker import Parameter
from paceline.sim.training.learning_rate import LearningRate
from paceline.sim.training.optimizer import OptimizerSettings, make_optimizer

MATRIX = re.compile(r"hidden\d\.weight")


def drawn(seed: int) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes of a model's tensors: an embedding, matrices, vectors, a kernel."""
    random = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, 9, (8,), generator=random).tolist()
    shapes: list[tuple[str, tuple[int, ...]]] = [("embedding.weight", (sizes[0], sizes[1]))]
    for layer in range(1 + seed % 3):
        shapes += [(f"hidden{layer}.weight", (sizes[layer + 2], sizes[layer + 3]))]
        shapes += [(f"hidden{layer}.bias", (sizes[layer + 2],))]
    return [*shapes, ("kernel", (2, 1, 3, 3)), ("head.weight", (sizes[6], sizes[7]))]


@pytest.mark.parametrize("schedule", [{}, {"warmup": "4 steps"}], ids=["constant", "warmup"])
@pytest.mark.parametrize("seed", range(10))
def test_ten_drawn_models_step_as_with_torch(seed: int, schedule: dict[str, str]) -> None:
    """Equal to the bit at a constant rate; scaled changes round by themselves."""
    random = torch.Generator().manual_seed(100 + seed)
    shapes = drawn(seed)
    tensors = [torch.nn.Parameter(torch.randn(shape, generator=random)) for _, shape in shapes]
    options: dict[str, Any] = {
        "lr": 0.02, "momentum": 0.8, "nesterov": seed % 2 == 0, "weight_decay": 0.1,
        "adjust_lr_fn": "match_rms_adamw" if seed % 3 else "original",
    }  # fmt: skip
    written = {"muon": {**options, "adamw": {"lr": 0.01}}, **({"schedule": schedule} if schedule else {})}
    starts = [sum(t.numel() for t in tensors[:number]) for number in range(len(tensors))]
    layout = tuple(Parameter(*each, start) for each, start in zip(shapes, starts, strict=True))
    ours = make_optimizer(OptimizerSettings.model_validate(written), 0, layout)
    hidden = [t for (name, _), t in zip(shapes, tensors, strict=True) if MATRIX.fullmatch(name)]
    others = [t for t in tensors if all(t is not each for each in hidden)]
    theirs = [torch.optim.Muon(hidden, **options), torch.optim.AdamW(others, lr=0.01)]
    factor = LearningRate.model_validate(schedule).factor
    rates = [torch.optim.lr_scheduler.LambdaLR(each, factor) for each in theirs]
    x = torch.cat([t.detach().flatten() for t in tensors])
    state = ours.init(x)
    for _ in range(8):
        gradient = torch.randn(len(x), generator=random)
        before = x.clone()
        new, state = ours.update(x, gradient, state)
        assert torch.equal(x, before)
        for each, tensor in zip(layout, tensors, strict=True):
            tensor.grad = each.of(gradient).clone()
        for optimizer, rate in zip(theirs, rates, strict=True):
            optimizer.step()
            rate.step()
        torch.testing.assert_close(
            new, torch.cat([t.detach().flatten() for t in tensors]), rtol=1e-5, atol=1e-6
        )
        x = new


@pytest.mark.parametrize(
    ("name", "hidden"),
    [
        ("wte.weight", False), ("transformer.wpe.weight", False), ("tok_embeddings.weight", False),
        ("lm_head.weight", False), ("head", False), ("multihead_attn.in_proj_weight", True),
        ("heads.0.weight", True), ("layers.1.mlp.weight", True),
    ],
)  # fmt: skip
def test_tables_and_the_last_layer_go_by_adamw(name: str, hidden: bool) -> None:
    rule = make_optimizer(OptimizerSettings.model_validate({"muon": {}}), 0, (Parameter(name, (3, 2), 0),))
    assert [len(each) for each in rule.init(torch.zeros(6)).moments] == ([6, 0, 0] if hidden else [0, 6, 6])


def test_a_word_that_is_in_no_name_is_refused() -> None:
    settings = OptimizerSettings.model_validate({"muon": {"by_adamw": ["hed"]}})
    with pytest.raises(InputError, match=r"by_adamw: 'hed' is in no matrix's name; there are: head.weight"):
        make_optimizer(settings, 0, (Parameter("head.weight", (3, 2), 0),))


def test_what_is_written_out_is_read_again() -> None:
    """A resolved scenario has the words by default, of which this model has none."""
    written = OptimizerSettings.model_validate({"muon": {}}).model_dump(mode="json")
    assert "wte" in written["muon"]["by_adamw"]
    make_optimizer(OptimizerSettings.model_validate(written), 0, (Parameter("a", (3, 2), 0),))


def test_a_matrix_has_one_moment_and_all_else_two() -> None:
    layout = (Parameter("a", (3, 4), 0), Parameter("b", (5,), 12), Parameter("head", (2, 2), 17))
    rule = make_optimizer(OptimizerSettings.model_validate({"muon": {}}), 0, layout)
    assert [len(each) for each in rule.init(torch.zeros(21)).moments] == [12, 9, 9]
