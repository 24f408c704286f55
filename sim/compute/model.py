"""Durations of computations: a pure function of (seed, worker, index).

Slow ones come a block at a time. A slow period of given length covers step k if one began in the last
``duration`` steps. A Markov chain with two states is driven by one uniform number u per step: u < P(fast ->
slow) makes the worker slow from either state, u >= 1 - P(slow -> fast) makes it fast from either state,
anything between keeps its state. So the state at a step is that of the latest decisive number before it, and
no earlier step is needed. Before the first step the state is drawn from the chain's stationary distribution.

References:
    Propp and Wilson, Exact sampling with coupled Markov chains, 1996 (updates that forget the state).
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .. import seeds
from ..errors import InputError
from ..seeds import Floats
from .compute_settings import Compute, Markov, Straggler, user_duration_s

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
        latest = np.maximum.accumulate(np.where(begins, places, -math.inf))
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
    decides: Callable[[Floats], Mask],
    seed: int,
    worker: int,
    purpose: str,
    block: int,
    at_most: float = math.inf,
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


@dataclass(frozen=True)
class ComputeModel:
    """Durations of gradients.

    Attributes:
        compute: mean and jitter, a trace, or a function of the user's.
        stragglers: slowdowns, which multiply, then pauses, which are added; and crashes.
        gradients_each, added_s: the cost of a sampler, by worker: computations per used gradient, and added
            seconds; none: 1 and 0 s. Or, where batches differ in size, durations over that of the mean batch.
        longer: factor on the duration of each gradient under ``compute``.
        launches_s: added to each.
        accumulate: batches of a gradient, each of which lasts as ``compute`` says.
    """

    compute: Compute
    stragglers: Sequence[Straggler]
    seed: int
    gradients_each: Sequence[float] = ()
    added_s: Sequence[float] = ()
    longer: float = 1.0
    launches_s: float = 0.0
    accumulate: int = 1
    _blocks: dict[int, tuple[int, list[float]]] = field(default_factory=dict, init=False, repr=False)

    @property
    def random(self) -> bool:
        """Whether durations are drawn, or come from a trace or a user's function, however seldom."""
        compute = self.compute
        return (
            compute.jitter is not None
            or compute.trace is not None
            or compute.model is not None
            or any(each.probability is not None or each.markov is not None for each in self.stragglers)
        )

    @property
    def varies(self) -> bool:
        """Whether a worker's gradients may differ in duration."""
        return self.random or any(straggler.at is not None for straggler in self.stragglers)

    def duration_s(self, worker: int, index: int) -> float:
        """Seconds of gradient ``index`` of ``worker``."""
        number, offset = divmod(index, seeds.BLOCK)
        known = self._blocks.get(worker)
        if known is None or known[0] != number:
            known = self._blocks[worker] = (number, self.block_s(worker, number).tolist())
        return known[1][offset]

    def crash_of(self, worker: int) -> int | None:
        """The gradient at whose beginning a worker crashes; None if it stays."""
        planned = (
            straggler.at
            for straggler in self.stragglers
            if straggler.crash and straggler.at is not None and worker in (straggler.workers or ())
        )
        return min(planned, default=None)

    def block_s(self, worker: int, block: int) -> Floats:
        """Durations [BLOCK] of gradients ``block * BLOCK ...`` of a worker; raises as ``blocks_s``."""
        durations: Floats = self.blocks_s(range(worker, worker + 1), block)[0]
        return durations

    def blocks_s(self, workers: range, block: int) -> Floats:
        """Each worker's ``block_s``, [len(workers), BLOCK]; raises as that."""
        durations = self.longer * self._undisturbed_s(workers, block) + self.launches_s
        if self.added_s:
            own = slice(workers.start, workers.stop)
            durations = durations * np.array(self.gradients_each[own])[:, None]
            durations += np.array(self.added_s[own])[:, None]
        pauses = None
        for number, straggler in enumerate(self.stragglers):
            struck = np.stack([slow_mask(straggler, number, self.seed, worker, block) for worker in workers])
            if straggler.slowdown is not None:
                durations = np.where(struck, durations * straggler.slowdown, durations)
            if straggler.pause is not None:
                pauses = np.zeros_like(durations) if pauses is None else pauses
                pauses += np.where(struck, straggler.pause, 0.0)
        return durations if pauses is None else durations + pauses

    def _undisturbed_s(self, workers: range, block: int) -> Floats:
        batches = range(block * self.accumulate, (block + 1) * self.accumulate)
        each_s = np.concatenate([self._batches_s(workers, batch) for batch in batches], axis=1)
        summed_s: Floats = each_s.reshape(len(workers), seeds.BLOCK, self.accumulate).sum(axis=2)
        return summed_s

    def _batches_s(self, workers: range, block: int) -> Floats:
        """Durations of batches [len(workers), BLOCK] without stragglers."""
        compute, trace = self.compute, self.compute.trace
        if trace is not None and trace.workers:
            own = [trace.workers[worker % len(trace.workers)] for worker in workers]
            return np.stack([self._followed_s(values, block) for values in own])
        if trace is not None:
            values = np.array(trace.durations)
            draws = np.stack([seeds.uniforms(self.seed, worker, "compute", block) for worker in workers])
            return values[(draws * len(values)).astype(np.int64)]
        if compute.model is not None:
            first = block * seeds.BLOCK
            indices = range(first, first + seeds.BLOCK)
            return np.array([
                [user_duration_s(compute.model, self.seed, worker, index) for index in indices]
                for worker in workers
            ])  # fmt: skip
        if compute.time is None:
            raise InputError(
                "cluster.compute: 'measured' is for simulations; for a real run write a time (with 0 s its "
                "computations last as long as they do)"
            )
        if compute.jitter is None:
            durations = np.full((len(workers), seeds.BLOCK), compute.time)
        else:
            durations = compute.jitter.factors_of(self.seed, workers, "compute", block)
            durations *= compute.time
        if compute.spread is not None:
            durations *= np.array([[self._own_factor(worker, compute.spread)] for worker in workers])
        return durations

    def _own_factor(self, worker: int, spread: float) -> float:
        """A worker's constant factor on durations: lognormal with mean 1 and this deviation."""
        variance = math.log1p(spread**2)
        normal = float(seeds.normals(self.seed, worker, "own speed", 0)[0])
        return math.exp(math.sqrt(variance) * normal - variance / 2)

    def _followed_s(self, values: tuple[float, ...], block: int) -> Floats:
        """The first of ``values`` first, then the others over and over, in order.

        They begin at one drawn at random, the same for all workers, so that common slowdowns stay common.
        """
        first, rest = np.array(values[:1]), np.array(values[1:] or values)
        begin = seeds.integer(self.seed, seeds.SHARED, "compute", 0, len(rest))
        indices = np.arange(block * seeds.BLOCK, (block + 1) * seeds.BLOCK)
        followed = rest[(begin + indices - 1) % len(rest)]
        return np.where(indices == 0, first, followed)


def steady_compute(model: ComputeModel, workers: int) -> ComputeModel:
    """The model with every computation at its mean, and only permanent stragglers.

    A user's own function counts with its mean over the first gradients of all workers.
    """
    compute = model.compute
    mean_s = compute.time
    if compute.trace is not None:
        trace = compute.trace
        mean_s = statistics.fmean(itertools.chain(trace.durations, *trace.workers))
    elif compute.model is not None:
        undisturbed = ComputeModel(compute, (), model.seed)
        mean_s = sum(float(undisturbed.block_s(rank, 0).mean()) for rank in range(workers)) / workers
    always = [s for s in model.stragglers if s.always]
    update = {"time": mean_s, "jitter": None, "trace": None, "model": None}
    return replace(model, compute=compute.model_copy(update=update), stragglers=always)
