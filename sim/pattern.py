"""One step's averaging pattern: a mixing matrix with its messages spelled out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Pattern:
    """A mixing matrix W [n, n] in sparse rows; ``W[i, j]`` is the weight that i gives to j's value.

    Attributes:
        own: ``own[i]`` is W[i, i].
        sources: ``sources[i]`` are the j != i with W[i, j] != 0, ascending: whom i receives from.
        weights: ``weights[i][k]`` is W[i, sources[i][k]].
    """

    own: tuple[float, ...]
    sources: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...]

    @property
    def workers(self) -> int:
        """Number of workers n."""
        return len(self.own)

    @cached_property
    def destinations(self) -> tuple[tuple[int, ...], ...]:
        """``destinations[j]``: the i != j with W[i, j] != 0, ascending: whom j sends to."""
        out: list[list[int]] = [[] for _ in self.own]
        for i, row in enumerate(self.sources):
            for j in row:
                out[j].append(i)
        return tuple(tuple(row) for row in out)

    @cached_property
    def matrix(self) -> NDArray[np.float64]:
        """W as a dense array [n, n]."""
        w = np.diag(np.array(self.own, dtype=np.float64))
        for i, (row, weights) in enumerate(zip(self.sources, self.weights, strict=True)):
            w[i, list(row)] = weights
        return w
