"""Weights that are drawn from in proportion, and changed, in a time that grows as their number's logarithm.

Memory is taken for keys that have been given a weight; all others weigh the same and take none.
"""

from __future__ import annotations

from array import array


class SumTree:
    """Weights in a row that grows, and the sum of every subtree above them.

    An implicit binary tree: node k has the children 2 k and 2 k + 1, the root is node 1, and a row of up to
    ``capacity`` weights are the leaves from node ``capacity`` on. Each sum is computed anew from its two
    children when one of them changes, so that rounding errors do not pile up.
    """

    def __init__(self) -> None:
        self._capacity = 1
        self._sums = array("d", (0.0, 0.0))
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return self._sums[1]

    @property
    def height(self) -> int:
        """Steps from the root to a leaf."""
        return self._capacity.bit_length() - 1

    def weight(self, place: int) -> float:
        """The weight at a place."""
        return self._sums[self._capacity + place]

    def append(self, weight: float) -> int:
        """Put a weight at the end of the row; returns its place."""
        if self._length == self._capacity:
            self._double()
        self._length += 1
        self.change(self._length - 1, weight)
        return self._length - 1

    def change(self, place: int, weight: float) -> None:
        """Give the place another weight."""
        sums, node = self._sums, self._capacity + place
        sums[node] = weight
        while node > 1:
            node >>= 1
            sums[node] = sums[2 * node] + sums[2 * node + 1]

    def place_at(self, target: float) -> int:
        """The place at which the running sum of the weights passes ``target``, from 0 to below ``total``."""
        sums, node = self._sums, 1
        while node < self._capacity:
            node *= 2
            # Rounding may leave a target beyond the last weight that is not 0.
            if target >= sums[node] and sums[node + 1] > 0:
                target -= sums[node]
                node += 1
        return node - self._capacity

    def _double(self) -> None:
        leaves = self._sums[self._capacity :]
        self._capacity *= 2
        self._sums = sums = array("d", bytes(16 * self._capacity))
        sums[self._capacity : self._capacity + len(leaves)] = leaves
        for node in range(self._capacity - 1, 0, -1):
            sums[node] = sums[2 * node] + sums[2 * node + 1]


class WeightedKeys:
    """Keys from 0 to ``number`` - 1, of which each weighs ``default`` until it is given a weight.

    Args:
        number: of keys, at least 1.
        default: weight of a key that has been given none.
    """

    def __init__(self, number: int, default: float = 1.0) -> None:
        self.number = number
        self._default = default
        self._tree = SumTree()
        self._keys = array("q")  # of the tree's places
        self._places: dict[int, int] = {}
        # Keys without a weight, in a row without gaps: entry p is key p, but where it is noted otherwise.
        self._others: dict[int, int] = {}
        self._entries: dict[int, int] = {}  # key -> its entry, likewise

    @property
    def total(self) -> float:
        """The sum of all weights."""
        return self._tree.total + self._default * self._unweighted

    @property
    def visited(self) -> int:
        """How many keys have been given a weight."""
        return len(self._tree)

    @property
    def height(self) -> int:
        """Levels of the tree above the weights."""
        return self._tree.height

    @property
    def _unweighted(self) -> int:
        return self.number - len(self._tree)

    def weight(self, key: int) -> float:
        """The key's weight."""
        place = self._places.get(key)
        return self._default if place is None else self._tree.weight(place)

    def probability(self, key: int) -> float:
        """The chance that ``draw`` gives this key; where all weights are 0, all are as likely."""
        total = self.total
        return self.weight(key) / total if total > 0 else 1 / self.number

    def change(self, key: int, weight: float) -> None:
        """Give the key a weight of at least 0."""
        place = self._places.get(key)
        if place is not None:
            self._tree.change(place, weight)
            return
        entry, last = self._entries.pop(key, key), self._unweighted - 1
        moved = self._others.pop(last, last)
        if entry != last:
            self._others[entry], self._entries[moved] = moved, entry
        self._places[key] = self._tree.append(weight)
        self._keys.append(key)

    def draw(self, uniform: float) -> int:
        """The key that a number uniform on [0, 1) stands for."""
        total = self.total
        if total <= 0:
            return int(uniform * self.number)
        target = uniform * total
        if target < self._tree.total or not self._unweighted:
            return self._keys[self._tree.place_at(target)]
        entry = min(int((target - self._tree.total) / self._default), self._unweighted - 1)
        return self._others.get(entry, entry)
