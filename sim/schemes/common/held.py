"""What a worker of a scheme holds in memory at once, as the scheme itself declares it.

Each scheme has a function beside its program, ``held(options, sizes)``, which is a part of its record in the
registry: ``tests/sim/schemes/common/test_held.py`` counts the values that running workers hold and compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...program.encoding import Compression, share_on_the_wire
from ...topology import Plan


@dataclass(frozen=True)
class Sizes:
    """What the memory of a worker depends on beside its scheme's options.

    Attributes:
        workers: number of workers n.
        moments: of its optimiser, as long as the model each.
        units: workers, or groups of them, that act on their own.
    """

    workers: int
    moments: int = 0
    units: int = 0

    @property
    def members(self) -> int:
        """Workers that act as one."""
        return self.workers // (self.units or self.workers)


@dataclass(frozen=True)
class Held:
    """Values that a worker holds at once, each in multiples of a model.

    Where workers have different parts (one is the host of a server) it is the one that holds the most.

    Attributes:
        parameters: the model that it steps.
        gradients: the latest.
        optimizer: the moments of its optimiser, and velocities.
        anchors: models, or sums of changes, that it keeps from step to step beside its own.
        outer_momentum: of an outer optimiser.
        in_flight: what is sent or received, averages as they come, and the values that they replace.
    """

    parameters: float = 1.0
    gradients: float = 1.0
    optimizer: float = 0.0
    anchors: float = 0.0
    outer_momentum: float = 0.0
    in_flight: float = 0.0

    @property
    def total(self) -> float:
        """All of them together."""
        of_training = self.parameters + self.gradients + self.optimizer
        return of_training + self.anchors + self.outer_momentum + self.in_flight


def most_neighbours(plan: Plan) -> int:
    """From how many others a worker receives in a step, at most."""
    return max(len(row) for step in range(len(plan.first)) for row in plan.at(step).sources)


def encoded_share(compression: Compression | None) -> float:
    """What a value's encoded form takes beside it, of its size; 0 without a compression."""
    return 0.0 if compression is None else share_on_the_wire(compression.codec)


REPLACED: Final = 1.0
"""The last step's value, which is there until the one has come that takes its place."""


def on_a_server(visitors: int) -> float:
    """In flight on the host of a server: of each visitor a receive, what it brought, and what it gets."""
    return 3.0 * visitors + 2.0


def in_rounds(sizes: Sizes) -> float:
    """In flight where averages go on without who is late: a server takes everybody's contribution at once.

    It has a receive from each other worker under way, holds what has come, and sends the mean.
    """
    return 2.0 * (sizes.workers - 1) + 2.0
