"""The outer optimiser: SGD on the common model, along the mean change of the workers' local steps."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field
from torch import Tensor
from typing_extensions import override

from ...config.settings import Settings
from ...program.worker import Optimizer, State, Worker
from ...training.optimizer import Around, OncePerRow, Sgd, WithBuffers


class OuterOptimizer(Settings):
    """SGD in the terms of ``torch.optim``; the gradient is the old common model minus the workers' mean."""

    lr: float = Field(default=0.7, gt=0, description="learning rate of the outer steps")
    momentum: float = Field(default=0.9, ge=0, lt=1, description="heavy-ball momentum of the outer steps")
    nesterov: bool = Field(default=True, description="Nesterov's form of that momentum, where there is any")


class OuterSteps(OuterOptimizer):
    """An outer optimiser of workers that share every step."""

    period: int = Field(ge=1, description="steps between outer steps")


def outer_rule(settings: OuterOptimizer, buffers: int) -> Optimizer:
    """The outer optimiser of a part of the model; its last ``buffers`` elements become the workers' mean."""
    rule = Sgd(settings.lr, settings.momentum, settings.nesterov)
    return WithBuffers(rule, buffers) if buffers else rule


def buffers_in(worker: Worker, start: int, stop: int) -> int:
    """Number of running buffers, which no gradient moves, among elements [start, stop) of the model.

    They are the model's last elements (see ``Workload``), and so the last ones of that part.
    """
    optimizer = worker.optimizer
    buffers = optimizer.num_buffers if isinstance(optimizer, WithBuffers) else 0
    first = worker.start.shape[-1] - buffers
    return max(0, stop - max(start, first))


@dataclass(frozen=True)
class WithOuterSteps(Around):
    """An update rule, and every ``period`` updates an outer step from where the last one ended.

    Its moments are the rule's, that model, and the outer momentum where there is any.
    """

    outer: Optimizer
    period: int
    outer_moments: int

    @classmethod
    def of(cls, worker: Worker, settings: OuterSteps) -> Optimizer:
        """The worker's rule with these outer steps."""
        outer = outer_rule(settings, buffers_in(worker, 0, worker.start.shape[-1]))
        return cls(worker.optimizer, OncePerRow(outer), settings.period, int(settings.momentum > 0))

    @override
    def init(self, x: Tensor) -> State:
        return State(0, (*self.rule.init(x).moments, x, *self.outer.init(x).moments))

    @override
    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        k, cut = state.updates, len(state.moments) - 1 - self.outer_moments
        own, (common, *momentum) = state.moments[:cut], state.moments[cut:]
        x, after = self.rule.update(x, gradient, State(k, own))
        if (k + 1) % self.period == 0:
            outer_state = State(k // self.period, tuple(momentum))
            common, outer_state = self.outer.update(common, common - x, outer_state)
            x, momentum = common, [*outer_state.moments]
        return x, State(k + 1, (*after.moments, common, *momentum))
