"""Standard error of scores: they are means over examples, and others would have given others.

A score that is off by its standard error moves the time to the target by that over the slope. Other examples
would move all schemes alike: they are scored on the same ones. So what counts between two schemes is the
standard error of the difference of their times, slice by slice of the examples. Repeats average it out as far
as their examples differ: slices that hold the same ones under every seed are averaged over seeds first.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final

from typing_extensions import TypedDict

from ..verdict import ScoreError

LAST_QUARTER: Final = 0.75
"""Share of the way to the target from which on its slope is taken."""
SPOKEN: Final = 0.01
"""Share of a time to the target up to which its error is not worth a sentence."""


class ScoreSlices(TypedDict):
    """Means of the target's score over slices of its examples, at the model that met it.

    examples: in all; means: of the slices, the same under all schemes; worth: of one unit of the score, as a
    share of the time to the target.
    """

    examples: int
    means: list[float]
    worth: float


def worth_of_score(scores: Sequence[tuple[float, float | None]], target: float, reached_s: float) -> float:
    """Share of the time to the target in which the score changes by 1; ``scores``: (seconds, value).

    By the line through the crossing that fits the scores of the last quarter of the way, and the one before
    it, best. All of these miss the target, so that it cannot go the wrong way. 0: none of them
    is finite.
    """
    way = [(time_s, value) for time_s, value in scores if value is not None and time_s < reached_s]
    since_s = max((time_s for time_s, _ in way if time_s <= LAST_QUARTER * reached_s), default=0.0)
    ahead = [(time_s / reached_s - 1, value - target) for time_s, value in way if time_s >= since_s]
    missing = sum(share * short for share, short in ahead)
    return sum(share**2 for share, _ in ahead) / missing if missing else 0.0


def error_of_ratio(slices: Mapping[int, ScoreSlices], first: Mapping[int, ScoreSlices]) -> float:
    """Standard error of the log of a scheme's time over the first's, by seed; 0: they share none."""
    pairs = [(slices[seed], first[seed]) for seed in sorted(slices.keys() & first.keys())]
    apart = [
        [x * a["worth"] - y * b["worth"] for x, y in zip(a["means"], b["means"], strict=False)]
        for a, b in pairs
    ]
    return _standard_error([sum(each) / len(each) for each in zip(*apart, strict=False)]) if pairs else 0.0


def score_error(runs: Sequence[ScoreSlices], of_ratio: float) -> ScoreError:
    """State the error of the scores of runs that met the target."""
    errors = [_standard_error(run["means"]) for run in runs]
    of_time = median(error * abs(run["worth"]) for error, run in zip(errors, runs, strict=True))
    text = f"Scores are means of {runs[0]['examples']:,} examples: at the target their standard error is "
    text += f"{median(errors):.2g}, worth {100 * of_time:.2g} % of a time to it"
    if of_ratio:
        text += (
            f" and, as all are scored on the same ones, {100 * of_ratio:.2g} % of the ratio of the first two"
        )
    return ScoreError(text=f"{text}.", standard_error=median(errors), of_time=of_time, of_ratio=of_ratio)


def _standard_error(means: Sequence[float]) -> float:
    number = max(len(means), 2)
    centre = sum(means) / number
    return math.hypot(*(each - centre for each in means)) / math.sqrt(number * (number - 1))
