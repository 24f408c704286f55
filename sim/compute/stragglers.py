"""Slow computations of a worker: a pure function of (seed, worker, index), a block at a time.

A slow period of given length covers step k if one began in the last ``duration`` steps. A Markov chain with
two states is driven by one uniform number u per step: u < P(fast -> slow) makes the worker slow from either
state, u >= 1 - P(slow -> fast) makes it fast from either state, anything between keeps its state. So the
state at a step is that of the latest decisive number before it, and no earlier step is needed. Before the
first step the state is drawn from the chain's stationary distribution.

References:
    Propp and Wilson, Exact sampling with coupled Markov chains, 1996 (updates that forget the state).
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

import numpy as np
from numpy.typing import NDArray

from .. import seeds
from ..seeds import Floats
from .settings import Markov, Straggler

Mask = NDArray[np.bool_]


def slow_mask(straggler: Straggler, number: int, seed: int, worker: int, block: int) -> Mask:
    """Whether the computations ``block * BLOCK ...`` of ``worker`` are slow, [BLOCK].

    ``number`` is the straggler's place in the scenario's list; each has its own random numbers.
    """
    if straggler.workers is not None and worker not in straggler.workers:
        return np.zeros(seeds.BLOCK, dtype=bool)
    if straggler.probability is not None:
        chance, duration = straggler.probability, straggler.duration
        begins = _since(lambda u: u < chance, seed, worker, f"straggler {number}", block, duration) < chance
        places = np.arange(len(begins))
        latest = np.maximum.accumulate(np.where(begins, places, -inf))
        return (places - latest)[-seeds.BLOCK :] < duration
    if straggler.markov is not None:
        return _markov(straggler.markov, seed, worker, f"straggler {number}", block)
    if straggler.at is not None:
        index = np.arange(block * seeds.BLOCK, (block + 1) * seeds.BLOCK)
        return (straggler.at <= index) & (index < straggler.at + straggler.duration)
    return np.ones(seeds.BLOCK, dtype=bool)


def _markov(chain: Markov, seed: int, worker: int, purpose: str, block: int) -> Mask:
    to_slow, to_fast = 1 / chain.fast, 1 / chain.slow

    def decides(u: Floats) -> Mask:
        return (u < to_slow) | (u >= 1 - to_fast)

    u = _since(decides, seed, worker, purpose, block)
    first = seeds.uniform(seed, worker, f"{purpose} start", 0) < to_slow / (to_slow + to_fast)
    decisive = np.concatenate([[True], decides(u)])
    state = np.concatenate([[first], u < to_slow])
    latest = np.maximum.accumulate(np.where(decisive, np.arange(len(state)), 0))
    return state[latest][-seeds.BLOCK :]


def _since(
    decides: Callable[[Floats], Mask], seed: int, worker: int, purpose: str, block: int, at_most: float = inf
) -> Floats:
    """Uniform numbers of a block, after those of earlier blocks as far back as they matter.

    That is to the latest earlier block with a decisive number, but no more than ``at_most`` numbers and one
    block back.
    """
    parts = [seeds.uniforms(seed, worker, purpose, block)]
    while block > 0 and (len(parts) - 1) * seeds.BLOCK < at_most:
        block -= 1
        parts.append(seeds.uniforms(seed, worker, purpose, block))
        if decides(parts[-1]).any():
            break
    return np.concatenate(parts[::-1])
