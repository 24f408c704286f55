"""Stochastic reweighted gradient: examples are drawn by the norms of their last gradients.

With g_i the norm of example i's gradient at its last evaluation (1 before), q_i = g_i / sum_j g_j, and a coin
that shows heads with probability theta:

    SRG:   heads: i ~ uniform, else i ~ q;       p_i = theta / n + (1 - theta) q_i
    SRG+:  heads: (i, j) from a maximal coupling of v and uniform, v_i = L_i / sum_k L_k, else i ~ q;
           p_i = theta v_i + (1 - theta) q_i
    x <- x - step of the optimiser at grad f_i(x) / (n p_i)
    heads: g_i <- |grad f_i(x)|;  in SRG+ g_j <- |grad f_j(x)|, one gradient more where j is not i

Each worker draws from its own examples with its own table, so its gradient is an unbiased estimate of its
mean gradient under every averaging scheme. A batch of several is drawn from one table, which is refreshed
afterwards. theta = 1 is SGD that draws with replacement.

Source: El Hanchi and Stephens, arXiv 2103.12243 (SRG); El Hanchi, Stephens and Maddison, ICML 2022 (SRG+).
The rules are those of two re-implementations of theirs.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
from pydantic import Field, model_validator
from pydantic.json_schema import JsonSchemaValue

from .. import seeds
from ..config.settings import OneOf, Settings
from ..config.units import BoundedSeconds
from ..errors import SchemeError
from ..seeds import Floats
from .partition import Indices

_BITS: Final = 3
FAN_OUT: Final = 2**_BITS
"""Neighbours with one common sum: as many as one line of a processor's cache holds."""


class SumTree:
    """Weights in a growing row, and rows of sums above it.

    Place i of a row is the sum of the places from ``FAN_OUT`` i on of the row below, as many as there are up
    to ``FAN_OUT``; so is the total of the uppermost row. Each sum is recomputed when one of its parts
    changes, so rounding errors do not pile up.
    """

    def __init__(self) -> None:
        self.rows = [array("d")]
        self.total = 0.0

    def __len__(self) -> int:
        return len(self.rows[0])

    def append(self, weight: float) -> int:
        """Append a weight to the row; returns its place."""
        place = node = len(self)
        for row in self.rows:
            if node == len(row):
                row.append(0.0)
            node >>= _BITS
        top = self.rows[-1]
        if len(top) > FAN_OUT:
            self.rows.append(array("d", (sum(top[:FAN_OUT]), 0.0)))
        self.change(place, weight)
        return place

    def change(self, place: int, weight: float) -> None:
        """Change the weight at a place."""
        for row in self.rows:
            row[place] = weight
            place >>= _BITS
            first = place << _BITS
            weight = sum(row[first : first + FAN_OUT])
        self.total = weight

    def place_at(self, target: float) -> int:
        """The place at which the running sum of the weights passes ``target``, from 0 to below ``total``."""
        place = 0
        for row in reversed(self.rows):
            place <<= _BITS
            for weight in row[place : place + FAN_OUT]:
                if target < weight:
                    break
                target -= weight
                place += 1
            else:  # rounding left the target beyond the last weight above 0, its place
                target, place = inf, place - 1
                while row[place] <= 0:
                    place -= 1
        return place


class WeightedKeys:
    """Keys from 0 to ``number`` - 1 (at least 1 key), each of weight 1 until it has its own."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.tree = SumTree()
        self._keys = array("q")  # of the tree's places
        self._places: dict[int, int] = {}
        # Keys without a weight, in a row without gaps: entry p is key p, except as noted here.
        self._others: dict[int, int] = {}
        self._entries: dict[int, int] = {}  # key -> its entry, without a weight of its own

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return self.tree.total + self._unweighted

    @property
    def _unweighted(self) -> int:
        return self.number - len(self.tree)

    def weight(self, key: int) -> float:
        """The key's weight."""
        place = self._places.get(key)
        return 1.0 if place is None else self.tree.rows[0][place]

    def probability(self, key: int) -> float:
        """The chance that ``draw`` gives this key; where all weights are 0, all are as likely."""
        total = self.total
        return self.weight(key) / total if total > 0 else 1 / self.number

    def change(self, key: int, weight: float) -> None:
        """Give the key a weight of at least 0."""
        place = self._places.get(key)
        if place is not None:
            self.tree.change(place, weight)
            return
        entry, last = self._entries.pop(key, key), self._unweighted - 1
        moved = self._others.pop(last, last)
        if entry != last:
            self._others[entry], self._entries[moved] = moved, entry
        self._places[key] = self.tree.append(weight)
        self._keys.append(key)

    def draw(self, uniform: float) -> int:
        """The key for a number uniform on [0, 1)."""
        total = self.total
        if total <= 0:
            return int(uniform * self.number)
        target = uniform * total
        if target < self.tree.total or not self._unweighted:
            return self._keys[self.tree.place_at(target)]
        entry = min(int(target - self.tree.total), self._unweighted - 1)
        return self._others.get(entry, entry)


class Reweighting(Settings):
    """Options of ``srg`` and ``srg_plus``."""

    theta: float = Field(
        default=0.5, gt=0, le=1, description="share of the draws that ignore the table and may refresh it"
    )
    level_time: BoundedSeconds = Field(
        default=1e-7,
        description="cost of a draw and its refresh per level of the tree: batch_size log2(examples of the "
        "worker + 1) times this is added to a gradient's duration",
    )


class SamplerSettings(OneOf):
    """A worker's way to draw examples: ``srg`` or ``srg_plus``, or with options ``{srg: {theta: 0.3}}``."""

    alternatives: ClassVar[tuple[str, ...]] = ("srg", "srg_plus")
    other_forms: ClassVar[tuple[JsonSchemaValue, ...]] = ({"enum": ["srg", "srg_plus"]},)

    srg: Reweighting | None = Field(default=None, description="by each example's last known gradient norm")
    srg_plus: Reweighting | None = Field(
        default=None,
        description="by gradient norm and smoothness; tasks logistic, quadratic and random-features only",
    )

    @model_validator(mode="before")
    @classmethod
    def _short(cls, data: Any) -> Any:
        return {data: {}} if data in cls.alternatives else data

    @property
    def reweighting(self) -> Reweighting:
        """The options of the chosen rule."""
        chosen = self.srg or self.srg_plus
        assert chosen is not None
        return chosen


class Draw(NamedTuple):
    """The examples of one gradient.

    Attributes:
        examples: of the training set [m].
        weights: of their gradients [m]; the weighted sum is the gradient. 0: only the norm is needed.
        refreshed: (place in ``examples``, index among the worker's examples) of the norms for the table.
    """

    examples: Indices
    weights: Floats
    refreshed: tuple[tuple[int, int], ...]


class Coupling:
    """A maximal coupling of law v (in proportion) and the uniform law: they differ as seldom as possible."""

    def __init__(self, smoothness: Floats) -> None:
        n = len(smoothness)
        self.v: Floats = smoothness / smoothness.sum()
        common = np.minimum(self.v, 1 / n)
        self.overlap = float(common.sum())
        """The chance that the two are equal."""
        self._common, self._first = np.cumsum(common), np.cumsum(self.v - common)
        self._second = np.cumsum(1 / n - common)

    def draw(self, one: float, other: float) -> tuple[int, int]:
        """(i, j) for two numbers uniform on [0, 1): i by v, j uniform."""
        if one < self.overlap or self._first[-1] <= 0:
            both = _place(self._common, one)
            return both, both
        return _place(self._first, one - self.overlap), _place(self._second, other * self._second[-1])


def _place(sums: Floats, target: float) -> int:
    last = int(np.searchsorted(sums, sums[-1], side="left"))  # later places have probability 0
    return min(int(np.searchsorted(sums, target, side="right")), last)


@dataclass(frozen=True, eq=False)
class Sampler:
    """Draws ``batch_size`` examples per gradient of a worker, whose gradient 0 begins with an empty table.

    ``smoothness`` is L_i of every training example [N], for ``srg_plus``.
    """

    settings: SamplerSettings
    shards: Sequence[Indices]
    batch_size: int
    seed: int
    smoothness: Floats | None = None
    _tables: dict[int, WeightedKeys] = field(default_factory=dict, init=False, repr=False)
    """Known gradient norms of each worker's examples, before its gradient number ``_next``."""
    _next: Counter[int] = field(default_factory=Counter, init=False, repr=False)
    _couplings: dict[int, Coupling] = field(default_factory=dict, init=False, repr=False)

    def draw(self, worker: int, index: int) -> Draw:
        """The examples of the worker's gradient ``index``; ``refresh`` has had the draw of the one before.

        Raises ``SchemeError`` where gradients are not computed in order.
        """
        shard, theta = self.shards[worker], self.settings.reweighting.theta
        n, size = len(shard), self.batch_size
        if index == 0:
            self._tables[worker], self._next[worker] = WeightedKeys(n), 0
        if self._next[worker] != index:
            raise SchemeError(f"worker {worker}: with a sampler gradient {index} needs the one before it")
        norms = self._tables[worker]
        coupling = self.coupling(worker) if self.settings.srg_plus is not None else None
        uniforms = self._uniforms(worker, index)
        drawn: list[int] = []
        looked_at: list[int] = []
        refreshed: list[tuple[int, int]] = []
        for place, (coin, one, other, by_table) in enumerate(uniforms.tolist()):
            if coin >= theta:
                key = again = norms.draw(by_table)
            elif coupling is None:
                key = again = int(one * n)
                refreshed.append((place, key))
            else:
                key, again = coupling.draw(one, other)
                refreshed.append((place + (size if again != key else 0), again))
            drawn.append(key)
            looked_at.append(again)
        weights = np.empty(size)
        for place, key in enumerate(drawn):
            prior = 1 / n if coupling is None else float(coupling.v[key])
            weights[place] = 1 / (n * (theta * prior + (1 - theta) * norms.probability(key))) / size
        if coupling is not None:
            drawn, weights = drawn + looked_at, np.concatenate([weights, np.zeros(size)])
        return Draw(shard[drawn], weights, tuple(refreshed))

    def _uniforms(self, worker: int, index: int) -> Floats:
        """Four numbers for each draw of a gradient, [batch_size, 4]."""
        needed = 4 * self.batch_size
        first, last = index * needed, (index + 1) * needed
        blocks = range(first // seeds.BLOCK, (last - 1) // seeds.BLOCK + 1)
        numbers = [seeds.uniforms(self.seed, worker, "sampler", block) for block in blocks]
        begin = first - blocks.start * seeds.BLOCK
        return np.concatenate(numbers)[begin : begin + needed].reshape(-1, 4)

    def refresh(self, worker: int, draw: Draw, norms: Floats) -> None:
        """Update the table with the norms [m] of the gradients of a draw's examples."""
        for place, key in draw.refreshed:
            self._tables[worker].change(key, float(norms[place]))
        self._next[worker] += 1

    def coupling(self, worker: int) -> Coupling:
        """The coupling of ``srg_plus`` among a worker's examples."""
        if worker not in self._couplings:
            assert self.smoothness is not None
            self._couplings[worker] = Coupling(self.smoothness[self.shards[worker]])
        return self._couplings[worker]

    def added_s(self, worker: int) -> float:
        """Seconds of drawing and refreshing beside each gradient of a worker."""
        levels = math.log2(len(self.shards[worker]) + 1)
        return self.settings.reweighting.level_time * self.batch_size * levels

    def gradients_each(self, worker: int) -> float:
        """Mean number of gradients that a worker computes per used one."""
        if self.settings.srg_plus is None:
            return 1.0
        return 1.0 + self.settings.reweighting.theta * (1 - self.coupling(worker).overlap)
