"""Muon: matrices step along their momentum made orthogonal, all else by AdamW.

With the momentum m of a matrix's gradients g, and NS the Newton-Schulz iteration that makes the singular
values of a matrix about 1:

    m <- mu m + (1 - mu) g,   x <- (1 - lr w) x - lr a NS((1 - mu) g + mu m)

a is sqrt(max(1, rows/columns)) (``original``), or 0.2 sqrt(max(rows, columns)), by which steps are as long as
AdamW's (``match_rms_adamw``). It is ``torch.optim.Muon``, which iterates in bfloat16.

Source: Jordan et al., Muon, 2024; Liu et al., arXiv 2502.16982; with DiLoCo: Therien et al., arXiv 2505.23725
(MuLoCo).
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Any, Final, Literal

import torch
from pydantic import Field
from torch import Tensor

from paceline.sim.config.limits import MAX_POSITIVE
from paceline.sim.config.settings import Positive, Settings
from paceline.sim.errors import InputError, quote
from paceline.sim.program.worker import Parameter, State
from paceline.sim.training.optimizer import Adam, AdamWSettings
from paceline.sim.training.rules import RuleKind, RuleMoments

_NOT_HIDDEN: Final = ("*embed*", "wte", "wpe", "head", "lm_head")


class MuonOptions(Settings):
    """Muon, in the terms of ``torch.optim``; ``adamw`` for what is no matrix."""

    lr: Positive = Field(default=0.02, description="learning rate of matrices")
    momentum: float = Field(default=0.95, ge=0, lt=1, description="decay of the mean of gradients")
    nesterov: bool = Field(default=True, description="Nesterov's form of momentum")
    weight_decay: float = Field(default=0.1, ge=0, le=MAX_POSITIVE, description="decoupled weight decay")
    ns_steps: int = Field(default=5, ge=1, lt=100, description="Newton-Schulz iterations")
    adjust_lr_fn: Literal["original", "match_rms_adamw"] = Field(
        default="original", description="factor of the learning rate by a matrix's shape"
    )
    adamw: AdamWSettings = Field(
        default=AdamWSettings(lr=0.001), description="the rule of all other parameters (default: lr 0.001)"
    )
    by_adamw: tuple[str, ...] = Field(
        default=_NOT_HIDDEN,
        description="matrices that are no hidden layer and go by adamw too: words between the dots of their "
        "names, * for any letters",
    )


class Muon:
    """The rule for a model of these tensors: moments are the matrices' momentum, and AdamW's two."""

    def __init__(self, options: MuonOptions, parameters: tuple[Parameter, ...]) -> None:
        torch.optim.Muon([torch.nn.Parameter(torch.zeros(1, 1))])  # loads what takes seconds, before a clock
        matrices = [each for each in parameters if len(each.shape) == 2]
        taken = {word: [each for each in matrices if _has(each, word)] for word in options.by_adamw}
        idle = [word for word in taken if not taken[word] and word not in _NOT_HIDDEN]
        if idle:
            names = ", ".join(each.name for each in matrices) or "none"
            raise InputError(f"muon.by_adamw: {quote(idle[0])} is in no matrix's name; there are: {names}")
        self._options = options
        self._matrices = [each for each in matrices if not any(each in own for own in taken.values())]
        self._adamw = Adam(options.adamw)
        length = max((each.stop for each in parameters), default=0)
        others = torch.ones(length, dtype=torch.bool)
        for each in self._matrices:
            others[each.start : each.stop] = False
        self._others = others.nonzero().flatten()

    def init(self, x: Tensor) -> RuleMoments:
        """No momentum yet."""
        rest = self._adamw.init(x[self._others.to(x.device)])
        return (x.new_zeros(len(x) - len(self._others)), *rest.moments)

    def update(self, x: Tensor, gradient: Tensor, moments: RuleMoments, k: int) -> tuple[Tensor, RuleMoments]:
        """Matrices by ``torch.optim.Muon``, the rest by AdamW."""
        others = self._others.to(x.device)
        new = x.clone()
        new[others], rest = self._adamw.update(x[others], gradient[others], State(k, moments[1:]))
        momentum = moments[0].clone()
        if self._matrices:
            self._step(new, gradient, momentum)
        return new, (momentum, *rest.moments)

    def _step(self, new: Tensor, gradient: Tensor, momentum: Tensor) -> None:
        tensors = [torch.nn.Parameter(each.of(new)) for each in self._matrices]
        own = self._options.model_dump(exclude={"adamw", "by_adamw"})
        muon = torch.optim.Muon(tensors, **own)
        buffers = torch.split(momentum, [each.numel() for each in tensors])
        for tensor, each, buffer in zip(tensors, self._matrices, buffers, strict=True):
            tensor.grad = each.of(gradient)
            state: dict[str, Any] = muon.state[tensor]
            state["momentum_buffer"] = buffer.view(each.shape)
        muon.step()  # type: ignore[no-untyped-call]


def _has(matrix: Parameter, word: str) -> bool:
    return any(fnmatchcase(part, word) for part in matrix.name.split("."))


MUON: Final = RuleKind(MuonOptions, Muon)
