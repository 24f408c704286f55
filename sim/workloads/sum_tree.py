"""Weighted draws: drawing and changing a weight take a time logarithmic in the number of weights.

Only keys with a weight of their own take memory; all others have one common weight.
"""

from __future__ import annotations

from array import array
from math import inf
from typing import Final

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
