"""Replicas of a model that average it over a slow network: how much of the time they compute, in closed form.

Every ``period`` steps of t seconds, each of P fragments of the model is averaged once, one after another:

    exchange = wire_bits / (P B) + latency            of a fragment, over a link of B bits per second
    exposed  = P max(0, exchange - hidden_steps t)    of a period
    utilisation = period t / (period t + exposed)

Data parallelism is a period of one step and one fragment, DiLoCo a longer period, streaming DiLoCo several
fragments; what hides an exchange is the share of a step that goes on while gradients are complete already,
and the steps that streaming DiLoCo lets a fragment be under way. All replicas take equally long for a step.

Source: recovered from table 4 of Douillard et al., arXiv 2501.18512, whose simulator is not public. With
``hidden_steps`` of 0 it is the time model of Charles et al., arXiv 2503.09799, appendix A; with period / P an
exchange may take until the next fragment's turn comes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

BACKWARD_SHARE: Final = 2 / 3
"""Of a step: its backward pass takes twice as long as its forward pass."""


def ring_share(replicas: int) -> float:
    """Bits that cross each replica's link in a ring all-reduce, for each bit of the model.

    >>> ring_share(4)
    1.5
    """
    if replicas < 1:
        raise ValueError(f"{replicas} replicas")
    return 2 * (replicas - 1) / replicas


@dataclass(frozen=True)
class LowCommunication:
    """How replicas of a model train and average it.

    Attributes:
        wire_bits: that cross a replica's link each way while the whole model is averaged once: parameters,
            times bits of each, times ``ring_share`` where it is a ring all-reduce.
        step_s: seconds of computing in a step.
        period: steps after which every fragment has been averaged once.
        fragments: parts of the model that are averaged apart from each other.
        hidden_steps: steps of computing that go on while a fragment is averaged.
        latency_s: of averaging one fragment, apart from its bits.

    >>> diloco = LowCommunication(wire_bits=16e9, step_s=0.1, period=100)
    >>> diloco.utilisation(1.6e9), diloco.needed_bandwidth(0.5)  # 10 s computing, 10 s averaging
    (0.5, 1600000000.0)
    """

    wire_bits: float
    step_s: float
    period: int = 1
    fragments: int = 1
    hidden_steps: float = 0.0
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("wire_bits", "step_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        for name in ("period", "fragments"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("hidden_steps", "latency_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 0")

    @property
    def computing_s(self) -> float:
        """Of a period."""
        return self.period * self.step_s

    def exposed_s(self, bandwidth: float) -> float:
        """Seconds of a period in which replicas wait, over links of ``bandwidth`` bits per second."""
        if not bandwidth > 0:
            raise ValueError(f"a bandwidth of {bandwidth} bit/s")
        exchange_s = self.wire_bits / self.fragments / bandwidth + self.latency_s
        return self.fragments * max(0.0, exchange_s - self.hidden_steps * self.step_s)

    def utilisation(self, bandwidth: float) -> float:
        """The share of the time in which replicas compute, over links of ``bandwidth`` bits per second."""
        return self.computing_s / (self.computing_s + self.exposed_s(bandwidth))

    def needed_bandwidth(self, utilisation: float) -> float:
        """The least bandwidth, in bits per second, with which replicas compute for such a share of the time.

        Returns:
            ``inf`` where latency alone takes too long.

        Raises:
            ValueError: it is not above 0 and at most 1.
        """
        if not 0 < utilisation <= 1:
            raise ValueError(f"a utilisation of {utilisation}; it must be above 0 and at most 1")
        exposed_s = (1 / utilisation - 1) * self.computing_s
        allowed_s = exposed_s / self.fragments + self.hidden_steps * self.step_s - self.latency_s
        return self.wire_bits / self.fragments / allowed_s if allowed_s > 0 else math.inf

    def duration_s(self, steps: float, bandwidth: float) -> float:
        """Seconds that so many steps take over links of ``bandwidth`` bits per second."""
        return steps * self.step_s / self.utilisation(bandwidth)
