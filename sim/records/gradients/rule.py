"""A rule of two numbers: what other schemes need over all-reduce's examples, from noise and heterogeneity.

log r = a + c log u + d log(1 + v), with u = S2 / (G2 n b) for n b examples a step and v = H2 / G2, both along
all-reduce's run. Least squares over the 36 cells of docs/proxies.md (8 workers, plain SGD, 90 % of the fall
of the loss). It is a hint: nothing is corrected by it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from .noise import NoisePoint, ratio_of_points

RULE: Final[Mapping[str, tuple[float, float, float]]] = MappingProxyType(
    {
        "local SGD (every 4 steps)": (0.312, 0.100, 0.432),
        "local SGD (16)": (0.539, 0.140, 0.617),
        "one-peer gossip": (0.170, 0.078, 0.321),
        "AD-PSGD": (0.468, 0.094, 0.433),
        "DiLoCo (16)": (0.106, 0.082, 0.495),
    }
)
"""Scheme -> a, c, d."""
ERROR: Final = 0.18
"""Mean factor by which the rule is off on a task that it was not fitted to, less 1."""
REACH: Final = ((0.008, 1.2), (0.0, 4.1))
"""Ranges of u and v."""


def hint(points: Sequence[NoisePoint]) -> str:
    """What other schemes would need, by the points of all-reduce's runs; "" where the rule does not reach."""
    scale, apart = (ratio_of_points(points, key)["value"] for key in ("noise", "heterogeneity"))
    if scale is None or apart is None:
        return ""
    numbers = scale / points[0]["examples"], max(apart, 0.0)
    if not all(low <= x <= high for x, (low, high) in zip(numbers, REACH, strict=True)):
        return ""
    u, v = numbers
    needs = ", ".join(
        f"{scheme} {math.exp(a + c * math.log(u) + d * math.log1p(v)):.2f}"
        for scheme, (a, c, d) in RULE.items()
    )
    return (
        f". A hint from small tasks, 8 workers (docs/proxies.md), off by {100 * ERROR:.0f} % in the mean: "
        f"times these examples others would need: {needs}"
    )
