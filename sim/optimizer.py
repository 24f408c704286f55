"""Optimisers as pure functions on values of shape [..., d], with state of the same shape."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from pydantic import Field, model_validator

from sim.settings import Settings

Tensor = torch.Tensor
State = tuple[Tensor, ...]


class OptimizerSettings(Settings):
    """Stochastic gradient descent, in the terms of ``torch.optim.SGD``."""

    lr: float = Field(gt=0, allow_inf_nan=False, description="learning rate")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="heavy-ball momentum")
    nesterov: bool = Field(default=False, description="Nesterov's form of momentum")
    weight_decay: float = Field(default=0.0, ge=0, allow_inf_nan=False, description="L2 penalty")

    @model_validator(mode="after")
    def _nesterov_needs_momentum(self) -> OptimizerSettings:
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self


class Optimizer(Protocol):
    """An update rule; pure, and elementwise over all axes but the last."""

    def init(self, x: Tensor) -> State:
        """The state before the first update at ``x``."""

    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """One step from ``x``; returns the new value and the new state, writes nothing in place."""


@dataclass(frozen=True)
class Still:
    """No update at all: for runs in which only the clock matters."""

    def init(self, x: Tensor) -> State:
        """No state."""
        return ()

    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """The same value."""
        return x, state


@dataclass(frozen=True)
class Sgd:
    """SGD with momentum and weight decay: the update of ``torch.optim.SGD`` (dampening 0)."""

    settings: OptimizerSettings

    def init(self, x: Tensor) -> State:
        """The state before the first update at ``x``."""
        return (torch.zeros_like(x),) if self.settings.momentum else ()

    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """One step from ``x``; returns the new value and the new state, writes nothing in place."""
        s = self.settings
        if s.weight_decay:
            gradient = torch.add(gradient, x, alpha=s.weight_decay)
        if s.momentum:
            velocity = torch.add(gradient, state[0], alpha=s.momentum)
            state = (velocity,)
            gradient = torch.add(gradient, velocity, alpha=s.momentum) if s.nesterov else velocity
        return torch.add(x, gradient, alpha=-s.lr), state
