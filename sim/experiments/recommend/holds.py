"""How far a winner's place holds: break-even latency and bandwidth, by re-pricing the first two.

In lockstep one training serves all values of a quantity (``sweep/grid.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...config.units import format_rate, format_seconds
from ...records.run import Run
from ...records.summarise import summarise_resolved
from ...records.summary import Summary
from ...records.sweeps.crossovers import Crossover, find_crossovers
from ...records.verdict import BreakEven, format_factor
from ...scenario.schema import Scenario, dump
from ..prepare import with_chosen

FURTHEST: Final = 10.0
"""Largest factor on a quantity, and one over the smallest."""
_HALVINGS: Final = 3
_PARTS: Final = ("between", "within")
"""Parts of a network in sites; the first that is there has the quantity."""
_NAMES: Final = {"latency": format_seconds, "bandwidth": format_rate}


def knobs(scenario: Scenario) -> dict[str, Any]:
    """Key -> the latency and the bandwidth, one number or one for each pair of sites, where they are."""
    network = scenario.cluster.network
    part = next((name for name in _PARTS if getattr(network, name) is not None), "")
    holder = getattr(network, part) if part else network
    prefix = f"cluster.network.{part}." if part else "cluster.network."
    return {f"{prefix}{name}": value for name in _NAMES if (value := getattr(holder, name))}


def find_turns(
    two: Scenario, key: str, runs: Sequence[Run], simulate: Callable[[list[Scenario]], list[list[Run]]]
) -> list[Crossover]:
    """Crossovers of two schemes along a quantity: both ends first, then halved towards a change.

    ``runs``: of the scenario as it is.
    """
    known = {1.0: _summary(two, runs)}

    def follow(*factors: float) -> None:
        scenarios = [_scaled(two, key, factor) for factor in factors]
        known.update({x: _summary(two, own) for x, own in zip(factors, simulate(scenarios), strict=True)})

    follow(1 / FURTHEST, FURTHEST)
    for end in (1 / FURTHEST, FURTHEST):
        low, high = 1.0, end
        for _ in range(_HALVINGS if _first(known[end]) != _first(known[1.0]) else 0):
            middle = (low * high) ** 0.5
            follow(middle)
            low, high = (middle, high) if _first(known[middle]) == _first(known[low]) else (low, middle)
    factors = sorted(known)
    return find_crossovers([_setting(two, key, x) for x in factors], [known[x] for x in factors])


def _first(summary: Summary) -> str | None:
    return summary["verdict"]["first"]


def _summary(scenario: Scenario, runs: Sequence[Run]) -> Summary:
    return summarise_resolved(dump(scenario), scenario.name, runs, facts={})


def _scaled(scenario: Scenario, key: str, factor: float) -> Scenario:
    """The scenario with a quantity of ``knobs`` times ``factor``, and its collectives chosen anew."""
    *path, name = key.split(".")
    holders: list[Any] = [scenario]
    for part in path:
        holders.append(getattr(holders[-1], part))
    names = [name, *(["upload"] if name == "bandwidth" and getattr(holders[-1], "upload", None) else [])]
    changes = {each: _times(getattr(holders[-1], each), factor) for each in names}
    for part, holder in zip(["", *path][::-1], holders[::-1], strict=True):
        changes = {part: holder.model_copy(update=changes)}
    changed = changes[""]
    return with_chosen(changed, changed.schemes)


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, Mapping):
        return {name: factor * each for name, each in value.items()}
    return factor * value


def _setting(scenario: Scenario, key: str, factor: float) -> dict[str, Any]:
    """Setting as of a sweep: the quantity where it is one number, else the factor on it."""
    value = knobs(scenario)[key]
    values = set(value.values()) if isinstance(value, Mapping) else {value}
    if len(values) > 1:
        return {f"times {key}": factor}
    return {key: _NAMES[key.rpartition(".")[2]](factor * values.pop())}


def measure_next(scenario: Scenario, turns: Sequence[Crossover], examples: BreakEven | None) -> str:
    """The quantity whose break-even is nearest to its value here, as a phrase; "" where nothing turns."""
    near = list[tuple[float, str]]()
    for each in turns:
        key = each["key"].removeprefix("times ")
        value = knobs(scenario)[key]
        here = 1.0 if key != each["key"] else max(value.values()) if isinstance(value, Mapping) else value
        if at := each["at"]["median"]:
            text = f"{key.removeprefix('cluster.')}: at {format_factor(at / here)} its value the order turns"
            near.append((max(at / here, here / at), text))
    if (
        examples is not None
        and (limit := examples["examples"]["median"])
        and (x := examples["here"]["median"])
    ):
        text = f"loss curves of your own model (workload.curves): {format_factor(limit / x)} the examples of "
        near.append((limit / x, text + "the first, against the second's, turn the order"))
    return min(near)[1] if near else ""
