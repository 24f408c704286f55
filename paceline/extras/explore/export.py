"""A study as the page of ``paceline explore`` re-prices it: trained once, then any cluster.

Where a clock has no closed form, steps are simulated on a grid of links, and interpolated between.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain, permutations, product
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from markupsafe import Markup

from paceline.reports.assumptions import assumed
from paceline.reports.folders import styles_of
from paceline.reports.page import render_template
from paceline.reports.paper_files import STYLE_FILE
from paceline.sim.collectives.pipelines import TREE_SEGMENT_BYTES, TREE_SEGMENTS
from paceline.sim.compute.model import steady_compute
from paceline.sim.config import yaml_file
from paceline.sim.config.files import claim, save_atomically
from paceline.sim.config.tracking import track
from paceline.sim.devices import one_thread
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.exact import why_not
from paceline.sim.drivers.lockstep.lockstep_clock import Durations
from paceline.sim.errors import InputError, NotInLockstep, RunError
from paceline.sim.experiments import prepare
from paceline.sim.experiments.choice import choose_each
from paceline.sim.experiments.costs.bounds import chance
from paceline.sim.experiments.costs.step_cost import ENOUGH_PART_WORK, endless, enough, follow
from paceline.sim.experiments.jobs import ALONE, JobProcesses, PlannedRun, can_be_sent
from paceline.sim.experiments.simulate import job_of, simulate_job
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Network, Route, rate_of
from paceline.sim.network.network_settings import NetworkSettings
from paceline.sim.records.intervals import FEWEST, bound_place
from paceline.sim.records.money.cost import PriceRecord, cost_to_end
from paceline.sim.records.run import Run
from paceline.sim.records.scenario_facts import describe_proxy, read_facts, read_price
from paceline.sim.records.verdict import BEYOND_CHANCE, TIED_WITHIN
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.ready import ready_clusters
from paceline.sim.scenario.schema import Scenario, dump, parse
from paceline.sim.seeds import SHARED, Floats, generator
from paceline.sim.traffic.selection import Algorithms

from .recording import Tables, pairs_of, record

MAX_DRAWS: Final = 40_000
"""Most computing times of one scheme in a page, which has as many repeats as they allow."""


def export(scenario: Scenario, device: torch.device, processes: JobProcesses = ALONE) -> dict[str, Any]:
    """Train a resolved scenario's schemes in lockstep; return the content of the page, ready for JSON.

    Clocks without a closed form are interpolated; ``InputError``, with the reasons, if none can be.
    """
    tables, shown, left_out = Tables(), list[dict[str, Any]](), dict[str, str]()
    seeds, drawn = prepare.seeds_of(scenario), dict[str, tuple[int, Job]]()
    price = None if scenario.price is None else read_price(scenario.model_dump(mode="json"))
    with one_thread():
        for entry in track("scheme", list(scenario.schemes)):
            try:
                steady = _steady(scenario, entry, tables, device)
            except RunError as error:
                left_out[entry.label] = str(error)
                continue
            runs = list[dict[str, Any]]()
            while len(runs) < len(seeds):
                job = _job(scenario, entry, seeds[len(runs)], device)
                run, steps = record(job, tables)
                kinds = [kind for step in steps for kind, _ in tables.rows["steps"][step]]
                gradients = kinds.count("gradient") if job.computing.varies else 1
                if not drawn:
                    seeds = seeds[: max(1, MAX_DRAWS // (gradients * job.workers))]
                key = f"{job.seed} {job.computing.longer} {job.computing.launches_s}"
                drawn[key] = max(drawn.get(key, (0, job)), (gradients, job), key=lambda each: each[0])
                runs.append({"steps": steps, "durations": key} | _recorded(run, job, price))
            later = tables.hand_over(_job(scenario, entry, scenario.seed, device))
            facts = {"steady": steady, "later": later, "runs": runs}
            shown.append({"label": entry.label, "scheme": entry.name, **facts})
        for entry in [each for each in scenario.schemes if each.label in left_out]:
            try:
                shown.append(_interpolated(scenario, entry, seeds, device, processes, price))
                del left_out[entry.label]
            except RunError as error:
                left_out[entry.label] = str(error)
    if not shown:
        whys = "; ".join(f"{label}: {why}" for label, why in left_out.items())
        raise InputError(f"no scheme's clock follows from a record ({whys}); use 'paceline sweep'")
    order = [each.label for each in scenario.schemes]
    first = _job(scenario, scenario.schemes[0], scenario.seed, device)
    return {
        "name": scenario.name,
        "workers": scenario.cluster.workers,
        "transport": read_facts(dump(scenario)).transport,
        "schemes": sorted(shown, key=lambda each: order.index(each["label"])),
        "left_out": left_out,
        "repeats": len(seeds),
        "race": {
            "fewest": FEWEST,
            "place": bound_place(len(seeds)),
            "beyond": BEYOND_CHANCE,
            "tied": TIED_WITHIN,
            "exact": scenario.stop.target is None
            and not any(chance(scenario, each) for each in scenario.schemes),
        },
        "target": scenario.stop.target and scenario.stop.target.model_dump(mode="json"),
        "durations": {key: _pack(*each) for key, each in drawn.items()},
        **tables.rows,
        **_costs(scenario, first, price),
        **({} if first.problem else {"untrained": describe_proxy(scenario.model_dump(mode="json"))}),
    }


def _job(scenario: Scenario, entry: SchemeEntry, seed: int, device: torch.device) -> Job:
    """The job of a run without events, and without a limit of time unless nothing else stops it."""
    job = job_of(PlannedRun("trial", 0, scenario, entry, seed), device)
    job = prepare.over_profile(job, scenario.cluster.profile)
    return job if job.max_iterations is None else replace(job, max_time_s=math.inf)


def _steady(scenario: Scenario, entry: SchemeEntry, tables: Tables, device: torch.device) -> dict[str, Any]:
    """Three cycles on the clock alone, to choose algorithms by; ``RunError``: no closed form."""
    job = _job(scenario, entry, scenario.seed, device)
    if job.transfer.connect_s or job.churn or len(prepare.units_to_encode(scenario, job)) > 1:
        raise NotInLockstep("connecting, faults and values encoded by site are only simulated")
    if reason := why_not(job):
        raise NotInLockstep(reason)
    compute = steady_compute(job.compute, job.workers)
    job = prepare.clock_only(replace(job, compute=compute, options=job.scheme.long_run(job.options)))
    cycle, chosen = job.scheme.cycle(job.options, job.units), scenario.collectives.chosen
    return {
        "steps": record(replace(job, max_iterations=3 * cycle), tables)[1],
        "durations": Durations([job.computing], job.workers).next_s()[0].tolist(),
        "tries": isinstance(chosen, dict) and entry.label in chosen,
    }


def _interpolated(
    scenario: Scenario,
    entry: SchemeEntry,
    seeds: Sequence[int],
    device: torch.device,
    processes: JobProcesses,
    price: PriceRecord | None,
) -> dict[str, Any]:
    """A scheme with recorded scores whose step is interpolated; ``RunError``: it cannot be."""
    job = _job(scenario, entry, scenario.seed, device)
    if reason := why_not_interpolated(scenario, job):
        raise NotInLockstep(reason)
    grid = step_grid(scenario, entry, _typical_link(job.transfer.network), processes)
    runs = list[dict[str, Any]]()
    for seed in track(f"{entry.label}: repeat", seeds):
        job = _job(scenario, entry, seed, device)
        run = simulate_job(job)
        if run.status == "partial" or run.step_s is None:
            raise RunError(run.message)
        steps, computed_s = round(run.iterations), run.time_s.compute / run.iterations
        own = _recorded(run, job, price)
        runs.append({"steps": steps, "step_s": run.step_s, "computed_s": computed_s} | own)
    names = {"label": entry.label, "scheme": entry.name}
    return {**names, "grid": grid, "later_s": job.hand_over.time_s, "runs": runs}


def _recorded(run: Run, job: Job, price: PriceRecord | None) -> dict[str, Any]:
    """Its scores, which of them met the target, and what its bytes between sites cost by then.

    Each score is after how many publications: a multiple of the steps between two scorings, though others
    fell on that instant.
    """
    totals = [sum(each.steps) for each in run.evaluations]
    every = 1 if job.scoring.curve else job.scoring.every * job.workers
    due = [total // every * every for total in totals]
    done = [new if new > old else total for old, new, total in zip([-1, *due], due, totals, strict=False)]
    return {
        "scores": [(number, each.metrics) for number, each in zip(done, run.evaluations, strict=True)],
        "met": None if run.met is None else run.evaluations.index(run.met),
        "egress": 0.0 if price is None else cost_to_end(run, price | {"per_hour": 0.0}),
    }


def _pack(gradients: int, job: Job) -> str:
    """Computing times [gradients, n], or [n] where they do not vary, in base64."""
    durations = Durations([job.computing], job.workers)
    rows = np.stack([durations.next_s()[0] for _ in range(gradients)])
    return base64.b64encode(rows.astype("<f8").tobytes()).decode()


def _costs(scenario: Scenario, job: Job, price: PriceRecord | None) -> dict[str, Any]:
    """Costs of messages, and what the sliders start from."""
    model, compute = job.transfer, steady_compute(job.compute, job.workers)
    payload, segments = len(job.start) * job.bytes_per_parameter, 2 * TREE_SEGMENTS * TREE_SEGMENT_BYTES
    ideal = job.collectives.transport.name == "ideal"
    whole = ideal and payload > segments  # else blocks change with the payload
    return {
        **pairs_of(model),
        "overhead_s": [model.overhead_s, model.block_overhead_s],
        "announcements": [model.announcement, 0.0 if model.plain_patterns else model.announcement],
        "launch_s": model.launch_s,
        "between": "sites" if len(model.network.sites) > 1 and not model.network.routes else "workers",
        "link": _typical_link(model.network),
        "compute_s": float(np.mean([compute.duration_s(worker, 0) for worker in range(job.workers)])),
        "payload_bytes": payload,
        "least_payload": segments / payload if whole else 1.0,
        "price": [price["per_hour"] / job.workers, price["currency"]] if price else [1.0, "$"],
        "clusters": {
            name: _typical_link(_cluster(path.read_text())) for name, path in ready_clusters().items()
        },
    }


def _cluster(text: str) -> Network:
    settings = NetworkSettings.model_validate(yaml_file.parse(text, "cluster").value["cluster"]["network"])
    return build_network(settings, sum((settings.sites or {}).values()))


def _typical_link(network: Network) -> tuple[float, float | None]:
    """Median latency and bytes per second between two workers, of different sites if there are several."""
    sites = range(len(network.sites))
    hosts = map(network.site_of.index, sites) if len(sites) > 1 else range(network.num_hosts)
    routes = [network.route(*pair) for pair in permutations(hosts, 2)]
    bytes_per_s = float(np.median([rate_of(network, route) for route in routes] or [math.inf]))
    latency_s = float(np.median([route.latency_s for route in routes] or [0.0]))
    return latency_s, bytes_per_s if math.isfinite(bytes_per_s) else None


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


_HERE = Path(__file__).parent


def build(content: Mapping[str, Any], out: Path) -> None:
    """Write the page to ``out``, which ``check_page`` allows; ``InputError``: in use or not writable."""
    styles = styles_of(content["schemes"], [each["scheme"] for each in content["schemes"]], solid=True)
    coloured = [{**each, "colour": styles[each["label"]].colour} for each in content["schemes"]]
    packed = zlib.compress(json.dumps({**content, "schemes": coloured}, allow_nan=False).encode(), 9)
    script, style = (
        "".join(file.read_text(encoding="utf-8") for file in files)
        for files in ((_HERE / "law.js", _HERE / "view.js"), (STYLE_FILE, _HERE / "explore.css"))
    )
    hashes = [base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (script, style)]
    grids = {each["label"]: each["grid"] for each in content["schemes"] if "grid" in each}
    text = render_template(
        "explore.html", _HERE, title=content["name"], between=content["between"],
        left_out=content["left_out"],
        data=base64.b64encode(packed).decode(), script=Markup(script), own_style=Markup(style),
        grids=grids, untrained=content.get("untrained"), assumed=assumed(content["transport"]),
        script_hash=hashes[0], style_hash=hashes[1],
    )  # fmt: skip
    with claim(out):
        save_atomically(out, lambda new: new.write_text(text, encoding="utf-8"))
