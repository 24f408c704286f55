"""Graphs: who hears whom in a step. Directed edges j -> i as sets of sources per worker."""

from __future__ import annotations

Sources = tuple[tuple[int, ...], ...]
"""``sources[i]``: the j != i that worker i hears, ascending."""


def _circulant(n: int, offsets: set[int]) -> Sources:
    return tuple(tuple(sorted({(i - o) % n for o in offsets} - {i})) for i in range(n))


def exponential_offsets(n: int) -> tuple[int, ...]:
    """The powers of two below n: 1, 2, 4, ... (ceil(log2 n) of them for n >= 2)."""
    return tuple(1 << e for e in range((n - 1).bit_length()))


def ring(n: int, step: int) -> Sources:
    """Each worker hears both neighbours on a cycle (one neighbour where n = 2)."""
    return _circulant(n, {1, n - 1})


def complete(n: int, step: int) -> Sources:
    """Everybody hears everybody."""
    return _circulant(n, set(range(1, n)))


def static_exponential(n: int, step: int) -> Sources:
    """Worker i sends to i + 1, i + 2, i + 4, ... (mod n).

    Source: Ying et al., NeurIPS 2021 (arXiv 2110.13363).
    """
    return _circulant(n, set(exponential_offsets(n)))


def one_peer_exponential(n: int, step: int) -> Sources:
    """Worker i sends to i + 2^(step mod ceil(log2 n)) alone.

    For n a power of two, ceil(log2 n) steps average exactly. Source: Ying et al., NeurIPS 2021.
    """
    offsets = exponential_offsets(n)
    return _circulant(n, {offsets[step % len(offsets)]})
