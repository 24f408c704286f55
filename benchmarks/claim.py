"""What a page about a paper is made of: studies, claims, and what else is measured.

A *study* is a scenario of ``scenarios/papers/<paper>/``, perhaps changed as by ``--set``. A *claim* is about
a ratio between two of its schemes, or of one scheme in two studies: seed by seed, so that both saw the same
data and the same stragglers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PaperStudy:
    """One scenario to simulate.

    Attributes:
        name: what it is called, and the folder of its results.
        scenario: stem of the file in the paper's folder; another's too, as ``../other-paper/stem``.
        changes: ``dotted.key=value`` each.
        front: a metric, of which the page names the best scores for the time of a step.
    """

    name: str
    scenario: str
    changes: tuple[str, ...] = ()
    front: tuple[str, Literal["rising", "falling"]] | None = None


@dataclass(frozen=True)
class Claim:
    """``quantity`` of one scheme over that of another lies between two bounds.

    Attributes:
        says: in words.
        quantity: a name in ``benchmarks.papers`` (QUANTITIES, OF_LEADERS), or a metric at the end of the run.
        above, below: (study, label) of the two schemes; without ``below`` it is about the quantity itself.
        at_least, at_most: what the claim says of the ratio.
    """

    says: str
    quantity: str
    above: tuple[str, str]
    below: tuple[str, str] | None
    at_least: float = 0.0
    at_most: float = math.inf


@dataclass(frozen=True)
class Paper:
    """What is simulated for one page, and what is claimed.

    Attributes:
        studies, claims: the scenarios, and what is said of their runs.
        more: makes a part of the page that is not about runs.
    """

    studies: tuple[PaperStudy, ...]
    claims: tuple[Claim, ...]
    more: Callable[[], str] | None = None
