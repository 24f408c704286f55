"""Moments of gradients (``sim.training.gradient_noise``) along a run: ratios, and a description in words.

Both hold for the learning rate and the loss beside them: the same task at another rate has others.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from typing_extensions import TypedDict

from ...seeds import Floats
from ..intervals import LEVEL

_FACTORS: Final = ("1/300", "1/100", "1/30", "1/10", "1/3", "1", "3", "10", "30", "100", "300")


class NoisePoint(TypedDict):
    """Moments S2, H2 and G2 at a model that has seen ``step`` steps of ``examples`` each, with the loss then.

    ``lr``: of its next step. H2 and G2 are None where workers had no common model, H2 also for one worker.
    """

    step: int
    examples: int
    loss: float | None
    lr: float
    noise: float
    heterogeneity: float | None
    norm2: float | None


class MeanRatio(TypedDict):
    """A ratio of means with its 95 % interval; all None: not resolved."""

    value: float | None
    low: float | None
    high: float | None


class GradientSummary(TypedDict):
    """S2 / G2 (in examples) and H2 / G2 of a scheme's runs, each in the first and the second half of them."""

    text: str
    noise_scale: list[MeanRatio]
    heterogeneity: list[MeanRatio]


NOT_RESOLVED = MeanRatio(value=None, low=None, high=None)


def ratio_of_means(above: Sequence[float] | Floats, below: Sequence[float] | Floats) -> MeanRatio:
    """mean(above) / mean(below) of K pairs from neighbouring points, with Fieller's interval.

    Not resolved where fewer than two pairs, or their spread, do not tell the lower mean from 0. Pairs are
    independent; where their means drift along a run, the interval is too wide rather than too narrow.
    """
    from scipy.special import stdtrit  # slow to import

    count = len(above)
    if count < 2:
        return NOT_RESOLVED
    top, bottom = float(np.mean(above)), float(np.mean(below))
    (v_top, v_both), (_, v_bottom) = (np.cov(np.array([above, below])) / count).tolist()
    t2 = float(stdtrit(count - 1, (1 + LEVEL) / 2)) ** 2
    a, b, c = bottom**2 - t2 * v_bottom, top * bottom - t2 * v_both, top**2 - t2 * v_top
    if bottom <= 0 or a <= 0:
        return NOT_RESOLVED
    root = math.sqrt(max(b * b - a * c, 0.0))
    return MeanRatio(value=top / bottom, low=(b - root) / a, high=(b + root) / a)


def describe_gradients(points: Sequence[NoisePoint]) -> GradientSummary:
    """Describe the points of a scheme's runs, at least one, in factors of three."""
    points = sorted(points, key=lambda point: point["step"])
    middle, examples = points[-1]["step"] / 2, points[0]["examples"]
    halves = [[p for p in points if (p["step"] > middle) == late] for late in (False, True)]
    scale, apart = ([ratio_of_points(half, key) for half in halves] for key in ("noise", "heterogeneity"))
    text = "only the noise of gradients within workers was measured: they had no model in common"
    if any(p["norm2"] is not None for p in points):
        text = (
            f"{examples} examples a step, beside what this task can use: {_in_words(scale, examples)}; "
            f"variance between workers, beside the mean gradient's square: {_in_words(apart)}"
        )
    rates, losses = ([f"{p[key]:.3g}" for p in points if p[key] is not None] for key in ("lr", "loss"))
    spans = [" to ".join(dict.fromkeys((each[0], each[-1]))) for each in (rates, losses or ["not finite"])]
    text += f" (learning rate {spans[0]}, loss {spans[1]})"
    return GradientSummary(text=text, noise_scale=scale, heterogeneity=apart)


def ratio_of_points(points: Sequence[NoisePoint], key: Literal["noise", "heterogeneity"]) -> MeanRatio:
    """S2 / G2 or H2 / G2 of points that have both."""
    known = [(p[key], p["norm2"]) for p in points]
    pairs = np.array([pair for pair in known if None not in pair], float).reshape(-1, 2)
    return ratio_of_means(pairs[:, 0], pairs[:, 1])


def _in_words(ratios: Sequence[MeanRatio], per: float | None = None) -> str:
    """Ratios early and late, or ``per`` over them, each as 'far beyond early (10 times; 3 to 30)'."""
    phrases = []
    for ratio, when in zip(ratios, ("early", "late"), strict=True):
        value, low, high = ratio["value"], ratio["low"], ratio["high"]
        if value is None or low is None or high is None or low <= 0:
            phrases.append(f"not resolved {when}")
            continue
        ends = sorted(per / each if per else each for each in (low, high))
        powers = [round(2 * math.log10(each)) for each in (per / value if per else value, *ends)]
        factor, least, most = (_FACTORS[min(max(power, -5), 5) + 5] for power in powers)
        kind = ("near", "beyond", "far beyond", "far below", "below")[min(max(powers[0], -2), 2)]
        times = "" if factor == "1" else f"{factor} times"
        more = "; ".join(filter(None, (times, "" if least == most else f"{least} to {most}")))
        phrases.append(f"{kind} {when}" + (f" ({more})" if more else ""))
    return ", ".join(phrases)


RULE: Final[Mapping[str, tuple[float, float, float]]] = MappingProxyType(
    {
        "local SGD (every 4 steps)": (0.312, 0.100, 0.432),
        "local SGD (16)": (0.539, 0.140, 0.617),
        "one-peer gossip": (0.170, 0.078, 0.321),
        "AD-PSGD": (0.468, 0.094, 0.433),
        "DiLoCo (16)": (0.106, 0.082, 0.495),
    }
)
"""Scheme -> a, c, d of what it needs over all-reduce's examples: log r = a + c log u + d log(1 + v).

u = S2 / (G2 n b) for n b examples a step and v = H2 / G2, both along all-reduce's run. Least squares over the
36 cells of docs/proxies.md (8 workers, plain SGD, 90 % of the fall of the loss). It is a hint: nothing is
corrected by it.
"""
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
