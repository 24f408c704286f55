"""Optimisers as pure functions on values of shape [..., d], with state of the same shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

import torch
from pydantic import (
    Field,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema
from torch import Tensor
from typing_extensions import override

from ..config.limits import MAX_POSITIVE
from ..config.problems import mistake, unknown_key
from ..config.settings import IMPORT_PATH, Positive, Settings
from ..config.user_code.call import is_import_path
from ..program.worker import Optimizer, State
from .learning_rate import LearningRate
from .rules import NAMED_RULES, Parameters, RuleEntry

CONSTANT = LearningRate()


class AdamSettings(Settings):
    """Adam, in the terms of ``torch.optim``."""

    lr: Positive = Field(description="learning rate")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="decay of the mean of gradients")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="decay of the mean of their squares")
    eps: Positive = Field(default=1e-8, description="added to the denominator")
    weight_decay: float = Field(default=0.0, ge=0, le=MAX_POSITIVE, description="L2 penalty")


class AdamWSettings(AdamSettings):
    """AdamW: as Adam, with decoupled weight decay."""

    weight_decay: float = Field(default=0.01, ge=0, le=MAX_POSITIVE, description="decoupled weight decay")


class OptimizerSettings(Settings):
    """Stochastic gradient descent (``lr`` ...), or a rule by name: ``adam``, ``adamw``, ``muon``."""

    lr: Positive | None = Field(default=None, description="SGD: learning rate (required)")
    momentum: float = Field(default=0.0, ge=0, lt=1, description="SGD: heavy-ball momentum")
    nesterov: bool = Field(default=False, description="SGD: Nesterov's form of momentum")
    weight_decay: float = Field(default=0.0, ge=0, le=MAX_POSITIVE, description="SGD: L2 penalty")
    adam: AdamSettings | None = Field(default=None, description="Adam instead of SGD")
    adamw: AdamWSettings | None = Field(default=None, description="AdamW instead of SGD")
    rule: RuleEntry | None = Field(
        default=None, description="your own class package.module:name, instead of SGD"
    )
    clip: Positive | None = Field(
        default=None, description="largest norm of the whole gradient that is stepped along (default: any)"
    )
    schedule: LearningRate | None = Field(
        default=None, description="learning-rate schedule (default: constant)"
    )

    @model_validator(mode="before")
    @classmethod
    def _one_kind(cls, data: Any) -> Any:
        if isinstance(data, str) and _is_rule(data) and data not in _OF_TORCH:
            data = {data: {}}
        if not isinstance(data, Mapping):
            return data
        named = [key for key in data if _is_rule(key) and (data[key] is not None or key not in _OF_TORCH)]
        others = [key for key in ("lr", "momentum", "nesterov", "weight_decay") if key in data]
        if len(named) > 1:
            raise mistake(f"give {named[0]} or {named[1]}, not both", named[1])
        if named and others:
            raise mistake(f"belongs to SGD; put it into '{named[0]}' or leave that out", others[0])
        known = {*cls.model_fields, *NAMED_RULES, "package.module:name"} - {"rule"}
        for key in data:
            if key not in known and not is_import_path(key):
                raise mistake(unknown_key(key, known), key)
        own = {key: data[key] for key in named if key not in _OF_TORCH}
        rest = {key: value for key, value in data.items() if key not in own}
        return {**rest, "rule": own} if own else rest

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.constants is self and self.lr is None:
            raise mistake("is missing", "lr")
        if self.nesterov and self.momentum == 0:
            raise ValueError("nesterov needs a momentum above 0")
        return self

    @property
    def constants(self) -> Settings:
        """The settings among which the learning rate is."""
        return self.adam or self.adamw or (self.rule.options if self.rule else self)

    @property
    def num_moments(self) -> int:
        """Number of moments of the optimiser, each as long as the model; two for a rule by name."""
        return 2 if self.lr is None else int(self.momentum > 0)

    @property
    def needs_whole(self) -> str:
        """What of it needs a whole gradient, not a shard of it: "" or a name."""
        return "clip" if self.clip is not None else self.rule.name if self.rule else ""

    @model_serializer(mode="wrap")
    def _write(self, plain: SerializerFunctionWrapHandler) -> dict[str, Any]:
        data = super()._write(plain)
        if self.lr is None:
            data = {key: data[key] for key in ("adam", "adamw", "rule", "clip", "schedule") if key in data}
        own = data.pop("rule", {})
        return {**({own: {}} if isinstance(own, str) else own), **data}

    @classmethod
    @override
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, read: GetJsonSchemaHandler) -> JsonSchemaValue:
        out = read.resolve_ref_schema(read(schema))
        del out["properties"]["rule"]
        for name, kind in NAMED_RULES.items():
            body = read.resolve_ref_schema(read(kind.options.__pydantic_core_schema__))
            out["properties"][name] = {"anyOf": [body, {"type": "null"}]}
        out["patternProperties"] = {IMPORT_PATH["pattern"]: True}
        return {"anyOf": [out, {"enum": sorted(NAMED_RULES)}, IMPORT_PATH]}


_OF_TORCH: Final = ("adam", "adamw")


def _is_rule(name: str) -> bool:
    return name in _OF_TORCH or name in NAMED_RULES or is_import_path(name)


def make_optimizer(
    settings: OptimizerSettings, num_buffers: int = 0, parameters: Parameters = ()
) -> Optimizer:
    """The update rule of the settings, for models of these tensors and, after them, running buffers."""
    schedule, adaptive = settings.schedule or CONSTANT, settings.adam or settings.adamw
    rule: Optimizer
    if settings.rule is not None:
        rule = settings.rule.of(parameters, schedule)
    elif adaptive is not None:
        rule = Adam(adaptive, schedule)
    else:
        assert settings.lr is not None
        rule = Sgd(settings.lr, settings.momentum, settings.nesterov, settings.weight_decay, schedule)
    if settings.clip is not None:
        rule = Clipped(rule, settings.clip)
    return WithBuffers(rule, num_buffers) if num_buffers else rule


@dataclass(frozen=True)
class NullOptimizer(Optimizer):
    """No update: for runs in which only the clock matters. Some schemes send its ``moments``.

    ``num_buffers``: elements at the end of a model, its running buffers, that have no moments.
    """

    moments: int = 0
    num_buffers: int = 0

    @classmethod
    def like(cls, rule: Optimizer, x: Tensor) -> Self:
        """One whose state is as large as that of a rule for models like ``x``."""
        moments = rule.init(x).moments
        return cls(len(moments), sum(x.shape[-1] - each.shape[-1] for each in moments[:1]))

    @override
    def init(self, x: Tensor) -> State:
        return State(0, (x[..., : x.shape[-1] - self.num_buffers],) * self.moments)

    @override
    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        return x, state

    @override
    def lr_at(self, k: int) -> float:
        return 1.0  # schemes may divide by it


@dataclass(frozen=True)
class Sgd(Optimizer):
    """SGD with momentum and weight decay: the update of ``torch.optim.SGD`` (dampening 0)."""

    lr: float
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    schedule: LearningRate = CONSTANT

    @override
    def init(self, x: Tensor) -> State:
        return State(0, (torch.zeros_like(x),) if self.momentum else ())

    @override
    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        moments = state.moments
        if self.weight_decay:
            gradient = torch.add(gradient, x, alpha=self.weight_decay)
        if self.momentum:
            velocity = torch.add(gradient, moments[0], alpha=self.momentum)
            moments = (velocity,)
            gradient = torch.add(gradient, velocity, alpha=self.momentum) if self.nesterov else velocity
        return torch.add(x, gradient, alpha=-self.lr_at(state.updates)), State(state.updates + 1, moments)

    @override
    def lr_at(self, k: int) -> float:
        return self.lr * self.schedule.factor(k)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, ICLR 2015, algorithm 1) or AdamW: the updates of ``torch.optim``.

    In AdamW weight decay shrinks x itself (decoupled: Loshchilov and Hutter, ICLR 2019, algorithm 2), instead
    of adding to the gradient.
    """

    settings: AdamSettings
    schedule: LearningRate = CONSTANT

    @override
    def init(self, x: Tensor) -> State:
        return State(0, (torch.zeros_like(x), torch.zeros_like(x)))

    @override
    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        s, (mean, square) = self.settings, state.moments
        lr, t = self.lr_at(state.updates), state.updates + 1
        if s.weight_decay and isinstance(s, AdamWSettings):
            x = x * (1 - lr * s.weight_decay)
        elif s.weight_decay:
            gradient = torch.add(gradient, x, alpha=s.weight_decay)
        mean = torch.lerp(mean, gradient, 1 - s.beta1)
        square = torch.addcmul(square * s.beta2, gradient, gradient, value=1 - s.beta2)
        scale = (square.sqrt() / math.sqrt(1 - s.beta2**t)).add_(s.eps)
        return torch.addcdiv(x, mean, scale, value=-lr / (1 - s.beta1**t)), State(t, (mean, square))

    @override
    def lr_at(self, k: int) -> float:
        return self.settings.lr * self.schedule.factor(k)


@dataclass(frozen=True)
class Around(Optimizer):
    """An update rule around another one, whose moments and learning rate it has."""

    rule: Optimizer

    @property
    @override
    def coarse(self) -> bool:  # type: ignore[override]
        return self.rule.coarse

    @override
    def init(self, x: Tensor) -> State:
        return self.rule.init(x)

    @override
    def lr_at(self, k: int) -> float:
        return self.rule.lr_at(k)


@dataclass(frozen=True)
class Clipped(Around):
    """An update rule for gradients of a norm of at most ``most``, by ``torch.nn.utils.clip_grad_norm_``.

    The gradient is what a scheme steps along: an all-reduce's average, a local step's own.
    """

    most: float

    @override
    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        rows = gradient.reshape(-1, gradient.shape[-1])
        norms = torch.stack([torch.linalg.vector_norm(row) for row in rows])  # one row's bits, among many too
        scale = (self.most / (norms + 1e-6)).clamp(max=1.0).reshape(*gradient.shape[:-1], 1)
        return self.rule.update(x, gradient * scale, state)


@dataclass(frozen=True)
class WithBuffers(Around):
    """An update rule for the parameters; the running buffers after them follow their "gradient" exactly.

    That is old value minus new (see ``Workload``): they have no learning rate, momentum or decay.
    """

    num_buffers: int

    def between(self, start: int, stop: int, length: int) -> Optimizer:
        """The rule for elements [start, stop) alone of models [length], and zeros behind them."""
        number = stop - max(start, length - self.num_buffers)
        return WithBuffers(self.rule, min(number, stop - start)) if number > 0 else self.rule

    @override
    def init(self, x: Tensor) -> State:
        return self.rule.init(x[..., : -self.num_buffers])

    @override
    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        b = self.num_buffers
        new, state = self.rule.update(x[..., :-b], gradient[..., :-b], state)
        return torch.cat([new, x[..., -b:] - gradient[..., -b:]], dim=-1), state


@dataclass(frozen=True)
class OncePerRow(Around):
    """An update rule for values [n, d], which takes rows known to be one row, expanded, as that one."""

    @override
    def init(self, x: Tensor) -> State:
        state = self.rule.init(x[:1] if _is_one_row(x) else x)
        return State(state.updates, tuple(each.expand(*x.shape[:-1], -1) for each in state.moments))

    @override
    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        if not all(map(_is_one_row, (x, gradient, *state.moments))):
            return self.rule.update(x, gradient, state)
        first = State(state.updates, tuple(each[:1] for each in state.moments))
        new, after = self.rule.update(x[:1], gradient[:1], first)
        return new.expand_as(x), State(
            after.updates, tuple(each.expand(len(x), -1) for each in after.moments)
        )


def _is_one_row(rows: Tensor) -> bool:
    return len(rows) > 1 and rows.stride(0) == 0
