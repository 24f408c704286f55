"""Delays from an event until its coroutine resumes: its timer, its helper threads, the code around it.

Without a profile there are no delays. With one, workers that would begin together begin apart, too.
"""

from __future__ import annotations

from .. import seeds
from ..network.transfer import TransferModel


class WakeUpDelays:
    """The wake-up delays of one run: constant, or drawn from measured values with the transfer model's seed.

    Attributes:
        staggered: whether workers begin apart, each at its ``after_gradient_s`` of gradient 0.
        none_after_exchanges, none_after_gradients: whether ``after_exchange_s``, or the other, is always 0.
    """

    def __init__(self, transfer: TransferModel, workers: int) -> None:
        self._seed = transfer.seed
        self._resume_s, self._jitter_s = transfer.resume_s, transfer.resume_jitter_s
        self._late_s, self._delays_s = transfer.late_s, transfer.wake_up_delays_s
        self._exchanges = [0] * workers
        self.staggered = bool(transfer.wake_up_delays_s)
        self.none_after_exchanges = not transfer.resume_s and not transfer.resume_jitter_s
        self.none_after_gradients = not transfer.late_s and not transfer.wake_up_delays_s

    def after_exchange_s(self, rank: int) -> float:
        """Seconds from the end of a worker's next exchange until its coroutine resumes."""
        known = self._jitter_s
        if not known:
            return self._resume_s
        number = self._exchanges[rank]
        self._exchanges[rank] = number + 1
        drawn = known[seeds.integer(self._seed, rank, "unevenness", number, len(known))]
        return max(0.0, self._resume_s + drawn)

    def after_gradient_s(self, rank: int, number: int) -> float:
        """Seconds by which the end of a worker's gradient ``number`` (from 1) is noticed late."""
        known = self._delays_s
        if not known:
            return self._late_s
        first = seeds.integer(self._seed, rank, "lateness", 0, len(known))
        return known[(first + number) % len(known)]
