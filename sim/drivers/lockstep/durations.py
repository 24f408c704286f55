"""Durations of all workers' gradients, one after another."""

from __future__ import annotations

from typing import Final

import numpy as np

from ... import seeds
from ...compute.model import ComputeModel
from ...seeds import Floats

STRIP: Final = 32
"""Gradients per strip of rows [n], transposed from rows by worker; a strip fits into a cache."""


class Durations:
    """Durations of all workers' gradients, in order."""

    def __init__(self, model: ComputeModel, workers: int) -> None:
        self._model = model
        self._ranks = range(workers)
        self._taken = 0
        self._steady: Floats | None = None if model.varies else model.blocks_s(self._ranks, 0)[:, 0].copy()
        self._block = self._strip = np.empty((0, workers))

    def next_s(self) -> Floats:
        """Seconds of the next gradient on each worker [n]."""
        if self._steady is not None:
            return self._steady
        number, offset = divmod(self._taken, seeds.BLOCK)
        if offset == 0:
            self._block = self._model.blocks_s(self._ranks, number)
        if offset % STRIP == 0:
            self._strip = np.ascontiguousarray(self._block[:, offset : offset + STRIP].T)
        self._taken += 1
        durations_s: Floats = self._strip[offset % STRIP]
        return durations_s
