"""The averaging pattern of one step: a mixing matrix with its messages spelled out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from scipy.sparse import csr_array


@dataclass(frozen=True, eq=False)
class Pattern:
    """A mixing matrix W [n, n] in sparse rows; ``W[i, j]`` is the weight that i gives to j's value.

    Rows are receivers. A directed ring, in which each worker averages with the one before:

    >>> ring = Pattern(own=(0.5, 0.5, 0.5), sources=((2,), (0,), (1,)), weights=((0.5,), (0.5,), (0.5,)))
    >>> ring.matrix
    array([[0.5, 0. , 0.5],
           [0.5, 0.5, 0. ],
           [0. , 0.5, 0.5]])
    >>> ring.destinations
    ((1,), (2,), (0,))

    Attributes:
        own: ``own[i]`` is W[i, i].
        sources: ``sources[i]`` are the j != i with W[i, j] != 0, ascending: the senders to i.
        weights: ``weights[i][k]`` is W[i, sources[i][k]].
    """

    own: tuple[float, ...]
    sources: tuple[tuple[int, ...], ...]
    weights: tuple[tuple[float, ...], ...]

    @classmethod
    def from_matrix(cls, matrix: csr_array[np.float64, tuple[int, int]]) -> Pattern:
        """The pattern of a sparse mixing matrix [n, n]."""
        own = matrix.diagonal()
        rows = np.repeat(np.arange(own.size), np.diff(matrix.indptr))
        kept = (matrix.indices != rows) & (matrix.data != 0.0)
        order = np.lexsort((matrix.indices[kept], rows[kept]))
        ends = np.cumsum(np.bincount(rows[kept], minlength=own.size)).tolist()
        sources = matrix.indices[kept][order].tolist()
        weights = matrix.data[kept][order].tolist()
        spans = list(zip([0, *ends[:-1]], ends, strict=True))
        return cls(
            own=tuple(own.tolist()),
            sources=tuple(tuple(sources[a:b]) for a, b in spans),
            weights=tuple(tuple(weights[a:b]) for a, b in spans),
        )

    @property
    def workers(self) -> int:
        """Number of workers n."""
        return len(self.own)

    def weight(self, receiver: int, source: int) -> float:
        """W[receiver, source] of one of the receiver's sources."""
        return self.weights[receiver][self.sources[receiver].index(source)]

    @cached_property
    def destinations(self) -> tuple[tuple[int, ...], ...]:
        """``destinations[j]``: the i != j with W[i, j] != 0, ascending: the receivers from j."""
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
