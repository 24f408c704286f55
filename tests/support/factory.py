"""Small jobs for tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from paceline.sim.compute.compute_settings import Compute, Straggler
from paceline.sim.compute.model import ComputeModel
from paceline.sim.config.settings import Settings
from paceline.sim.config.user_code.code_files import add_folders
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job, JobCollectives, JobLayers, Recording, Scoring
from paceline.sim.drivers.outcome import Outcome, run_record
from paceline.sim.jitter import Jitter, Lognormal
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Link, Network
from paceline.sim.network.network_settings import NetworkSettings
from paceline.sim.network.transport import TRANSPORTS, TransferModel
from paceline.sim.program.worker import Optimizer, Program, Worker
from paceline.sim.records.run import Run
from paceline.sim.schemes import find_scheme
from paceline.sim.schemes.scheme import Scheme
from paceline.sim.training.gradients import Method, TrainingProblem
from paceline.sim.training.optimizer import NullOptimizer, OptimizerSettings, Sgd, WithBuffers, make_optimizer
from paceline.sim.workloads import find_task
from paceline.sim.workloads.layers.layer import equal_segments
from paceline.sim.workloads.partition import Batches, Partition, shards

torch.set_num_threads(1)
add_folders([str(Path(__file__).parents[2])])  # of the tests' own modules, wherever a test or a rank is


def flat_network(workers: int, latency_s: float, bandwidth_bytes_per_s: float) -> Network:
    """One switch; every host has a full-duplex access link."""
    links = [Link(f"host{h} {way}", bandwidth_bytes_per_s) for way in ("up", "down") for h in range(workers)]
    finite = math.isfinite(bandwidth_bytes_per_s)
    return Network(
        sites=("all",),
        site_of=(0,) * workers,
        links=tuple(links) if finite else (),
        latency_s=((latency_s,),),
        per_flow_bytes_per_s=((math.inf,),),
        up={h: h for h in range(workers)} if finite else {},
        down={h: workers + h for h in range(workers)} if finite else {},
    )


def network_of(workers: int, **given: Any) -> Network:
    """The network of a scenario that says this of it."""
    return build_network(NetworkSettings.model_validate(given), workers)


def sites_of(workers: dict[str, int]) -> Network:
    """Sites with that many workers each, at no distance."""
    link = {"latency": "0 s", "bandwidth": "1000 Gbit/s"}
    return network_of(sum(workers.values()), sites=workers, within=link, between=link)


def make_problem(
    task: str, workers: int, seed: int, method: Method, batch_size: int = 32, **options: Any
) -> TrainingProblem:
    """A task spread iid over the workers."""
    workload = find_task(task).build(find_task(task).options(**options), seed)
    labels = None if workload.labels is None else workload.labels.numpy()
    parts = shards(Partition(), workload.inputs.shape[0], labels, workers, seed)
    return TrainingProblem(workload, Batches(parts, batch_size, seed), method)


def scored(job: Job, **changes: Any) -> Job:
    """The job with another scoring."""
    return replace(job, scoring=replace(job.scoring, **changes))


def make_job(
    scheme: str | Scheme = "gossip",
    options: dict[str, Any] | Settings | None = None,
    *,
    workers: int = 4,
    seed: int = 1,
    task: str | None = None,
    task_options: dict[str, Any] | None = None,
    method: Method = "batched",
    batch_size: int = 32,
    lr: float = 0.1,
    momentum: float = 0.0,
    rule: dict[str, Any] | None = None,
    start: torch.Tensor | None = None,
    bytes_per_parameter: float = 4.0,
    compute_s: float = 1.0,
    cv: float = 0.0,
    stragglers: Sequence[Straggler] = (),
    network: Network | None = None,
    latency_s: float = 0.0,
    bandwidth_bytes_per_s: float = math.inf,
    sharing: str = "max_min",
    streams: bool = False,
    overhead_s: float = 0.0,
    announcement: float = 0.0,
    all_reduce: str = "ring_stop_and_wait",
    transport: str | None = None,
    every: int = 1,
    max_iterations: int | None = 4,
    record_events: bool = True,
    buckets: int = 0,
    encoding: dict[str, str] | None = None,
    sums_inside: str | None = None,
    accumulate: int = 1,
) -> Job:
    """A job with the given parts; without a task only the clock matters.

    ``buckets``: how many equal segments a gradient has; 0: its layers. ``rule``: the optimiser, as a scenario
    writes it, in place of SGD with ``lr`` and ``momentum``.
    """
    found = find_scheme(scheme) if isinstance(scheme, str) else scheme
    problem = make_problem(task, workers, seed, method, batch_size, **(task_options or {})) if task else None
    problem = replace(problem, accumulate=accumulate) if problem else None
    jitter = Jitter(lognormal=Lognormal(cv=cv)) if cv else None
    if start is None:
        start = problem.workload.start if problem else torch.zeros(1)
    own_layers = JobLayers(
        equal_segments(start.numel(), buckets)
        if buckets
        else problem.workload.segments
        if problem
        else (("x", 0, start.numel()),),
        parameters=problem.workload.parameters if problem else (),
    )
    optimizer: Optimizer = Sgd(lr, momentum) if problem else NullOptimizer()
    if problem is not None and rule:
        chosen = OptimizerSettings.model_validate(rule)
        optimizer = make_optimizer(chosen, problem.workload.num_buffers, own_layers.tensors(start.numel()))
    elif problem is not None and problem.workload.num_buffers:
        optimizer = WithBuffers(optimizer, problem.workload.num_buffers)
    return Job(
        scheme=found,
        options=options if isinstance(options, Settings) else found.options(**(options or {})),
        label=found.name,
        workers=workers,
        seed=seed,
        start=start,
        optimizer=optimizer,
        problem=problem,
        task=find_task(task) if task else None,
        bytes_per_parameter=bytes_per_parameter,
        compute=ComputeModel(
            Compute.model_validate(
                {"time": f"{compute_s!r} s", "jitter": jitter, "encoding": encoding or {}}
            ),
            tuple(stragglers),
            seed,
            accumulate=accumulate,
        ),
        transfer=TransferModel(
            network or flat_network(workers, latency_s, bandwidth_bytes_per_s),
            sharing,
            overhead_s,
            announcement,
            streams=streams,
        ),
        collectives=JobCollectives(all_reduce, TRANSPORTS[transport], sums_inside=sums_inside),
        layers=own_layers,
        scoring=Scoring(every, "published"),
        max_iterations=max_iterations,
        recording=Recording(record_events),
    )


def placed(job: Job, device: torch.device) -> Job:
    """The same job with its values on ``device``."""
    if job.problem is None:
        return replace(job, start=job.start.to(device))
    workload = job.problem.workload.to(device)
    problem = TrainingProblem(workload, job.problem.batches, job.problem.method)
    return replace(job, start=job.start.to(device), problem=problem)


class NoOptions(Settings):
    """A scheme of a test has no options."""


def make_scheme(
    program: Callable[[Worker, Any], Coroutine[Any, Any, None] | Program], *, synchronous: bool = True
) -> Scheme:
    """A scheme from a coroutine function of a test."""
    return Scheme("test", program, NoOptions, synchronous, lambda options, workers: None)


def one_message(network: Network, num_bytes: int, begin_s: float = 0.0) -> Job:
    """Worker 0 sends to worker 1; both then end."""

    async def program(worker: Worker, options: NoOptions) -> None:
        x = torch.zeros(1)
        await worker.sleep(begin_s)
        if worker.rank == 0:
            await worker.send(1, x)
        elif worker.rank == 1:
            await worker.receive(0, x)

    return make_job(
        make_scheme(program), workers=network.num_hosts, network=network, bytes_per_parameter=num_bytes
    )


def run_events(job: Job, **driver_options: Any) -> Outcome:
    """Run on the event driver."""
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    return EventDriver(job, [job.program(r) for r in range(job.workers)], scorer, **driver_options).run()


def simulated(job: Job, **driver_options: Any) -> Run:
    """Run on the event driver and score."""
    scorer = job.scorer()
    scorer.begin([job.start] * job.workers)
    driver = EventDriver(job, [job.program(r) for r in range(job.workers)], scorer, **driver_options)
    return run_record(job, driver.run(), scorer, "simulated")
