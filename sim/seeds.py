"""Random numbers as a pure function of (seed, worker, purpose, index).

Numbers come in blocks of ``BLOCK`` from Philox, a counter-based generator (Salmon et al., SC 2011):
the key is a hash of (seed, purpose, worker), the block number is the high word of the counter. Draw
order cannot matter, so replay, resume, permutation and stacking see the same numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
"""Arrays of numbers in double precision, of any shape."""
Integers = NDArray[np.int64]
"""Arrays of whole numbers, of any shape."""
BLOCK = 256
"""Numbers in a block."""
SHARED = -1
"""The worker of a stream that all workers read."""


def generator(seed: int, worker: int, purpose: str, block: int = 0) -> np.random.Generator:
    """A fresh generator for one block of one stream."""
    key = _key(seed, worker, purpose)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array([0, 0, 0, block], np.uint64)))


def block_rows(
    seed: int, workers: range, purpose: str, block: int, draw: Callable[[np.random.Generator, Floats], object]
) -> Floats:
    """One block of several workers' streams, [len(workers), BLOCK]; ``draw`` fills a row from a generator."""
    rows = np.empty((len(workers), BLOCK))
    # One generator for all rows, set to the state of a fresh one each time: that is ten times as fast.
    bits = np.random.Philox(key=0, counter=np.array([0, 0, 0, block], np.uint64))
    state, numbers = bits.state, np.random.Generator(bits)
    for row, key in zip(rows, _keys(seed, workers, purpose), strict=True):
        state["state"]["key"] = key
        bits.state = state
        draw(numbers, row)
    return rows


@lru_cache(maxsize=8)
def _keys(seed: int, workers: range, purpose: str) -> list[NDArray[np.uint64]]:
    return [_key(seed, worker, purpose) for worker in workers]


def _key(seed: int, worker: int, purpose: str) -> NDArray[np.uint64]:
    digest = hashlib.blake2b(f"{seed}/{purpose}/{worker}".encode(), digest_size=16).digest()
    return np.frombuffer(digest, dtype=np.uint64)


@lru_cache(maxsize=4096)
def uniforms(seed: int, worker: int, purpose: str, block: int) -> Floats:
    """``BLOCK`` numbers uniform on [0, 1)."""
    return generator(seed, worker, purpose, block).random(BLOCK)


@lru_cache(maxsize=4096)
def normals(seed: int, worker: int, purpose: str, block: int) -> Floats:
    """``BLOCK`` standard normal numbers."""
    return generator(seed, worker, purpose, block).standard_normal(BLOCK)


@lru_cache(maxsize=4096)
def exponentials(seed: int, worker: int, purpose: str, block: int) -> Floats:
    """``BLOCK`` exponential numbers of mean 1."""
    return generator(seed, worker, purpose, block).standard_exponential(BLOCK)


def uniform_array(
    seed: int, worker: int, purpose: str, index: int, shape: tuple[int, ...], double: bool
) -> NDArray[np.floating]:
    """Numbers uniform on [0, 1) in ``shape``: draw ``index`` of a stream of arrays, float64 or float32."""
    drawn = generator(seed, worker, f"{purpose}/array", index)
    return drawn.random(shape, np.float64) if double else drawn.random(shape, np.float32)


def normal_array(
    seed: int, worker: int, purpose: str, index: int, shape: tuple[int, ...], double: bool
) -> NDArray[np.floating]:
    """Standard normal numbers in ``shape``: draw ``index`` of a stream of arrays, float64 or float32."""
    drawn = generator(seed, worker, f"{purpose}/array", index)
    return drawn.standard_normal(shape, np.float64) if double else drawn.standard_normal(shape, np.float32)


def uniform(seed: int, worker: int, purpose: str, index: int) -> float:
    """Number ``index`` of a stream of uniforms on [0, 1)."""
    return float(uniforms(seed, worker, purpose, index // BLOCK)[index % BLOCK])


def integer(seed: int, worker: int, purpose: str, index: int, bound: int) -> int:
    """Number ``index`` of a stream of integers uniform on [0, bound)."""
    return int(uniform(seed, worker, purpose, index) * bound)
