"""Bandwidth that a scheme needs for its workers to compute for a share of their time.

A step is compared with one on a network that costs nothing, over the same cycles and
with the same random numbers. The bandwidth is one knob of the scenario: that of every pipe
between two sites (``network.between.bandwidth``), or without sites that of every host's link
(``network.bandwidth``). All else stays as in the scenario.
"""

from __future__ import annotations

import math
from typing import Any, Final

from ...config.limits import MAX_RATE, MIN_RATE
from ...errors import InputError
from ...network.forms.sites import DEFAULT
from ...scenario.entries import SchemeEntry
from ...scenario.schema import Scenario
from ..prepare import with_chosen
from .step_cost import ENOUGH_PART_WORK, Followed, follow, follow_whole, on_free_network, whole_job

UTILISATIONS: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of a step spent computing, for which a bandwidth is found."""
PRECISION: Final = 0.01
"""Relative precision of the bandwidth."""
_SLOWEST, _FASTEST = 1e3, 1e15
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

    def at(self, bytes_per_s: float) -> Followed:
        """Step with this bandwidth."""
        if bytes_per_s not in self._known:
            scenario = with_chosen(_with_bandwidth(self._scenario, bytes_per_s), [self._entry])
            self._known[bytes_per_s] = follow(whole_job(scenario, self._entry), self._free.span)
        return self._known[bytes_per_s]

    def needed(self, share: float) -> float | None:
        """Least bandwidth, to ``PRECISION``, with which all workers keep that share of a free network's pace.

        None where no bandwidth is enough, 0 where any is: nothing crosses such links.
        """
        if self.share_of(self.at(_FASTEST)) < share:
            return None
        if self.share_of(self.at(_SLOWEST)) >= share:
            return 0.0
        low, high = math.log(_SLOWEST), math.log(_FASTEST)
        for known, step in self._known.items():  # results for other shares narrow this search
            if self.share_of(step) >= share:
                high = min(high, math.log(known))
            else:
                low = max(low, math.log(known))
        while high - low > PRECISION:
            middle = (low + high) / 2
            enough = self.share_of(self.at(math.exp(middle))) >= share
            low, high = (low, middle) if enough else (middle, high)
        return math.exp(high)


def _with_bandwidth(scenario: Scenario, bytes_per_s: float) -> Scenario:
    rate = min(max(bytes_per_s, MIN_RATE), MAX_RATE)
    if varied_part(scenario)[0] == "between":
        return with_network(scenario, bandwidth={DEFAULT: rate})
    return with_network(scenario, bandwidth=rate, upload=None)


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
