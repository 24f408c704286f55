"""How much bandwidth a scheme needs for a share of its time to be computing.

The bandwidth that is looked for is one knob of the scenario: that of every pipe between two sites
(``network.between.bandwidth``), or without sites that of every host's link (``network.bandwidth``). All else
stays as the scenario has it, stragglers that come and go aside.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

from ...config.limits import MAX_RATE, MIN_RATE
from ...drivers.job import Job
from ...errors import InputError
from ...network.forms.sites import DEFAULT
from ...scenario.entries import SchemeEntry
from ...scenario.schema import Scenario
from ..prepare import clock_only, prepare
from ..step_cost import Followed, endless, follow, steady_compute

UTILISATIONS: Final = (0.5, 0.8, 0.9, 0.95, 0.99)
"""Shares of a step that are computing, for which a bandwidth is looked for."""
PRECISION: Final = 0.01
"""Relative difference within which a bandwidth is looked for."""
_SLOWEST, _FASTEST = 1e3, 1e15
"""Bytes per second between which it is looked for."""
_TWO_CYCLES: Final = 2


class Utilisation:
    """The share of a scheme's step that is computing, by bandwidth.

    Args:
        scenario: resolved, in the flat form or with sites.
        entry: the scheme.

    Raises:
        InputError: the network has no such knob.
    """

    def __init__(self, scenario: Scenario, entry: SchemeEntry) -> None:
        self._scenario, self._entry = scenario, entry
        self._known: dict[float, Followed] = {}
        network = scenario.cluster.network
        if network.between is None and (network.graph is not None or network.model is not None):
            raise InputError(
                "cluster.network: a bandwidth can be looked for between sites, or of hosts behind one switch;"
                " a graph and a model of your own have no such knob"
            )
        job = _steady(scenario, entry)
        self._compute_s = max(job.compute.duration_s(rank, 0) for rank in range(job.workers))

    def share_of(self, step: Followed) -> float:
        """The share of a step that is computing."""
        return min(1.0, self._compute_s / step.step_s) if step.step_s else 1.0

    def at(self, bytes_per_s: float | None) -> Followed:
        """A step with this bandwidth; None: with the scenario's own.

        Raises:
            RunError: the scheme cannot do without values.
        """
        key = -1.0 if bytes_per_s is None else bytes_per_s
        if key not in self._known:
            scenario = self._scenario if bytes_per_s is None else _with_bandwidth(self._scenario, bytes_per_s)
            job = _steady(scenario, self._entry)
            cycle = job.scheme.cycle(job.options, job.units)
            self._known[key] = follow(job, cycle, lambda complete, _: complete >= _TWO_CYCLES)
        return self._known[key]

    def needed(self, share: float) -> float | None:
        """The least bandwidth, to ``PRECISION``, with which computing has that share; None: none has."""
        if self.share_of(self.at(_FASTEST)) < share:
            return None
        low, high = math.log(_SLOWEST), math.log(_FASTEST)
        for known, step in self._known.items():  # what is known from other shares narrows this one
            if known > 0 and self.share_of(step) >= share:
                high = min(high, math.log(known))
            elif known > 0:
                low = max(low, math.log(known))
        while high - low > PRECISION:
            middle = (low + high) / 2
            enough = self.share_of(self.at(math.exp(middle))) >= share
            low, high = (low, middle) if enough else (middle, high)
        return math.exp(high)


def _steady(scenario: Scenario, entry: SchemeEntry) -> Job:
    """The scheme on the clock alone, without an end and without what is random."""
    job = clock_only(endless(prepare(scenario, entry, scenario.seed)))
    network = job.transfer.network.steady
    return replace(
        job,
        compute=steady_compute(job.compute, job.workers),
        transfer=replace(job.transfer, network=network),
        chosen="",
    )


def _with_bandwidth(scenario: Scenario, bytes_per_s: float) -> Scenario:
    """The scenario with another bandwidth between sites, or of all hosts where there are none."""
    rate = min(max(bytes_per_s, MIN_RATE), MAX_RATE)
    network = scenario.cluster.network
    if network.between is not None:
        between = network.between.model_copy(update={"bandwidth": {DEFAULT: rate}})
        network = network.model_copy(update={"between": between})
    elif network.within is not None:
        network = network.model_copy(
            update={"within": network.within.model_copy(update={"bandwidth": rate, "upload": None})}
        )
    else:
        network = network.model_copy(update={"bandwidth": rate, "upload": None})
    return scenario.model_copy(update={"cluster": scenario.cluster.model_copy(update={"network": network})})
