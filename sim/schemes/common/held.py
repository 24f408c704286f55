"""A worker's memory under a scheme, as the scheme itself declares it.

Each scheme has a function ``held(options, sizes)`` beside its program, in its record in the registry;
``tests/sim/schemes/common/test_held.py`` compares it with the values that running workers hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ...program.encoding import Compression, share_on_the_wire
from ...topology import Plan


@dataclass(frozen=True)
class Sizes:
    """Sizes, beside a scheme's options, that determine a worker's memory.

    Attributes:
        workers: number of workers n.
        moments: of its optimiser, as long as the model each.
        units: workers, or groups of them, that act on their own.
        layers: bytes of each on the wire, in forward order; (): unknown.
    """

    workers: int
    moments: int = 0
    units: int = 0
    layers: tuple[float, ...] = ()

    @property
    def members(self) -> int:
        """Number of workers that act as one."""
        return self.workers // (self.units or self.workers)

    def message(self, momentum: str) -> tuple[int, int]:
        """Models in a message, with ``mixed`` momentum a buffer each too; and how many are copied for it."""
        models = 1 + (self.moments if momentum == "mixed" else 0)
        return models, models if models > 1 else 0


@dataclass(frozen=True)
class Held:
    """A worker's values, each in multiples of a model; of the fullest worker, if they differ.

    Attributes:
        parameters: the current model.
        gradients: the latest.
        optimizer: the moments of its optimiser, and velocities.
        anchors: models, or sums of changes, kept from step to step beside its own.
        outer_momentum: of an outer optimiser.
        in_flight: sends and receives, arriving averages, and the values that they replace.
        master: the model in single precision, where parameters are in 16 bits.
    """

    parameters: float = 1.0
    gradients: float = 1.0
    optimizer: float = 0.0
    anchors: float = 0.0
    outer_momentum: float = 0.0
    in_flight: float = 0.0
    master: float = 1.0


def most_neighbours(plan: Plan) -> int:
    """Largest number of senders to a worker in a step."""
    return max(len(row) for step in range(len(plan.first)) for row in plan.at(step).sources)


def encoded_share(compression: Compression | None) -> float:
    """Size of an encoded value, held beside the value, as a share of it; 0 without a compression."""
    return 0.0 if compression is None else share_on_the_wire(compression.codec)


REPLACED: Final = 1.0
"""The last step's value, which is held until its replacement has arrived."""


def in_rounds(sizes: Sizes) -> float:
    """In flight on a server of rounds: a receive per other worker, all contributions, and the mean."""
    return 2.0 * (sizes.workers - 1) + 2.0
