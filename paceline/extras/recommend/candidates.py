"""Candidates: schemes x topologies x periods x compression that a scenario and its devices allow."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain, product
from typing import Any, Final

from pydantic import ValidationError

from paceline.sim.config.problems import one_line
from paceline.sim.errors import InputError, RunError
from paceline.sim.experiments.costs.step_cost import ENOUGH_PART_WORK, enough, follow, whole_job
from paceline.sim.scenario.device_memory import check_device_memory
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario
from paceline.sim.schemes.common.local_steps import is_by_time

PERIODS: Final = (4, 16, 64)
GRAPHS: Final = ("ring", "one_peer_exponential")
FRAGMENTS: Final = (2, 4)
DELAYS: Final = (3, 12)
"""Steps; of those that hide an average the shortest stays (``outdone``)."""
OUTER_RATE: Final = 0.35
"""Half of DiLoCo's default."""
_BITS: Final = {"": None, " 8 bit": {"qsgd": {"bits": 8}}}
_SAVES: Final = 0.98
"""Share of a plainer candidate's step that a step takes at most; else the plainer one takes its place."""


def with_candidates(scenario: Scenario) -> Scenario:
    """The scenario with all possible candidates, its own schemes first; these alone if nothing is trained."""
    entries = list(map(_with_period, scenario.schemes))
    if not is_trained(scenario):
        return scenario
    for _, entry in _tried_forms(scenario):
        own = ((x.name, x.options, x.optimizer) for x in entries)
        if isinstance(entry, SchemeEntry) and (entry.name, entry.options, None) not in own:
            entries.append(entry)
    return scenario.model_copy(update={"schemes": tuple(entries)})


def impossible(scenario: Scenario) -> dict[str, str]:
    """Label -> why a candidate is impossible in the scenario, or too large for a device."""
    tried = _tried_forms(scenario) if is_trained(scenario) else ()
    return {label: why for label, why in tried if isinstance(why, str)}


def _tried_forms(scenario: Scenario) -> Iterator[tuple[str, SchemeEntry | str]]:
    """Label of each form, and its entry or why it is none."""
    document = scenario.model_dump(mode="json")
    for name, label, options in chain(_forms(), _sharded_forms() if _is_too_large(scenario) else ()):
        written = {name: {**options, "label": label}}
        try:
            yield label, Scenario.model_validate({**document, "schemes": [written]}).schemes[0]
        except ValidationError as error:
            yield label, one_line(error.errors()[0]["msg"].removeprefix("Value error, "), 200)


def _is_too_large(scenario: Scenario) -> bool:
    """Whether a device cannot hold what a worker has of a whole model under all-reduce."""
    plain = SchemeEntry.model_validate("all_reduce")
    try:
        check_device_memory(scenario.workload, scenario.cluster, plain, scenario.seed)
    except InputError:
        return True
    return False


def _sharded_forms() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """As ``_forms``: those that share a model among workers, which waits at every step."""
    yield "sharded", "sharded optimizer", {"shard": "optimizer"}
    yield "sharded", "sharded", {}
    yield "sharded", "sharded inside hosts", {"inside": "hosts"}


def is_trained(scenario: Scenario) -> bool:
    """Whether gradients are computed."""
    return not scenario.workload.timing_only and scenario.workload.curves is None


def _with_period(entry: SchemeEntry) -> SchemeEntry:
    """The entry; if its label is its scheme's name, with the number of steps of a period added."""
    period = getattr(entry.options, "period", None) if entry.label == entry.name else None
    return entry.model_copy(update={"label": f"{entry.name} {period}"}) if isinstance(period, int) else entry


def _forms() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, label and options of each."""
    yield "all_reduce", "all_reduce", {}
    yield "all_reduce", "all_reduce bf16", {"compression": {"bf16": True}}
    for period in PERIODS[1:]:
        yield "all_reduce", f"all_reduce outer {period}", {"outer": {"period": period}}
    for suffix, codec in _BITS.items():
        for period in PERIODS:
            yield "local_sgd", f"local_sgd {period}{suffix}", {"period": period, "compression": codec}
        for period in PERIODS[1:]:
            yield "diloco", f"diloco {period}{suffix}", {"period": period, "compression": codec}
        for topology in GRAPHS:
            yield "gossip", f"gossip {topology}{suffix}", {"topology": topology, "compression": codec}
    for period, fragments, delay in product(PERIODS[1:], FRAGMENTS, DELAYS):
        if delay < period // fragments:
            streaming = {"period": period, "fragments": fragments, "delay": delay}
            yield "diloco", f"diloco {period} in {fragments} late {delay}", streaming
    for period in PERIODS[1:]:
        yield "diloco", f"diloco {period} outer {OUTER_RATE}", {"period": period, "outer": {"lr": OUTER_RATE}}
    yield "gossip", "gossip ring of sites", {"topology": "ring", "inside": "sites"}
    yield "diloco", f"diloco {PERIODS[1]} of sites", {"period": PERIODS[1], "inside": "sites"}
    yield "ad_psgd", "ad_psgd", {}


def step_seconds(scenario: Scenario, entry: SchemeEntry) -> float:
    """Seconds of a scheme's step in the long run, on the clock alone; infinite where it needs values."""
    try:
        return follow(whole_job(scenario, entry), partial(enough, ENOUGH_PART_WORK)).step_s
    except RunError:
        return math.inf


def outdone(scenario: Scenario, step_s: Mapping[str, float]) -> set[str]:
    """Labels whose step is no faster than a plainer candidate's.

    Plainer: without codes, averaging oftener, in fewer fragments or with a shorter delay.
    """
    return {
        entry.label
        for entry in scenario.schemes
        for other in scenario.schemes
        if _is_plainer(other, entry) and step_s[entry.label] > _SAVES * step_s[other.label]
    }


def _is_plainer(one: SchemeEntry, other: SchemeEntry) -> bool:
    mine, its = one.options.model_dump(), other.options.model_dump()
    timed = is_by_time(one.options) or is_by_time(other.options)
    if (one.name, one.optimizer) != (other.name, other.optimizer) or mine == its or timed:
        return False
    codec = mine.pop("compression", None)
    ordered = ["period"] if one.name == "local_sgd" else [x for x in ("fragments", "delay") if x in mine]
    more = [mine.pop(key) - its.pop(key) for key in ordered]
    return max(more, default=0) <= 0 and codec in (None, its.pop("compression", None)) and mine == its
