"""What draws from ranges say: how often each scheme is first, and which input decides that.

An input *decides* if it alone explains ``_ENOUGH`` of the variance of who is first, and one scheme is first
in ``_MOSTLY`` of the draws below its threshold, the cut of a decision tree with one node, another above it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ...config.problems import short_keys
from ...config.units import parse_number
from ...seeds import Floats

_ENOUGH: Final = 0.4
_MOSTLY: Final = 0.75
_LEAST: Final = 0.05
"""Least share of the draws on either side of a threshold."""


def describe_draws(
    settings: Sequence[Mapping[str, Any]], ranges: Mapping[str, Sequence[Any]], firsts: Sequence[str | None]
) -> dict[str, Any]:
    """``draws`` of ``sweep.json``, as in docs/records.md.

    ``ranges``: key -> a range, or the values, that ``settings`` were drawn from. ``firsts``: label of the
    first scheme in each; None where none arrives.
    """
    from scipy.stats import binomtest  # slow to import

    labels = np.array(["nobody" if label is None else label for label in firsts])
    shares = []
    for label, count in Counter(labels.tolist()).most_common():
        low, high = binomtest(count, len(labels)).proportion_ci(method="wilson")
        shares.append({"label": label, "share": count / len(labels), "low": float(low), "high": float(high)})
    inputs = [
        {"key": key, "name": name, "range": ", ".join(map(str, ranges[key])), **_part(values, labels)}
        for key, name in zip(ranges, short_keys(list(ranges)), strict=True)
        if all(map(parse_number, values := [setting[key] for setting in settings]))
    ]
    inputs.sort(key=lambda each: -each["index"])
    most = [each for each in inputs[:1] if each["index"] >= _ENOUGH and "at" in each]
    sides = [(each["below"], each["above"]) for each in most]
    turns = any(a["first"] != b["first"] and min(a["share"], b["share"]) >= _MOSTLY for a, b in sides)
    decides = most[0] if turns else None
    text = _sentence(shares, inputs, decides)
    return {"text": text, "shares": shares, "inputs": inputs, "decides": decides and decides["key"]}


def _part(drawn: Sequence[Any], labels: Any) -> dict[str, Any]:
    """Part the draws by an input: index, threshold, who is first on either side and in which share there."""
    from sklearn.tree import DecisionTreeClassifier  # slow to import

    known = list(filter(None, map(parse_number, drawn)))
    values = np.array([value for value, _ in known])
    stump = DecisionTreeClassifier(max_depth=1, min_samples_leaf=math.ceil(_LEAST * len(labels)))
    tree = stump.fit(values[:, np.newaxis], labels).tree_
    index = first_order_index(values, labels)
    if tree.node_count == 1:
        return {"index": index, "threshold": None}
    at, sides = float(tree.threshold[0]), {}
    for side, own in (("below", labels[values <= at]), ("above", labels[values > at])):
        ((first, count),) = Counter(own.tolist()).most_common(1)
        sides[side] = {"first": first, "share": count / len(own)}
    return {"index": index, "threshold": known[0][1](at), "at": at, **sides}


def first_order_index(values: Floats, labels: Sequence[str]) -> float:
    """Part of the variance of "who is first" that an input explains alone, over all schemes: 0 to 1.

    From given draws: the variance between classes of equally many, without what chance gives.

    Source:
        Plischke, Borgonovo and Smith, Global sensitivity measures from given data, European Journal of
        Operational Research 226 (2013).
    """
    is_first = (np.unique(labels) == np.asarray(labels)[:, np.newaxis]).astype(float)
    whole = is_first.var(axis=0).sum() * len(labels)
    classes = np.array_split(np.argsort(values, kind="stable"), max(1, math.isqrt(len(labels))))
    within = sum(is_first[own].var(axis=0, ddof=1).sum() * len(own) for own in classes if len(own) > 1)
    return float(max(0.0, 1 - within / whole)) if whole else 0.0


def _sentence(shares: Sequence[Any], inputs: Sequence[Any], decides: Mapping[str, Any] | None) -> str:
    best = shares[0]
    if len(shares) == 1:
        return f"{best['label']} first in all that you say is possible"
    ends = f"{100 * best['low']:.0f} to {100 * best['high']:.0f} %"
    text = f"{best['label']} first in {percent(best['share'])} of what you say is possible ({ends})"
    if decides is not None:
        sides = (decides["below"], decides["above"])
        below, above = (f"{side['first']} is first in {percent(side['share'])}" for side in sides)
        cut = decides["threshold"]
        return f"{text}; what decides is {decides['name']}: below {cut} {below}, above it {above}"
    most = "".join(
        f", {each['name']} explains most ({percent(each['index'])})" for each in inputs[:1] if each["index"]
    )
    return f"{text}; no single input decides{most}"


def percent(share: float) -> str:
    """Format a share: ``83 %``; neither 0 nor 100 % where it is not."""
    return f"{round(100 * share) if share in (0, 1) else min(max(round(100 * share), 1), 99)} %"
