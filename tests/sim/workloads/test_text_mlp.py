"""The perceptron on the last bytes of a text."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
import torch

from paceline.sim.errors import InputError
from paceline.sim.workloads.tasks.text_mlp import TextMlpOptions, build, facts


def test_examples_are_places_of_the_text_and_a_stretch_in_twenty_is_for_the_test(tmp_path: Path) -> None:
    text = random.Random(1).choices(b"abcdefgh", k=100_000)
    file = tmp_path / "text.txt"
    file.write_bytes(bytes(text))
    options = TextMlpOptions(file=str(file))
    workload = build(options, 1)
    inputs, targets = workload.inputs, workload.targets
    held_out = [i for i in range(len(text) - 8) if (i + 8) // 4096 % 20 == 10]
    assert len(inputs) == len(text) - 8 - len(held_out) == facts(options, 1).num_examples
    for row, target in zip(inputs[:200].tolist(), targets[:200].tolist(), strict=True):
        assert bytes(97 + each for each in [*row, target]) in bytes(text)


def test_the_size_of_the_model_and_its_first_loss() -> None:
    options = TextMlpOptions()
    workload, known = build(options, 1), facts(options, 1)
    assert len(workload.start) == known.num_parameters
    symbols = workload.inputs.max().item() + 1
    assert workload.score(workload.start)["test_loss"] == pytest.approx(math.log(symbols), rel=0.05)
    assert known.sources > 50


def test_the_loss_is_torchs_cross_entropy() -> None:
    workload = build(TextMlpOptions(), 1)
    x, batch = workload.start, (workload.inputs[:64], workload.targets[:64])
    e, w1, b1, w2, b2 = (x[a:b].view(shape) for a, b, shape in _cuts(workload.parameters))
    hidden = torch.relu(e[batch[0].long()].flatten(1) @ w1.T + b1)
    expected = torch.nn.functional.cross_entropy(hidden @ w2.T + b2, batch[1])
    assert workload.loss(x, *batch).item() == pytest.approx(expected.item(), rel=1e-5)


def _cuts(parameters: object) -> list[tuple[int, int, torch.Size]]:
    cuts = []
    for _, shape, start in parameters:  # type: ignore[attr-defined]
        cuts.append((start, start + math.prod(shape), torch.Size(shape)))
    return cuts


def test_a_short_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "short.txt"
    file.write_bytes(b"a" * 2000)
    with pytest.raises(InputError, match="has 2,000 bytes; this task needs 45,056"):
        facts(TextMlpOptions(file=str(file)), 1)
