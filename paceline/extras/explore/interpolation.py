"""Times of steps whose clock has no closed form: simulated on a grid of links, interpolated between."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, product
from typing import Any, Final

import numpy as np

from paceline.sim.config.tracking import track
from paceline.sim.devices import one_thread
from paceline.sim.drivers.job import Job
from paceline.sim.experiments import prepare
from paceline.sim.experiments.choice import choose_each
from paceline.sim.experiments.costs.step_cost import ENOUGH_PART_WORK, endless, enough, follow
from paceline.sim.experiments.jobs import JobProcesses, can_be_sent
from paceline.sim.network.network import Network, Route
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario, dump, parse
from paceline.sim.seeds import SHARED, Floats, generator
from paceline.sim.traffic.selection import Algorithms

DECADES: Final = (-2.0, 2.0)
"""Range of the factors on latency and bandwidth, in powers of ten: that of the page's sliders."""
GRID_POINTS: Final = 9
"""Of each axis of a grid; the middle one is the scenario's own value."""
FRESH: Final = 20
"""Settings off the grid that give the error: 9 of 10 others stay below their largest with 88 % certainty."""


def why_not_interpolated(scenario: Scenario, job: Job) -> str:
    """What would change with the links besides the time of a step, as a phrase; "" if nothing does."""
    phrases = {
        "the scheme is not synchronous: what its workers do depends on the clock": not job.synchronous,
        "connecting is only simulated": job.transfer.connect_s,
        "faults are only simulated": job.churn or any(each.crash for each in job.compute.stragglers),
        "whose values are encoded depends on the links": len(prepare.units_to_encode(scenario, job)) > 1,
        "latencies or bandwidths vary (network.jitter, network.variation)": job.transfer.network.varies,
    }
    return next((phrase for phrase, there in phrases.items() if there), "")


def step_grid(
    scenario: Scenario, entry: SchemeEntry, link: tuple[float, float | None], processes: JobProcesses
) -> dict[str, Any]:
    """How long a scheme's step is by factors on latencies and bandwidths, and how far interpolation is off.

    Returns ``axes``, log10 of the factors on latency [a] and bandwidth [b]; ``logs``, natural logarithms of
    the ratio to the scenario's own step [a, b]; ``error``, the largest relative one in ``FRESH`` settings off
    the grid, and ``fresh``, their number. An axis without anything to scale (``link``) has one point.

    Raises ``RunError`` if the scheme cannot be followed without values.
    """
    points = np.linspace(*DECADES, GRID_POINTS).tolist()
    axes = [points if base else [0.0] for base in link]
    drawn = generator(scenario.seed, SHARED, "settings off the grid").uniform(*DECADES, (FRESH, 2))
    fresh = [[value * bool(base) for value, base in zip(row, link, strict=True)] for row in drawn.tolist()]
    settings = [*product(*axes), *fresh]
    steps_s = list(_steps_s(scenario, entry, settings, processes))
    logs = np.log(steps_s[:-FRESH]).reshape([len(axis) for axis in axes])
    off = [
        abs(math.exp(interpolate(axes, logs, each)) / step_s - 1)
        for each, step_s in zip(fresh, steps_s[-FRESH:], strict=True)
    ]
    logs -= interpolate(axes, logs, (0.0, 0.0))
    return {"axes": axes, "logs": logs.tolist(), "error": max(off), "fresh": FRESH}


def interpolate(axes: Sequence[Sequence[float]], logs: Floats, setting: Sequence[float]) -> float:
    """Bilinear between the four points of a grid around a setting; ``stepOf`` in the page does the same."""
    rows = [np.interp(setting[1], axes[1], row) for row in logs]
    return float(np.interp(setting[0], axes[0], rows))


def _steps_s(
    scenario: Scenario, entry: SchemeEntry, settings: Sequence[Sequence[float]], processes: JobProcesses
) -> Iterator[float]:
    """Seconds of a step in each setting; in processes if there may be several."""
    alone = scenario.model_copy(update={"schemes": (entry,)})
    if processes.window == 1 or not can_be_sent(alone):
        yield from (_step_s(scenario, entry, *each) for each in track(f"{entry.label}: setting", settings))
        return
    text, batches = dump(alone), [settings[k : k + GRID_POINTS] for k in range(0, len(settings), GRID_POINTS)]
    orders = [json.dumps([text, batch]) for batch in batches]
    what = f"{entry.label}: {GRID_POINTS} settings"
    yield from chain.from_iterable(processes.answer_all(_steps_of, orders, what))


def _steps_of(text: str) -> bytes:
    resolved, settings = json.loads(text)
    alone = parse(resolved)
    with one_thread():
        return json.dumps([_step_s(alone, alone.schemes[0], *each) for each in settings]).encode()


def _step_s(scenario: Scenario, entry: SchemeEntry, latency: float, bandwidth: float) -> float:
    job = prepare.prepare(scenario, entry, scenario.seed)
    network = scaled(job.transfer.network, 10**latency, 10**bandwidth)
    job = replace(job, transfer=replace(job.transfer, network=network))
    chosen = scenario.collectives.chosen
    if isinstance(chosen, dict) and entry.label in chosen:
        names = choose_each([prepare.clock_only(job)], prepare.units_to_encode(scenario, job))[0]
        job = replace(job, collectives=replace(job.collectives, chosen=Algorithms(names)))
    job = prepare.over_profile(prepare.clock_only(endless(job)), scenario.cluster.profile)
    return follow(job, partial(enough, ENOUGH_PART_WORK)).step_s


def scaled(network: Network, latency: float, bandwidth: float) -> Network:
    """``network`` with factors on what the page's sliders change, as ``recording.pairs_of`` tells it apart.

    With sites that is what lies between them, without on all but what is inside a host.
    """
    apart = len(network.sites) > 1 and not network.routes
    inside = {*network.inner_up.values(), *network.inner_down.values()}
    inside |= {*network.up.values(), *network.down.values()} if apart else set()
    rates = [
        each.bandwidth_bytes_per_s * (1.0 if k in inside else bandwidth)
        for k, each in enumerate(network.links)
    ]

    def far(values: Sequence[Sequence[float]], factor: float) -> tuple[tuple[float, ...], ...]:
        rows = [
            [value * (1.0 if apart and a == b else factor) for b, value in enumerate(row)]
            for a, row in enumerate(values)
        ]
        return tuple(map(tuple, rows))

    return replace(
        network,
        links=tuple(
            replace(each, bandwidth_bytes_per_s=rate) for each, rate in zip(network.links, rates, strict=True)
        ),
        latency_s=far(network.latency_s, latency),
        per_flow_bytes_per_s=far(network.per_flow_bytes_per_s, bandwidth),
        routes={
            pair: Route(route.links, latency * route.latency_s, bandwidth * route.per_flow_bytes_per_s)
            for pair, route in network.routes.items()
        },
    )
