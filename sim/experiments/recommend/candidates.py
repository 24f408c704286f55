"""Candidates: schemes x topologies x periods x compression that a scenario and its devices allow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from ...config.problems import explain
from ...errors import RunError
from ...scenario.entries import SchemeEntry
from ...scenario.schema import Scenario
from ..costs.step_cost import ENOUGH_PART_WORK, follow, whole_job

PERIODS: Final = (4, 16, 64)
TOPOLOGIES: Final = ("ring", "one_peer_exponential")
_BITS: Final = {"": None, " 8 bit": {"qsgd": {"bits": 8}}}
_SAVES: Final = 0.98
"""Share of a plainer scheme's step that a step takes at most, else the plainer one learns as fast."""


def with_candidates(scenario: Scenario) -> tuple[Scenario, dict[str, str]]:
    """The scenario with all candidates, its own schemes first; and label -> why a candidate is impossible.

    Where nothing is trained its own schemes are all: measured curves are of these alone.
    """
    entries, problems = list(scenario.schemes), dict[str, str]()
    if scenario.workload.timing_only or scenario.workload.curves is not None:
        return scenario, problems
    document = scenario.model_dump(mode="json")
    for name, label, options in _forms():
        written = {name: {**options, "label": label}}
        try:
            entry = Scenario.model_validate({**document, "schemes": [written]}).schemes[0]
        except ValidationError as error:
            problems[label] = explain(error, Scenario, {**document, "schemes": [written]})[0].message
            continue
        if not any((x.name, x.options, x.optimizer) == (entry.name, entry.options, None) for x in entries):
            entries.append(entry)
    return scenario.model_copy(update={"schemes": tuple(map(_spelled_out, entries))}), problems


def _spelled_out(entry: SchemeEntry) -> SchemeEntry:
    """The entry; one that was alone of its scheme, and has its name as label, with its period there."""
    period = getattr(entry.options, "period", None)
    return (
        entry.model_copy(update={"label": f"{entry.name} {period}"})
        if period and entry.label == entry.name
        else entry
    )


def _forms() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, label and options of each."""
    yield "all_reduce", "all_reduce", {}
    yield "all_reduce", "all_reduce bf16", {"compression": {"bf16": True}}
    for suffix, codec in _BITS.items():
        for period in PERIODS:
            yield "local_sgd", f"local_sgd {period}{suffix}", {"period": period, "compression": codec}
        for period in PERIODS[1:]:
            yield "diloco", f"diloco {period}{suffix}", {"period": period, "compression": codec}
        for topology in TOPOLOGIES:
            yield "gossip", f"gossip {topology}{suffix}", {"topology": topology, "compression": codec}
    yield "gossip", "gossip ring of sites", {"topology": "ring", "inside": "sites"}
    yield "diloco", f"diloco {PERIODS[1]} of sites", {"period": PERIODS[1], "inside": "sites"}
    yield "ad_psgd", "ad_psgd", {}


def step_seconds(scenario: Scenario, entry: SchemeEntry) -> float:
    """Seconds of a scheme's step in the long run, on the clock alone; NaN where it needs values."""
    try:
        enough = follow(
            whole_job(scenario, entry), lambda complete, work: complete > 1 and work >= ENOUGH_PART_WORK
        )
    except RunError:
        return math.nan
    return enough.step_s


def outdone(scenario: Scenario, step_s: Mapping[str, float]) -> dict[str, str]:
    """Label -> a plainer scheme whose step takes no longer: without codes, or with averages more often."""
    plainer = dict[str, str]()
    for entry in scenario.schemes:
        for other in scenario.schemes:
            if _is_plainer(other, entry) and step_s[entry.label] > _SAVES * step_s[other.label]:
                plainer.setdefault(entry.label, other.label)
    return plainer


def _is_plainer(one: SchemeEntry, other: SchemeEntry) -> bool:
    if (one.name, one.optimizer) != (other.name, other.optimizer) or one.options == other.options:
        return False
    mine, its = one.options.model_dump(), other.options.model_dump()
    codes = mine.pop("compression", None), its.pop("compression", None)
    often = one.name == "local_sgd" and mine.pop("period") <= its.pop("period")
    return mine == its and codes[0] in (None, codes[1]) and (often or one.name != "local_sgd")
