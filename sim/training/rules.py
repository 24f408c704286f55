"""Optimisers by name: ready ones, and a user's own at ``package.module:name``.

::

    class Lion:
        def __init__(self, lr: float = 1e-4, beta1: float = 0.9, beta2: float = 0.99):
            self.lr, self.beta1, self.beta2 = lr, beta1, beta2

        def init(self, x):
            return (torch.zeros_like(x),)

        def update(self, x, gradient, moments, k):
            (mean,) = moments
            step = torch.sign(torch.lerp(gradient, mean, self.beta1))
            return x - self.lr * step, (torch.lerp(gradient, mean, self.beta2),)

Its parameters are options, which a scenario gives: ``optimizer: {my_rules:Lion: {lr: 0.001}}``. One called
``parameters`` gets the model's tensors instead, as a scheme sees them (``worker.parameters``).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Final, Protocol

import torch
from pydantic import Field
from torch import Tensor
from typing_extensions import override

from ..config.problems import format_value
from ..config.registry import Registry
from ..config.settings import Named, Settings
from ..config.user_code import call as user_code
from ..errors import InputError, RunError, quote
from ..program.worker import Optimizer, Parameter, State
from .learning_rate import LearningRate

Parameters = tuple[Parameter, ...]
RuleMoments = tuple[Tensor, ...]


class Rule(Protocol):
    """An update rule for one model, a vector x [d]: pure, so that it writes nothing in place.

    Every worker's model goes through the same object, so that whatever it remembers is in its moments, not in
    ``self``: any number of vectors, of any lengths. A schedule scales the change of x. Running buffers are
    not in x.
    """

    def init(self, x: Tensor) -> RuleMoments:
        """The moments before the first update at ``x``."""

    def update(self, x: Tensor, gradient: Tensor, moments: RuleMoments, k: int) -> tuple[Tensor, RuleMoments]:
        """Take update ``k``, counted from 0, along ``gradient`` [d]; returns the new x and moments."""


@dataclass(frozen=True)
class RuleKind:
    """An optimiser that scenarios can name: the model of its options, and what makes it for a model."""

    options: type[Settings]
    make: Callable[[Any, Parameters], Rule]


NAMED_RULES: Final = Registry[RuleKind](__name__, {"muon": "paceline.extras.papers.muon:MUON"})


def find_rule(name: str) -> RuleKind:
    """Look up a ready rule, or a user's ``package.module:name``; ``InputError`` if none can be there."""
    return NAMED_RULES[name] if name in NAMED_RULES else _users_kind(name, user_code.load_object(name))


@lru_cache(maxsize=64)
def _users_kind(path: str, maker: Callable[..., Any]) -> RuleKind:
    expected = "a class, or a function, that makes an object with init(x) and update(x, gradient, moments, k)"
    if not callable(maker):
        raise InputError(f"{quote(path)} is {format_value(maker)}; it must be {expected}")
    options = user_code.options_of(path, maker, without=("parameters",))
    shaped = "parameters" in inspect.signature(maker).parameters

    def make(given: Settings, parameters: Parameters) -> Rule:
        with user_code.report_errors(quote(path)):
            rule: Rule = maker(**dict(given), **({"parameters": parameters} if shaped else {}))
        if not all(callable(getattr(rule, method, None)) for method in ("init", "update")):
            raise InputError(f"{quote(path)} made {format_value(rule)}; it must be {expected}")
        return rule

    return RuleKind(options, make)


class RuleEntry(Named):
    """An optimiser by name: ready, or the user's own."""

    kind: ClassVar[str] = "optimizer"
    example: ClassVar[str] = "{muon: {lr: 0.02}}"
    registry: ClassVar[Mapping[str, RuleKind]] = NAMED_RULES
    find: ClassVar[Callable[[str], RuleKind]] = find_rule

    name: str = Field(description="which rule")
    options: Settings = Field(description="the rule's own options")

    def of(self, parameters: Parameters, schedule: LearningRate) -> Optimizer:
        """The rule for models of these tensors."""
        rule = find_rule(self.name).make(self.options, parameters)
        return ByRow(self.name, rule, getattr(self.options, "lr", 1.0), schedule)


@dataclass(frozen=True)
class ByRow(Optimizer):
    """A named rule as schemes use it: for a model [d], or each row of models [..., d] alone."""

    name: str
    rule: Rule
    lr: float
    schedule: LearningRate
    coarse: bool = True

    @override
    def init(self, x: Tensor) -> State:
        if x.dim() > 1:
            return _stacked([self.init(row) for row in x])
        with user_code.report_errors(quote(self.name), RunError):
            moments = self.rule.init(x)
        return State(0, self._checked(moments, "init"))

    @override
    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        k = state.updates
        if x.dim() > 1:
            rows = zip(x, gradient, *state.moments, strict=True)
            updated = [self.update(row, along, State(k, tuple(own))) for row, along, *own in rows]
            return torch.stack([new for new, _ in updated]), _stacked([after for _, after in updated])
        given = (x, gradient, *state.moments)
        versions, own = [each._version for each in given], _contents(self.rule)
        with user_code.report_errors(quote(self.name), RunError):
            returned: object = self.rule.update(x, gradient, state.moments, k)
        if not (isinstance(returned, tuple) and len(returned) == 2):
            what = format_value(returned)
            raise RunError(f"{quote(self.name)}: its update returned {what}; it must return (x, moments)")
        new, moments = returned
        if changed := [key for key, value in _contents(self.rule).items() if own.get(key) != value]:
            raise RunError(
                f"{quote(self.name)}: its update changes self.{changed[0]}, but one object serves all "
                "workers; keep that among the moments"
            )
        if versions != [each._version for each in given]:
            raise RunError(
                f"{quote(self.name)}: its update writes in place, into what it was given; use new tensors"
            )
        if not (isinstance(new, Tensor) and new.shape == x.shape and new.dtype == x.dtype):
            shape = (
                f"a tensor {list(new.shape)} ({new.dtype})" if isinstance(new, Tensor) else format_value(new)
            )
            raise RunError(
                f"{quote(self.name)}: its update returned {shape} as the new x; it must be a tensor "
                f"{list(x.shape)} ({x.dtype})"
            )
        factor = self.schedule.factor(k)
        new = new if factor == 1 else torch.lerp(x, new, factor)
        return new, State(k + 1, self._checked(moments, "update"))

    def _checked(self, moments: object, method: str) -> RuleMoments:
        if isinstance(moments, tuple) and all(isinstance(m, Tensor) and m.dim() == 1 for m in moments):
            return moments
        raise RunError(
            f"{quote(self.name)}: its {method} returned {format_value(moments)} as moments; they must be a "
            "tuple of vectors, () where there are none"
        )

    @override
    def lr_at(self, k: int) -> float:
        return self.lr * self.schedule.factor(k)


def _contents(rule: Rule) -> dict[str, tuple[int, int]]:
    """What an object's attributes are, and how often tensors among them have been written to."""
    return {
        key: (id(value), getattr(value, "_version", 0))
        for key, value in getattr(rule, "__dict__", {}).items()
    }


def _stacked(states: list[State]) -> State:
    columns = zip(*(each.moments for each in states), strict=True)
    return State(states[0].updates, tuple(torch.stack(column) for column in columns))
