"""How far a winner's place holds: break-even latency, bandwidth and computing time, by re-pricing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from ...config.units import format_rate, format_seconds
from ...records.run import Run
from ...records.summarise import summarise_resolved
from ...records.sweeps.crossovers import Crossover, find_crossovers
from ...records.verdict import BreakEven, format_factor
from ...scenario.schema import Scenario, dump
from ..prepare import with_chosen

FACTORS: Final = tuple(float(f"{x:.4g}") for x in np.geomspace(0.1, 10, 9))
"""On a quantity of the scenario; 1 is among them."""
_PARTS: Final = ("between", "within")
"""Parts of a network in sites; the first that is there has the quantity."""


def knobs(scenario: Scenario) -> dict[str, Any]:
    """Key -> value of each quantity that is varied: one number, or one for each pair of sites."""
    network, time_s = scenario.cluster.network, scenario.cluster.compute.time
    part = next((name for name in _PARTS if getattr(network, name) is not None), None)
    holder = network if part is None else getattr(network, part)
    prefix = f"cluster.network.{part}." if part else "cluster.network."
    quantities = {f"{prefix}{name}": getattr(holder, name) for name in ("latency", "bandwidth")}
    return {key: value for key, value in {**quantities, "cluster.compute.time": time_s}.items() if value}


def scaled(scenario: Scenario, key: str, factor: float) -> Scenario:
    """The scenario with a quantity of ``knobs`` times ``factor``, and its collectives chosen anew."""
    *path, name = key.split(".")
    holders = [scenario]
    for part in path:
        holders.append(getattr(holders[-1], part))
    names = [name, *(["upload"] if name == "bandwidth" and getattr(holders[-1], "upload", None) else [])]
    changes = {each: _times(getattr(holders[-1], each), factor) for each in names}
    for part, holder in zip([*reversed(path), ""], reversed(holders), strict=True):
        changed = holder.model_copy(update=changes)
        changes = {part: changed}
    return with_chosen(changed, changed.schemes)


def _times(value: Any, factor: float) -> Any:
    if isinstance(value, Mapping):
        return {name: factor * each for name, each in value.items()}
    return factor * value


def setting_of(scenario: Scenario, key: str, factor: float) -> dict[str, Any]:
    """The setting of a sweep: the quantity's value where it is one number, else the factor."""
    value = knobs(scenario)[key]
    values = set(value.values()) if isinstance(value, Mapping) else {value}
    if len(values) > 1:
        return {f"times {key}": factor}
    return {key: (format_rate if key.endswith("bandwidth") else format_seconds)(factor * values.pop())}


def crossovers_along(scenario: Scenario, key: str, runs: Sequence[Sequence[Run]]) -> list[Crossover]:
    """Crossovers along one quantity; ``runs``: of the scenario at each of ``FACTORS``."""
    settings = [setting_of(scenario, key, factor) for factor in FACTORS]
    text = dump(scenario)
    summaries = [summarise_resolved(text, scenario.name, own, facts={}) for own in runs]
    return find_crossovers(settings, summaries)


def measure_next(scenario: Scenario, crossovers: Sequence[Crossover], examples: BreakEven | None) -> str:
    """The quantity whose break-even is nearest to its value here, as a phrase; "" where none turns."""
    turns = dict[str, tuple[float, str]]()
    for each in crossovers:
        at = each["at"]["median"]
        if at is None:
            continue
        key = each["key"].removeprefix("times ")
        values = knobs(scenario)[key]
        here = 1.0 if key != each["key"] else max(values.values()) if isinstance(values, Mapping) else values
        turns[key] = max(at / here, here / at), f"{key}, {format_factor(at / here)} of what stands here"
    if examples is not None and (limit := examples["examples"]["median"]) and (ratio := examples["here"]["median"]):
        what = "loss curves of your model (workload.curves), for ratios of examples"
        turns["examples"] = limit / ratio, f"{what} turn the order at {format_factor(limit / ratio)}"
    return min(turns.values())[1] if turns else ""
