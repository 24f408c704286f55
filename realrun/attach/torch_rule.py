"""The update rule of a torch optimiser, for schemes."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from paceline.sim.config.limits import MAX_STEPS
from paceline.sim.errors import InputError
from paceline.sim.program.worker import Optimizer, State
from paceline.sim.training.gradient_noise import norm2
from paceline.sim.training.optimizer import Adam, AdamSettings, AdamWSettings, Sgd


class TorchRule(Optimizer):
    """An update rule with the current learning rate of a torch optimiser.

    ``norms2``: |gradient|^2 by update, of those that ``watched[0]`` divides, of ``watched[1]`` elements.
    The scheme keeps the moments, since it may average them; those of the torch optimiser stay empty.
    Raises ``InputError`` for others than SGD, Adam and AdamW, or unsupported options.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.watched = MAX_STEPS, 0
        self.norms2: dict[int, float] = {}
        if len(optimizer.param_groups) != 1:
            raise InputError(
                f"attach: the optimizer has {len(optimizer.param_groups)} parameter groups; give it one"
            )
        self._rule()

    def _rule(self) -> Optimizer:
        (group,) = self._optimizer.param_groups
        kind = type(self._optimizer)
        if group.get("maximize") or group.get("amsgrad") or group.get("dampening"):
            raise InputError("attach: maximize, amsgrad and dampening are not supported")
        if kind is torch.optim.SGD:
            return Sgd(float(group["lr"]), group["momentum"], group["nesterov"], group["weight_decay"])
        if kind in (torch.optim.Adam, torch.optim.AdamW):
            settings = (AdamWSettings if kind is torch.optim.AdamW else AdamSettings)(
                lr=float(group["lr"]), beta1=group["betas"][0], beta2=group["betas"][1],
                eps=group["eps"], weight_decay=group["weight_decay"],
            )  # fmt: skip
            return Adam(settings)
        raise InputError(f"attach: torch.optim.{kind.__name__} is not supported; use SGD, Adam or AdamW")

    @override
    def init(self, x: Tensor) -> State:
        return self._rule().init(x)

    @override
    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        every, elements = self.watched
        if state.updates and state.updates % every == 0 and gradient.numel() == elements:
            self.norms2[state.updates] = float(norm2(gradient))
        return self._rule().update(x, gradient, state)

    @override
    def lr_at(self, k: int) -> float:
        return self._rule().lr_at(k)  # the same for every k
