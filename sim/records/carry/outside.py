"""Errors of predictions on clusters of others, from inputs of the same kind as a scenario's.

The kind is told by the scenario's keys alone. Where they do not tell it, nothing is said: not over ``ideal``,
which is no library's; not where stragglers, faults, variations or limits of a connection decide; not where a
time is given for hosts of several GPUs, since it may be that of one or of all; not for a rate that may be
measured or guessed. Figures: ``outside.json``, which ``python -m benchmarks.board`` writes; rules:
docs/board.md.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from typing_extensions import TypedDict

DATA: Final = Path(__file__).with_name("outside.json")
NAME_PLATES: Final = tuple(125e6 * each for each in (1, 10, 25, 40, 100))
"""Nominal rates of Ethernet cards, in bytes per second."""
_DIGITS: Final = 3
"""Of a rate that somebody measured, in bits and in bytes alike: 941 Mbit/s, not 500."""


class Outside(TypedDict):
    """How far predictions from such inputs were off.

    ``grade``, ``inputs``: the kind, in a word and in words; ``next``: what to measure for a better one.
    ``rows``: number of predictions; ``mean_pct``: mean absolute error; ``fast``: share too fast.
    ``low``, ``high``: factors of the predicted time between which four fifths of the measured times were.
    """

    grade: str
    inputs: str
    next: str
    rows: int
    mean_pct: float
    fast: float
    low: float
    high: float


def outside_of(cluster: Mapping[str, Any], rates: Sequence[float]) -> Outside | None:
    """Figures for a resolved scenario's cluster; None where its keys do not tell the kind of its inputs.

    ``rates``: bandwidths between hosts, in bytes per second.
    """
    known: dict[str | None, Outside] = json.loads(DATA.read_text(encoding="utf-8"))
    return known.get(_grade(cluster, rates))


def _grade(cluster: Mapping[str, Any], rates: Sequence[float]) -> str | None:
    network, compute = cluster["network"], cluster["compute"]
    other = (
        cluster["stragglers"],
        cluster["faults"],
        cluster.get("island"),
        network["variation"],
        network.get("between", {}).get("per_flow"),
    )
    if network["transport"] not in ("gloo", "nccl") or any(other):
        return None
    if network.get("host", {}).get("gpus", 1) > 1:
        return "part" if "measured" in compute else None
    if not {"time", "trace", "measured"} & compute.keys():
        return None
    if set(NAME_PLATES).intersection(rates):
        return "plate"
    measured = rates and all(_digits(rate) >= _DIGITS <= _digits(8 * rate) for rate in rates)
    return "measured" if measured or "profile" in cluster else None


def _digits(number: float) -> int:
    return len(f"{number:.5e}".partition("e")[0].replace(".", "").rstrip("0"))
