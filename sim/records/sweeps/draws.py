"""What draws from ranges say: how often each scheme is first, and which input decides that.

An input *decides* where one threshold of it parts the draws: on either side another scheme is first in at
least ``_SURE`` of them. The threshold is the best cut of a decision tree with one node.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from typing_extensions import TypedDict

from ...config.keys import short_keys
from ...config.units import Format, parse_number
from ...seeds import Floats

_SURE: Final = 2 / 3
_LEAST: Final = 0.05
"""Least share of the draws on either side of a threshold."""


class Share(TypedDict):
    """Share of the draws in which a scheme is first (label None: in which none arrives), with its interval.

    ``low`` and ``high``: Wilson's 95 % interval of independent draws; even ones are surer than that.
    """

    label: str | None
    share: float
    low: float
    high: float


class Input(TypedDict):
    """A key that was drawn.

    Attributes:
        key: of the scenario.
        range: as written.
        index: part of the variance of "who is first" that this input alone explains, 0 to 1.
        at: the threshold, in SI; None where no cut separates anything.
        below, above: the scheme that is mostly first there.
        below_share, above_share: in which share of the draws there.
    """

    key: str
    range: str
    index: float
    at: float | None
    below: str | None
    above: str | None
    below_share: float
    above_share: float


class Draws(TypedDict):
    """Shares of first places, and inputs, the most important first.

    ``text``: sentences without a full stop. ``decides``: key of the input that decides; None: no single one.
    """

    text: str
    shares: list[Share]
    settled: float
    inputs: list[Input]
    decides: str | None


def describe_draws(
    settings: Sequence[Mapping[str, Any]],
    ranges: Mapping[str, str],
    firsts: Sequence[str | None],
    settled: Sequence[bool],
) -> Draws:
    """Describe draws by the first scheme in each.

    Args:
        settings: values of the keys.
        ranges: key -> the range that its values were drawn from.
        firsts: label of the first scheme, None where none arrives.
        settled: whether its repeats support that.
    """
    shares = [_share(label, count, len(firsts)) for label, count in Counter(firsts).most_common()]
    inputs = []
    for key, text in ranges.items():
        numbers = [parse_number(setting[key]) for setting in settings]
        values = np.array([math.nan if number is None else number[0] for number in numbers])
        if not np.isnan(values).any():
            inputs.append(_input(key, text, values, firsts))
    inputs.sort(key=lambda each: -each["index"])
    deciding = next((each for each in inputs if _decides(each)), None)
    text = _sentence(shares, inputs, deciding, _formats(settings, ranges), len(firsts))
    return Draws(
        text=text, shares=shares, settled=sum(settled) / len(settled), inputs=inputs,
        decides=None if deciding is None else deciding["key"],
    )  # fmt: skip


def _share(label: str | None, count: int, draws: int) -> Share:
    from scipy.stats import binomtest  # slow to import

    interval = binomtest(count, draws).proportion_ci(method="wilson")
    return Share(label=label, share=count / draws, low=float(interval.low), high=float(interval.high))


def first_order_index(values: Floats, firsts: Sequence[str | None]) -> float:
    """Part of the variance of "who is first" that one input explains, over all schemes: 0 to 1.

    From given draws: the variance of the mean in classes of equally many draws, less what chance gives.

    Source:
        Plischke, Borgonovo and Smith, Global sensitivity measures from given data, European Journal of
        Operational Research 226 (2013).
    """
    is_first = np.array([[label == each for label in set(firsts)] for each in firsts], float)
    whole = is_first.var(axis=0).sum()
    if whole == 0:
        return 0.0
    classes = np.array_split(np.argsort(values, kind="stable"), max(2, round(math.sqrt(len(firsts)))))
    within = sum(is_first[own].var(axis=0, ddof=1).sum() * len(own) for own in classes if len(own) > 1)
    return float(min(max(0.0, 1 - within / len(firsts) / whole), 1.0))


def _input(key: str, text: str, values: Floats, firsts: Sequence[str | None]) -> Input:
    from sklearn.tree import DecisionTreeClassifier  # slow to import

    labels = sorted({str(label) for label in firsts})
    least = max(1, math.ceil(_LEAST * len(firsts)))
    stump = DecisionTreeClassifier(max_depth=1, min_samples_leaf=least, random_state=0)
    stump.fit(values[:, np.newaxis], [labels.index(str(label)) for label in firsts])
    cut = float(stump.tree_.threshold[0]) if stump.tree_.node_count > 1 else None
    sides = [firsts, firsts] if cut is None else [
        [label for label, value in zip(firsts, values, strict=True) if (value <= cut) == lower]
        for lower in (True, False)
    ]  # fmt: skip
    (below, few), (above, many) = (Counter(side).most_common(1)[0] for side in sides)
    return Input(
        key=key, range=text, index=first_order_index(values, firsts), at=cut, below=below, above=above,
        below_share=few / len(sides[0]), above_share=many / len(sides[1]),
    )  # fmt: skip


def _decides(each: Input) -> bool:
    parts = each["below"] != each["above"] and each["at"] is not None
    return parts and min(each["below_share"], each["above_share"]) >= _SURE


def _formats(settings: Sequence[Mapping[str, Any]], ranges: Mapping[str, str]) -> dict[str, Format]:
    known = {key: parse_number(settings[0][key]) for key in ranges}
    return {key: number[1] for key, number in known.items() if number is not None}


def _sentence(
    shares: Sequence[Share],
    inputs: Sequence[Input],
    deciding: Input | None,
    formats: Mapping[str, Format],
    draws: int,
) -> str:
    best = shares[0]
    label = best["label"] or "nobody"
    if len(shares) == 1:
        return f"{label} first in all {draws} draws, whatever the inputs"
    ends = f"{100 * best['low']:.0f} to {100 * best['high']:.0f} %"
    text = f"{label} first in {100 * best['share']:.0f} % of what you say is possible ({ends})"
    names = dict(zip(formats, short_keys(list(formats)), strict=True))
    if deciding is not None and deciding["at"] is not None:
        cut, name = formats[deciding["key"]](deciding["at"]), names[deciding["key"]]
        below = f"{deciding['below'] or 'nobody'} is first in {100 * deciding['below_share']:.0f} %"
        above = f"{deciding['above'] or 'nobody'} in {100 * deciding['above_share']:.0f} %"
        return f"{text}; what decides is {name}: below {cut} {below}, above it {above}"
    if not inputs:
        return text
    most = inputs[0]
    return (
        f"{text}; no single input decides, {names[most['key']]} explains most ({100 * most['index']:.0f} %)"
    )
