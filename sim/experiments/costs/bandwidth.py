"""Bandwidth that a scheme needs for its workers to compute for a share of their time.

A step is compared with one on a network that costs nothing, over the same cycles and
with the same random numbers. The bandwidth is one knob of the scenario: that of every pipe
between two sites (``network.between.bandwidth``), or without sites that of every host's link
(``network.bandwidth``). All else stays as in the scenario.
"""

from __future__ import annotations

import math
from typing import Any, Final

from ...errors import InputError
from ...network.forms.sites import DEFAULT
from ...scenario.entries import SchemeEntry
from ...scenario.parts import CollectiveSettings
from ...scenario.schema import Scenario
from ..prepare import with_chosen
from .step_cost import ENOUGH_PART_WORK, Followed, follow, follow_whole, on_free_network, whole_job

UTILISATIONS: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of a step spent computing, for which a bandwidth is found."""
PRECISION: Final = 0.01
"""Relative precision of the bandwidth."""
_SEARCHED: Final = (1e3, 1e15)
"""Bounds of the search in bytes per second."""


class Utilisation:
    """Share of a scheme's step that all workers together spend computing, by bandwidth.

    The scenario is resolved, in the flat form or with sites. ``step`` has the scenario's own bandwidth, as in
    ``paceline check``; ``share`` is that of this step.

    Raises:
        InputError: the network has no such knob.
        RunError: the scheme cannot do without values.
    """

    def __init__(self, scenario: Scenario, entry: SchemeEntry) -> None:
        self._scenario, self._entry = scenario, entry
        self._known: dict[float, Followed] = {}
        self._chosen: dict[float, CollectiveSettings] = {}
        network = scenario.cluster.network
        if network.whole is not None:
            raise InputError(
                "cluster.network: a bandwidth can be looked for between sites, or of hosts behind one switch;"
                f" '{network.whole}' has no such knob"
            )
        self.step = follow_whole(scenario, entry)
        free = on_free_network(whole_job(scenario, entry))
        alone = follow(free, lambda complete, _: complete >= self.step.span.last)  # its start as well
        self.share = alone.computing * (alone.step_s / self.step.step_s if self.step.step_s else 1.0)
        self._free = follow(free, lambda complete, work: complete > 1 and work >= ENOUGH_PART_WORK)

    def share_of(self, step: Followed) -> float:
        """Share of its pace on a free network that the most delayed worker keeps."""
        free, mine = self._free.pace, step.pace
        longer = mine.time_s / free.time_s if free.time_s else 1.0
        return min(a / b / longer for a, b in zip(mine.steps, free.steps, strict=True) if b)

    def at(self, bytes_per_s: float, anew: bool = False) -> Followed:
        """Step with this bandwidth, unless ``anew`` with the algorithms chosen on both sides of it."""
        if anew or bytes_per_s not in self._known:
            scenario = _with_bandwidth(self._scenario, bytes_per_s)
            below = self._chosen.get(max(filter(bytes_per_s.__gt__, self._chosen), default=0.0))
            above = self._chosen.get(min(filter(bytes_per_s.__lt__, self._chosen), default=0.0))
            if anew or below is None or below != above:
                below = self._chosen[bytes_per_s] = with_chosen(scenario, [self._entry]).collectives
            self._known[bytes_per_s] = follow(
                whole_job(scenario.model_copy(update={"collectives": below}), self._entry), self._free.span
            )
        return self._known[bytes_per_s]

    def needed(self, share: float) -> float | None:
        """Least bandwidth, to ``PRECISION``, with which all workers keep that share of a free network's pace.

        It is enough, and a bandwidth just below it is not, with algorithms chosen for each. None where no
        bandwidth is enough, 0 where any is: nothing crosses such links.
        """
        while True:
            enough = {
                each
                for each in (*_SEARCHED, *self._known)  # results for other shares narrow this search
                if self.share_of(self.at(each)) >= share
            }
            low, high = max(self._known.keys() - enough, default=0.0), min(enough, default=None)
            if high is None or not low:
                return high and low
            if math.log(high / low) > PRECISION:
                self.at(math.sqrt(low * high))
            elif guessed := {low, high} - self._chosen.keys():
                self.at(guessed.pop(), anew=True)
            else:
                return high


def _with_bandwidth(scenario: Scenario, bytes_per_s: float) -> Scenario:
    if varied_part(scenario)[0] == "between":
        return with_network(scenario, bandwidth={DEFAULT: bytes_per_s})
    return with_network(scenario, bandwidth=bytes_per_s, upload=None)


def varied_part(scenario: Scenario) -> tuple[str, Any]:
    """The part of the network that has the latencies and bandwidths to vary ("": all), and its settings."""
    network = scenario.cluster.network
    part = next((name for name in ("between", "within") if getattr(network, name) is not None), "")
    return part, getattr(network, part) if part else network


def with_network(scenario: Scenario, **changes: Any) -> Scenario:
    """The scenario with other settings of ``varied_part``."""
    part, settings = varied_part(scenario)
    settings = settings.model_copy(update=changes)
    network = scenario.cluster.network.model_copy(update={part: settings}) if part else settings
    cluster = scenario.cluster.model_copy(update={"network": network})
    return scenario.model_copy(update={"cluster": cluster})
