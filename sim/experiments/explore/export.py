"""A study as the page of ``paceline explore`` re-prices it: trained once, then any cluster."""

from __future__ import annotations

import base64
import math
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from ...collectives.pipelines import TREE_SEGMENT_BYTES, TREE_SEGMENTS
from ...compute.model import steady_compute
from ...config import yaml_file
from ...config.tracking import track
from ...devices import one_thread
from ...drivers.job import Job
from ...drivers.lockstep.clock import Durations
from ...drivers.lockstep.exact import why_not
from ...errors import InputError, NotInLockstep, RunError
from ...network.build import build_network
from ...network.network import Network, rate_of
from ...network.settings import NetworkSettings
from ...records.money.cost import read_price
from ...records.run import Run
from ...scenario.entries import SchemeEntry
from ...scenario.ready import ready_clusters
from ...scenario.schema import Scenario
from ...seeds import Floats
from .. import prepare
from ..jobs import PlannedRun
from ..simulate import job_of
from .recording import record
from .tables import Tables, pairs_of

CYCLES: Final = 3
"""Of a scheme, between the first and the last of which ``experiments.choice`` takes the time."""
MAX_DRAWS: Final = 90_000
"""Most computing times in a page: as many repeats are shown as these allow."""


def export(scenario: Scenario, device: torch.device) -> dict[str, Any]:
    """Train a resolved scenario's schemes in lockstep, and return the content of the page, ready for JSON.

    Raises ``InputError`` if no scheme's clock is in closed form, with the reasons.
    """
    tables, shown, left_out = Tables(), [], []
    seeds, needed = prepare.seeds_of(scenario), dict[tuple[int, float], int]()
    with one_thread():
        for entry in track("scheme", list(scenario.schemes)):
            try:
                steady = _steady(scenario, entry, tables, device)
            except RunError as error:
                left_out.append({"label": entry.label, "why": str(error)})
                continue
            runs, draws = [], 0
            for seed in seeds:
                job = _job(scenario, entry, seed, device)
                run, steps = record(job, tables)
                gradients = sum(tables.gradients(number) for number in steps)
                draws += gradients * job.workers * job.computing.varies
                needed[seed, job.averaging_share] = max(needed.get((seed, job.averaging_share), 0), gradients)
                runs.append({"seed": seed, "steps": steps, "durations": job.averaging_share, **_scores(run)})
                if draws + gradients * job.workers > MAX_DRAWS:
                    break
            shown.append({"label": entry.label, "scheme": entry.name, "steady": steady, "runs": runs})
    if not shown:
        whys = "; ".join(f"{each['label']}: {each['why']}" for each in left_out)
        raise InputError(f"{scenario.name}: no scheme can be priced anew outside a simulation ({whys})")
    repeats = min(len(each["runs"]) for each in shown)
    for each in shown:
        each["runs"] = each["runs"][:repeats]
    job = _job(scenario, scenario.schemes[0], scenario.seed, device)
    return {
        "name": scenario.name,
        "workers": scenario.cluster.workers,
        "schemes": shown,
        "left_out": left_out,
        "repeats": [repeats, len(seeds)],
        **{name: getattr(tables, name) for name in ("steps", "mixes", "collectives", "layouts")},
        "durations": _durations(scenario, needed, repeats, device),
        "links": _links(job),
        **_scales(scenario, job),
        "target": scenario.stop.target and scenario.stop.target.model_dump(mode="json"),
        "stopped_by_time": scenario.stop.max_iterations is None and scenario.stop.max_time is not None,
    }


def _job(scenario: Scenario, entry: SchemeEntry, seed: int, device: torch.device) -> Job:
    """The job of a run that keeps no events and has no limit of time, unless nothing else stops it."""
    job = job_of(PlannedRun("trial", 0, scenario, entry, seed), device)
    job = prepare.over_profile(job, scenario.cluster.profile)
    return job if job.max_iterations is None else replace(job, max_time_s=math.inf)


def _steady(scenario: Scenario, entry: SchemeEntry, tables: Tables, device: torch.device) -> dict[str, Any]:
    """A few cycles on the clock alone, by which a scheme's algorithms are chosen as in ``experiments.choice``.

    Raises ``RunError`` if its clock is not in closed form.
    """
    job = _job(scenario, entry, scenario.seed, device)
    units = prepare.units_to_encode(scenario, job)
    reason = (
        why_not(job)
        or ("a group's first collective connects it (network.connect)" if job.transfer.connect_s else "")
        or ("its workers meet faults, or write checkpoints" if job.churn else "")
        or ("who encodes values depends on the network (collectives.inside)" if len(units) > 1 else "")
    )
    if reason:
        raise NotInLockstep(reason)
    chosen = scenario.collectives.chosen
    compute = steady_compute(job.compute, job.workers)
    steady = replace(job, compute=compute, options=job.scheme.long_run(job.options))
    cycle = steady.scheme.cycle(steady.options, steady.units)
    short = replace(prepare.clock_only(steady), max_iterations=CYCLES * cycle)
    _, steps = record(short, tables)
    return {
        "steps": steps,
        "durations": Durations([short.computing], job.workers).next_s()[0].tolist(),
        "tries": isinstance(chosen, dict) and bool(chosen.get(entry.label)),
    }


def _scores(run: Run) -> dict[str, Any]:
    """When each score was taken, in steps of all workers, and what it says."""
    met = None if run.met is None else run.evaluations.index(run.met)
    return {
        "scored": [[sum(each.steps), each.time_s] for each in run.evaluations],
        "metrics": [each.metrics for each in run.evaluations],
        "met": met,
    }


def _durations(
    scenario: Scenario, needed: dict[tuple[int, float], int], repeats: int, device: torch.device
) -> list[dict[str, Any]]:
    """Computing times of each worker, gradient by gradient: one row where they do not vary."""
    drawn = []
    for (seed, share), gradients in needed.items():
        if seed - scenario.seed >= repeats:
            continue
        job = replace(_job(scenario, scenario.schemes[0], seed, device), averaging_share=share)
        durations = Durations([job.computing], job.workers)
        rows = np.stack([durations.next_s()[0] for _ in range(gradients if job.computing.varies else 1)])
        drawn.append({"seed": seed, "share": share, "values": pack(rows)})
    return drawn


def pack(values: Floats) -> str:
    """Numbers in six bytes each, the first of float64, big-endian: to a relative 1e-11; in base64."""
    words = np.ascontiguousarray(values, ">f8").view(">u8") + (1 << 15)  # rounds what is cut off
    return base64.b64encode(words.astype(">u8").view(np.uint8).reshape(-1, 8)[:, :6].tobytes()).decode()


def _links(job: Job) -> dict[str, Any]:
    """Costs of messages beside their bytes, and of bytes between any two hosts."""
    model = job.transfer
    return {
        **pairs_of(model),
        "overhead_s": model.overhead_s,
        "block_overhead_s": model.block_overhead_s,
        "announcement": model.announcement,
        "mix_announcement": 0.0 if model.plain_patterns else model.announcement,
        "launch_s": model.launch_s,
    }


def _scales(scenario: Scenario, job: Job) -> dict[str, Any]:
    """What the sliders start from, and the links of ready clusters."""
    network, compute = job.transfer.network, steady_compute(job.compute, job.workers)
    latency_s, bytes_per_s = _typical_link(network)
    payload, segments = len(job.start) * job.bytes_per_parameter, 2 * TREE_SEGMENTS * TREE_SEGMENT_BYTES
    return {
        "between": "sites" if len(network.sites) > 1 and not network.routes else "workers",
        "latency_s": latency_s,
        "bytes_per_s": bytes_per_s,
        "compute_s": float(np.mean([compute.duration_s(worker, 0) for worker in range(job.workers)])),
        "payload_bytes": payload,
        # Collectives keep their segments only above this, and libraries choose algorithms by their bytes.
        "least_payload_bytes": segments if job.transport.name == "ideal" and payload >= segments else payload,
        "most_payload": 100.0 if job.transport.name == "ideal" and payload >= segments else 1.0,
        "price": _price(scenario),
        "clusters": [[name, *_typical_link(_cluster(path))] for name, path in ready_clusters().items()],
    }


def _price(scenario: Scenario) -> tuple[float, str]:
    """Mean price of a worker for an hour, and its currency; $1 where the scenario has none."""
    if scenario.price is None:
        return 1.0, "$"
    price = read_price(scenario.model_dump(mode="json"))
    return price["per_hour"] / scenario.cluster.workers, price["currency"]


def _cluster(path: Path) -> Network:
    document = yaml_file.parse(yaml_file.read_text(path), path.name).value
    settings = NetworkSettings.model_validate(document["cluster"]["network"])
    return build_network(settings, sum((settings.sites or {}).values()))


def _typical_link(network: Network) -> tuple[float, float | None]:
    """Median latency and bytes per second between two workers, of different sites if there are several."""
    hosts, site_of = range(network.num_hosts), network.site_of
    several = len(network.sites) > 1
    pairs = [(a, b) for a in hosts for b in hosts if a != b and (site_of[a] != site_of[b] or not several)]
    routes = [network.route(*pair) for pair in pairs]
    bytes_per_s = float(np.median([rate_of(network, route) for route in routes]))
    latency_s = float(np.median([route.latency_s for route in routes]))
    return latency_s, bytes_per_s if math.isfinite(bytes_per_s) else None
