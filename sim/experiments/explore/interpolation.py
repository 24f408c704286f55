"""Times of steps whose clock has no closed form: simulated on a grid of links, interpolated between."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any, Final

import numpy as np

from ...config.tracking import track
from ...drivers.job import Job
from ...network.network import Network, Route
from ...scenario.entries import SchemeEntry
from ...scenario.schema import Scenario
from ...seeds import SHARED, generator
from .. import prepare
from ..choice import choose_each
from ..costs.step_cost import ENOUGH_PART_WORK, endless, enough, follow

DECADES: Final = (-2.0, 2.0)
"""Range of the factors on latency and bandwidth, in powers of ten: that of the page's sliders."""
POINTS: Final = 9
"""Of each axis of a grid; the middle one is the scenario's own value."""
FRESH: Final = 20
"""Settings off the grid that give the error: 9 of 10 others stay below their largest with 88 % certainty."""


def why_not_interpolated(scenario: Scenario, job: Job) -> str:
    """What would change with the links besides the time of a step, as a phrase; "" if nothing does."""
    phrases = {
        "the scheme is not synchronous: what its workers do depends on the clock": not job.synchronous,
        "connecting and faults are only simulated": job.transfer.connect_s
        or job.churn
        or any(each.crash for each in job.compute.stragglers),
        "whose values are encoded depends on the links": len(prepare.units_to_encode(scenario, job)) > 1,
        "latencies or bandwidths vary (network.jitter, network.variation)": job.transfer.network.varies,
    }
    return next((phrase for phrase, there in phrases.items() if there), "")


def step_grid(scenario: Scenario, entry: SchemeEntry, link: tuple[float, float | None]) -> dict[str, Any]:
    """How long a scheme's step is by factors on latencies and bandwidths, and how far interpolation is off.

    Returns ``axes``, log10 of the factors on latency [a] and bandwidth [b]; ``logs``, natural logarithms of
    the ratio to the scenario's own step [a, b]; ``error``, the largest relative one in ``FRESH`` settings off
    the grid, and ``fresh``, their number. An axis without anything to scale (``link``) has one point.

    Raises ``RunError`` if the scheme cannot be followed without values.
    """
    points = np.linspace(*DECADES, POINTS).tolist()
    axes = [points if base else [0.0] for base in link]
    drawn = generator(scenario.seed, SHARED, "settings off the grid").uniform(*DECADES, (FRESH, 2))
    fresh = [[value * bool(base) for value, base in zip(row, link, strict=True)] for row in drawn.tolist()]
    settings = [*product(*axes), *fresh]
    steps_s = [_step_s(scenario, entry, *each) for each in track(f"{entry.label}: links", settings)]
    logs = np.log(steps_s[:-FRESH]).reshape([len(axis) for axis in axes])
    off = [
        abs(math.exp(interpolate(axes, logs, each)) / step_s - 1)
        for each, step_s in zip(fresh, steps_s[-FRESH:], strict=True)
    ]
    logs -= interpolate(axes, logs, (0.0, 0.0))
    return {"axes": axes, "logs": logs.tolist(), "error": max(off), "fresh": FRESH}


def interpolate(axes: Sequence[Sequence[float]], logs: np.ndarray, setting: Sequence[float]) -> float:
    """Bilinear between the four points of a grid around a setting; ``stepOf`` in the page does the same."""
    rows = [np.interp(setting[1], axes[1], row) for row in logs]
    return float(np.interp(setting[0], axes[0], rows))


def _step_s(scenario: Scenario, entry: SchemeEntry, latency: float, bandwidth: float) -> float:
    job = prepare.prepare(scenario, entry, scenario.seed)
    network = scaled(job.transfer.network, 10**latency, 10**bandwidth)
    job = replace(job, transfer=replace(job.transfer, network=network))
    chosen = scenario.collectives.chosen
    if isinstance(chosen, dict) and entry.label in chosen:
        names = choose_each([prepare.clock_only(job)], prepare.units_to_encode(scenario, job))[0]
        job = replace(job, chosen=type(job.chosen)(names))
    job = prepare.over_profile(prepare.clock_only(endless(job)), scenario.cluster.profile)
    return follow(job, partial(enough, ENOUGH_PART_WORK)).step_s


def scaled(network: Network, latency: float, bandwidth: float) -> Network:
    """``network`` with factors on what the page's sliders change, as ``recording.pairs_of`` tells it apart.

    With sites that is what lies between them, without on all but what is inside a host.
    """
    apart = len(network.sites) > 1 and not network.routes
    inside = {*network.inner_up.values(), *network.inner_down.values()}
    inside |= {*network.up.values(), *network.down.values()} if apart else set()

    def far(values: Sequence[Sequence[float]], factor: float) -> tuple[tuple[float, ...], ...]:
        return tuple(
            tuple(value if apart and a == b else factor * value for b, value in enumerate(row))
            for a, row in enumerate(values)
        )

    return replace(
        network,
        links=tuple(
            each
            if link in inside
            else replace(each, bandwidth_bytes_per_s=bandwidth * each.bandwidth_bytes_per_s)
            for link, each in enumerate(network.links)
        ),
        latency_s=far(network.latency_s, latency),
        per_flow_bytes_per_s=far(network.per_flow_bytes_per_s, bandwidth),
        routes={
            pair: Route(route.links, latency * route.latency_s, bandwidth * route.per_flow_bytes_per_s)
            for pair, route in network.routes.items()
        },
    )
