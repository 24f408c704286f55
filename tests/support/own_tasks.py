"""Tasks as users write them, right and wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn


def points(n: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(5)
    inputs = torch.randn(n, 6, generator=random)
    return inputs, (inputs[:, 0] > 0).long()


def classify(width: int = 8, slope: float = 0.1) -> Any:
    """Two classes, with a held-out set."""
    model = nn.Sequential(nn.Linear(6, width), nn.LeakyReLU(slope), nn.Linear(width, 2))
    inputs, targets = points(96)
    data = {"train": (inputs[:64], targets[:64]), "test": (inputs[64:], targets[64:])}
    return model, nn.functional.cross_entropy, data


def regress(seed: int, noise: float) -> Any:
    """Numpy arrays in double precision, no classes, no held-out set; noise has to be given."""
    inputs = np.random.default_rng(seed).normal(size=(40, 3))
    return nn.Linear(3, 1), nn.functional.mse_loss, (inputs, noise * inputs.sum(1, keepdims=True))


class Masked(nn.Module):
    """Words and which of them count, in order or by name; returns an object, as language models do."""

    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.packed, self.table, self.head = packed, nn.Embedding(9, 4), nn.Linear(4, 2)

    def forward(self, words: torch.Tensor, mask: torch.Tensor | None = None) -> Any:
        if self.packed:
            words, mask = words[:, 0], words[:, 1]
        assert mask is not None
        mean = (self.table(words) * mask[..., None]).mean(1)
        return self.head(mean) if self.packed else SimpleNamespace(logits=self.head(mean))


class InTurn(torch.utils.data.IterableDataset[Any]):
    def __init__(self, inputs: dict[str, torch.Tensor], labels: torch.Tensor) -> None:
        self.inputs, self.labels = inputs, labels

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number, label in enumerate(self.labels):
            yield {**{name: part[number] for name, part in self.inputs.items()}, "labels": label}


def masked(way: str = "packed") -> Any:
    """One problem, whose two inputs come in several ways; seven sources."""
    random = torch.Generator().manual_seed(5)
    words = torch.randint(0, 9, (60, 6), generator=random)
    mask, targets = words > 2, words[:, 0] % 2
    named = {"words": words, "mask": mask}
    ways: dict[str, Any] = {
        "packed": (torch.stack([words, mask.long()], 1), targets),
        "tuple": ((words, mask), targets),
        "mapping": (named, targets),
        "labels": {**named, "labels": targets},
        "iterable": InTurn(named, targets),
        "loader": torch.utils.data.DataLoader(InTurn(named, targets)),
    }
    names = [f"author {number % 7}" for number in range(60)]
    data = {"train": ways[way], "sources": names if way == "tuple" else torch.arange(60) % 7}
    return Masked(way == "packed"), nn.functional.cross_entropy, data


def other_inputs() -> Any:
    _, loss, data = masked("mapping")
    (words, mask), targets = data["train"][0].values(), data["train"][1]
    return Masked(False), loss, {"train": ((words, mask), targets), "test": ((words, mask.long()), targets)}


def no_labels() -> Any:
    inputs, targets = points()
    return nn.Linear(6, 2), nn.functional.cross_entropy, {"inputs": inputs, "label": targets}


def few_sources() -> Any:
    return nn.Linear(6, 2), nn.functional.cross_entropy, {"train": points(), "sources": torch.arange(3)}


def normed() -> Any:
    """Batch norm, and a data set of torch."""
    model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    return model, nn.CrossEntropyLoss(), torch.utils.data.TensorDataset(*points())


def tied() -> Any:
    """One layer twice, batch norm, and a layer that is not trained."""
    twice, fixed = nn.Linear(6, 6), nn.Linear(6, 2).requires_grad_(False)
    model = nn.Sequential(twice, nn.BatchNorm1d(6), nn.ReLU(), twice, fixed)
    return model, nn.functional.cross_entropy, points()


def dropping() -> Any:
    model = nn.Sequential(nn.Linear(6, 32), nn.Dropout(0.5), nn.Linear(32, 2))
    return model, nn.functional.cross_entropy, points()


class Lingers(nn.Module):
    """Changes nothing; its backward pass takes a tenth of a second."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.requires_grad:
            x.register_hook(lambda _: time.sleep(0.1))  # type: ignore[no-untyped-call]
        return x


def slow_between_layers() -> Any:
    """The second layer's gradient is known long before the first one's."""
    model = nn.Sequential(nn.Linear(6, 3), Lingers(), nn.Linear(3, 2))
    return model, nn.functional.cross_entropy, points()


def embedding(sizes: list[int] = [4]) -> Any:  # noqa: B006
    """Integer inputs."""
    model = nn.Sequential(nn.Embedding(10, sizes[0]), nn.Flatten(), nn.Linear(3 * sizes[0], 2))
    inputs = torch.arange(60).view(20, 3) % 10
    return model, nn.functional.cross_entropy, (inputs, inputs[:, 0] % 2)


def frozen() -> Any:
    """A pretrained first layer that is not trained, and a constant buffer."""
    model = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 2))
    model[0].requires_grad_(False)
    model.register_buffer("scale", torch.ones(3))
    return model, nn.functional.cross_entropy, points()


class Breaks(nn.Module):
    """Works on two examples, not on more."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-2] > 2:
            raise ArithmeticError("too many for me")
        found: torch.Tensor = self.line(x)
        return found


def breaks_later() -> Any:
    inputs, targets = points()
    data = {"train": (inputs, targets), "test": (inputs[:2], targets[:2])}
    return Breaks(), nn.functional.cross_entropy, data


# --- wrong ------------------------------------------------------------------------------------------


def fails() -> Any:
    raise ValueError("no such file")


def gives_a_dict() -> Any:
    return {"model": nn.Linear(6, 2)}


def gives_two() -> Any:
    return nn.Linear(6, 2), nn.functional.cross_entropy


def gives_a_class() -> Any:
    return nn.Linear, nn.functional.cross_entropy, points()


def gives_no_loss() -> Any:
    return nn.Linear(6, 2), 0.1, points()


def gives_no_targets() -> Any:
    return nn.Linear(6, 2), nn.functional.cross_entropy, points()[0]


def gives_other_keys() -> Any:
    return nn.Linear(6, 2), nn.functional.cross_entropy, {"train": points(), "valid": points()}


def gives_lists() -> Any:
    return nn.Linear(6, 2), nn.functional.cross_entropy, ([1.0, 2.0], [0, 1])


def gives_unequal_lengths() -> Any:
    return nn.Linear(6, 2), nn.functional.cross_entropy, (points()[0][:5], points()[1])


def model_fails() -> Any:
    return nn.Linear(5, 2), nn.functional.cross_entropy, points()


def loss_fails() -> Any:
    return nn.Linear(6, 2), nn.functional.cross_entropy, (points()[0], points()[1].float())


def loss_is_a_vector() -> Any:
    return nn.Linear(6, 2), nn.CrossEntropyLoss(reduction="none"), points()


def loss_is_a_number() -> Any:
    return nn.Linear(6, 2), lambda outputs, targets: 1.0, points()


def loss_is_detached() -> Any:
    return nn.Linear(6, 2), lambda outputs, targets: outputs.detach().mean(), points()


def double() -> Any:
    class Model(nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return super().forward(input.double())

    return Model(6, 2).double(), nn.functional.cross_entropy, points()


def cumulative() -> Any:
    return (
        nn.Sequential(nn.Linear(6, 2), nn.BatchNorm1d(2, momentum=None)),
        nn.functional.cross_entropy,
        points(),
    )


def many(*widths: int) -> Any:
    return nn.Linear(6, 2), nn.functional.cross_entropy, points()


NOT_A_FUNCTION = 3
