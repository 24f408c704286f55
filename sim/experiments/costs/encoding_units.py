"""Whose values are encoded: in words, for what is said beside a step."""

from __future__ import annotations

from collections import Counter

from ...scenario.entries import SchemeEntry
from ...scenario.schema import Scenario
from ..prepare import prepare, units_to_encode


def encodes(scenario: Scenario, entry: SchemeEntry) -> str | None:
    """Phrase for whose values a scheme encodes for averages; None where there is no alternative."""
    job = prepare(scenario, entry, scenario.seed)
    units, network = units_to_encode(scenario, job), job.transfer.network
    if any(units):
        one = job.collectives.sums_inside
        return f"the sum of each {one.removesuffix('s')}'s workers" if one else "each worker's own values"
    for place, places in (("hosts", network.nodes), ("sites", network.site_of)) if units else ():
        sizes = Counter(places).values()
        if len(sizes) > 1 and max(sizes) > min(sizes):
            return f"each worker's own values, as {place} have {min(sizes)} to {max(sizes)} workers"
    return None
