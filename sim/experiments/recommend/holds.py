"""How far the order of two schemes holds: break-even latency and bandwidth, by re-pricing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from ...config.units import format_rate, format_seconds, parse_number
from ...records.run import Run
from ...records.summarise import summarise_resolved
from ...records.summary import Summary
from ...records.sweeps.crossovers import Crossover, find_crossovers
from ...records.verdict import BreakEven, format_factor
from ...scenario.schema import Scenario, dump
from ..costs.bandwidth import varied_part, with_network
from ..prepare import with_chosen
from .candidates import is_trained

FURTHEST: Final = 10.0
"""Largest factor on a quantity, and one over the smallest."""
_HALVINGS: Final = 3
_FORMATS: Final = {"latency": format_seconds, "bandwidth": format_rate}


def quantities(scenario: Scenario) -> list[str]:
    """Those of latency and bandwidth that the network has as settings."""
    return [name for name in _FORMATS if getattr(varied_part(scenario)[1], name)]


def find_turns(
    two: Scenario, name: str, runs: Sequence[Run], run_each: Callable[[list[Scenario]], list[list[Run]]]
) -> list[Crossover]:
    """Crossovers of two schemes along a quantity: both ends first, then halved towards a change.

    Args:
        runs: of the scenario as it is.
        run_each: runs scenarios that differ in their networks; in lockstep one training serves all.
    """
    known = {1.0: _summary(two, runs)}

    def price(*factors: float) -> None:
        done = run_each([_scaled(two, name, factor) for factor in factors])
        known.update({x: _summary(two, own) for x, own in zip(factors, done, strict=True)})

    price(1 / FURTHEST, FURTHEST)
    for end in (1 / FURTHEST, FURTHEST):
        near, far = 1.0, end
        for _ in range(_HALVINGS if _first(known[end]) != _first(known[1.0]) else 0):
            middle = (near * far) ** 0.5
            price(middle)
            near, far = (middle, far) if _first(known[middle]) == _first(known[near]) else (near, middle)
    factors = sorted(known)
    return find_crossovers([_setting(two, name, x) for x in factors], [known[x] for x in factors])


def _first(summary: Summary) -> str | None:
    return summary["verdict"]["first"]


def _summary(scenario: Scenario, runs: Sequence[Run]) -> Summary:
    return summarise_resolved(dump(scenario), scenario.name, runs, facts={})


def _scaled(scenario: Scenario, name: str, factor: float) -> Scenario:
    """The scenario with a quantity times ``factor``, and its collectives chosen anew."""
    _, part = varied_part(scenario)
    uploads = ["upload"] if name == "bandwidth" and getattr(part, "upload", None) else []
    changes = {each: _times(name, getattr(part, each), factor) for each in (name, *uploads)}
    return with_chosen(with_network(scenario, **changes), scenario.schemes)


def _times(name: str, value: Any, factor: float) -> Any:
    """The quantity times ``factor``, rounded as it is written in settings and sentences."""
    if isinstance(value, Mapping):
        return {pair: _times(name, each, factor) for pair, each in value.items()}
    number = parse_number(_FORMATS[name](factor * value))
    assert number is not None
    return number[0]


def _setting(scenario: Scenario, name: str, factor: float) -> dict[str, Any]:
    """Setting as of a sweep: the quantity where it is one number, else the factor on all."""
    part, holder = varied_part(scenario)
    value = getattr(holder, name)
    values = set(value.values()) if isinstance(value, Mapping) else {value}
    if len(values) > 1:
        return {f"times {name}": factor}
    return {".".join(filter(None, ("cluster.network", part, name))): _FORMATS[name](factor * values.pop())}


def nearest_turn(
    two: Scenario, turns: Mapping[str, Sequence[Crossover]], break_even: BreakEven | None
) -> str:
    """What turns the order at the smallest factor, as a phrase; "" where nothing does."""
    near = list[tuple[float, str]]()
    for name, own in turns.items():
        value = parse_number(next(iter(_setting(two, name, 1.0).values())))
        for at in (each["at"]["median"] for each in own):
            if value is not None and at:
                text = f"the {name}; at {format_factor(at / value[0])} its value here the order turns"
                near.append((max(at / value[0], value[0] / at), text))
    if break_even is not None and (here := break_even["here"]["median"]):
        factor = (break_even["examples"]["median"] or 0.0) / here
        whose = (
            "loss curves of your model (docs/curves.md)" if is_trained(two) else "more seeds of these curves"
        )
        near.append((factor, f"{whose}; at {format_factor(factor)} the ratio of examples the order turns"))
    return min(near)[1] if near else ""
