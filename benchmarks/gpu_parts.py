"""What is measured on a GPU, part by part; each is a function of the device, and runs on a CPU too.

``benchmarks/gpu.py`` runs them all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import count
from typing import Any, Final

import torch

from benchmarks.nccl_contract import contract_on_nccl, share_gpu
from paceline.extras.papers.tasks.images import resnet20
from paceline.realrun.driver.one_run import run_job
from paceline.realrun.group.group import Group
from paceline.sim.compute.compute_settings import seconds_at
from paceline.sim.compute.timing import timer_of, typical_times_s
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.errors import RunError
from paceline.sim.experiments.prepare import resolve
from paceline.sim.experiments.simulate import simulate
from paceline.sim.records.scenario_facts import read_facts
from paceline.sim.records.summarise import summarise
from paceline.sim.records.summary import verdict_of
from paceline.sim.scenario.schema import dump, load
from paceline.sim.training.gradients import Method, TrainingProblem
from paceline.sim.training.optimizer import OptimizerSettings, make_optimizer
from paceline.sim.workloads import find_task
from paceline.sim.workloads.partition import Batches, Partition, shards
from paceline.sim.workloads.supervised import initial_weights, supervised
from paceline.sim.workloads.workload import Workload
from tests.support import attach_jobs
from tests.support.cluster_pool import Pool
from tests.support.factory import make_job, placed
from tests.support.lockstep import run_lockstep

TASKS: Final = ("digits-mlp", "resnet-20", "text-transformer")
WORKERS: Final = 64
BATCH_SIZE: Final = 32
IMAGES: Final = 4096
BLOCKS: Final = 7
BLOCK_S: Final = 0.15
"""A way of computing gradients is repeated for about this long in every block."""

MEASURED: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
UNSEEN: Final = (3, 6, 12, 24, 48, 96, 192, 384, 768)

ATTACHED: Final[Mapping[str, Any]] = {
    "all_reduce": "all_reduce",
    "gossip": {"gossip": {"topology": "ring"}},
    "local_sgd": {"local_sgd": {"period": 4}},
    "sgp": {"sgp": {"topology": "ring"}},
}

Figures = dict[str, Any]
"""What a part has measured, as JSON can hold it."""


def build_workload(task: str, device: torch.device, images: int = IMAGES) -> Workload:
    """Make one of ``TASKS``; ResNet-20 learns random images of CIFAR's size: their values do not matter."""
    if task != "resnet-20":
        entry = find_task(task)
        return entry.build(entry.options(), 0).to(device)
    random = torch.Generator().manual_seed(0)
    examples = torch.randn(images, 3, 32, 32, generator=random), torch.arange(images) % 10
    with initial_weights(0):
        module = resnet20(3, 10)
    loss = torch.nn.functional.cross_entropy
    return supervised(task, module, loss, examples, examples, ("train_loss",)).to(device)


def problem_of(workload: Workload, workers: int, batch_size: int, method: Method) -> TrainingProblem:
    """Spread a workload evenly over workers."""
    parts = shards(Partition(), len(workload.inputs), None, workers, 0)
    return TrainingProblem(workload, Batches(parts, batch_size, 0), method)


def raw_vmap(workload: Workload) -> Callable[..., object]:
    """Nothing but ``torch.func``: gradients of (points [n, d], inputs [n, b, ...], targets [n, b, ...])."""
    if workload.loss_and_buffers is None:
        return torch.func.vmap(torch.func.grad(workload.loss))
    return torch.func.vmap(torch.func.grad(workload.loss_and_buffers, has_aux=True))


def gradient_rates(
    task: str,
    device: torch.device,
    workers: int = WORKERS,
    batch_size: int = BATCH_SIZE,
    blocks: int = BLOCKS,
    block_s: float = BLOCK_S,
    images: int = IMAGES,
) -> Figures:
    """Gradients a second, several ways, interleaved block by block.

    *looped*: one worker after the other; *batched*: as the event driver evaluates what is in flight; *raw
    vmap*: the same without choosing examples; *stacked step* and *event driver*: whole steps of local SGD
    between two averagings, with batches, updates and (the latter) the clock.

    Returns:
        ``rates``: medians, by way; ``ratios``: medians of the ratios within a block.
    """
    workload = build_workload(task, device, images)
    batched, looped = (problem_of(workload, workers, batch_size, method) for method in ("batched", "looped"))
    ranks, points = list(range(workers)), [workload.start.clone() for _ in range(workers)]
    stacked_points = torch.stack(points)
    rows = torch.stack([torch.from_numpy(batched.batches.examples(w, 0)) for w in ranks]).to(device)
    inputs, targets = workload.inputs[rows], workload.targets[rows]
    raw = raw_vmap(workload)
    indices = count()
    job = _job(batched, workers)

    def steps(run: Callable[[Job], object]) -> Callable[[int], object]:
        return lambda repeats: run(replace(job, max_iterations=repeats))

    def repeated(call: Callable[[], object]) -> Callable[[int], object]:
        return lambda repeats: [call() for _ in range(repeats)][-1]

    def gradients(problem: TrainingProblem) -> Callable[[int], object]:
        return repeated(lambda: problem.gradients(ranks, [next(indices)] * workers, points))

    ways = {
        "looped": gradients(looped),
        "batched": gradients(batched),
        "raw vmap": repeated(lambda: raw(stacked_points, inputs, targets)),
        "stacked step": steps(run_lockstep),
        "event driver": steps(_on_events),
    }
    timer = settled(device)
    repeats: dict[str, int] = {}
    for name, way in ways.items():
        timer(partial(way, 1))
        repeats[name] = max(1, min(50, round(block_s / timer(partial(way, 1)))))
    rates: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(blocks):
        for name, way in ways.items():
            taken_s = timer(partial(way, repeats[name]))
            rates[name].append(workers * repeats[name] / taken_s)
    pairs = (("batched", "looped"), ("batched", "raw vmap"), ("stacked step", "raw vmap"))
    return {
        "workers": workers,
        "batch_size": batch_size,
        "parameters": workload.start.numel(),
        "rates": {name: statistics.median(each) for name, each in rates.items()},
        "ratios": {
            f"{a} / {b}": statistics.median(x / y for x, y in zip(rates[a], rates[b], strict=True))
            for a, b in pairs
        },
    }


def settled(device: torch.device) -> Callable[[Callable[[], object]], float]:
    """Times a call on the host, until the device has done all of it."""

    def timer(run: Callable[[], object]) -> float:
        begin_s = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - begin_s

    return timer


def _job(problem: TrainingProblem, workers: int) -> Job:
    plain = make_job(
        "local_sgd", {"period": 10**9}, task="quadratic", workers=workers, every=10**9, latency_s=0.01,
        sharing="none", record_events=False,
    )  # fmt: skip
    rule = make_optimizer(OptimizerSettings(lr=0.1), problem.workload.num_buffers)
    return replace(plain, problem=problem, start=problem.workload.start, optimizer=rule)


def _on_events(job: Job) -> None:
    scorer = replace(job.scorer(), workload=None)
    EventDriver(job, [job.program(rank) for rank in range(job.workers)], scorer).run()


def unseen_batch_sizes(
    task: str,
    device: torch.device,
    measured: Sequence[int] = MEASURED,
    unseen: Sequence[int] = UNSEEN,
    typical: Callable[..., list[float]] = typical_times_s,
    images: int = IMAGES,
) -> Figures:
    """What ``compute: measured`` says about batch sizes at which it did not measure, and what they take.

    All are timed in turn, so that the errors are those of the law.

    Returns:
        ``measured``: [size, seconds]; ``unseen``: [size, predicted, measured seconds, error in per cent].
    """
    workload = build_workload(task, device, images)

    def gradient_of(batch_size: int) -> Callable[[], object]:
        problem, batches = problem_of(workload, 1, batch_size, "looped"), count()
        return lambda: problem.gradient(0, next(batches), workload.start)

    sizes = [*measured, *unseen]
    taken = dict(zip(sizes, typical([gradient_of(size) for size in sizes], timer_of(device)), strict=True))
    known = [taken[size] for size in measured]
    rows = []
    for size in unseen:
        predicted = seconds_at(size, measured, known)
        rows.append([size, predicted, taken[size], 100 * (predicted / taken[size] - 1)])
    return {"measured": [[size, taken[size]] for size in measured], "unseen": rows}


def contract(ranks: int) -> Figures:
    """The drivers' contract on NCCL, with so many processes on this machine's GPUs."""
    return asdict(contract_on_nccl(ranks))


def sharing(device: torch.device, ranks: int = 4, steps: int = 10) -> Figures:
    """Real processes over gloo that compute on one device, against the event driver on it.

    Returns:
        ``difference``: of the final models, relative to their size.
    """
    pool = Pool(ranks)
    try:
        answers = pool.ask(run_shared, device=device.type, steps=steps)
    finally:
        pool.close()
    finals = torch.tensor([answer["final"] for answer in answers], dtype=torch.float64)
    job = shared_job(device, ranks, steps)
    scorer = replace(job.scorer(), workload=None)
    outcome = EventDriver(job, [job.program(rank) for rank in range(ranks)], scorer).run()
    expected = torch.stack(outcome.finals).double().cpu()
    difference = ((finals - expected).norm() / expected.norm()).item()
    return {
        "ranks": ranks,
        "steps": steps,
        "difference": difference,
        "wall_clock_s": answers[0]["wall_clock_s"],
    }


def shared_job(device: torch.device, workers: int, steps: int) -> Job:
    """Gossip on the digits, with its values on ``device``."""
    job = make_job(
        "gossip", {"topology": "ring"}, task="digits-mlp", workers=workers, method="looped", compute_s=0.02,
        max_iterations=steps, momentum=0.9,
    )  # fmt: skip
    return placed(job, device)


def run_shared(group: Group, device: str, steps: int) -> Figures:
    """In a process of the pool: one rank of it."""
    measured = run_job(group, shared_job(torch.device(device), group.size, steps))
    if measured.error is not None:
        raise measured.error
    wall_s = measured.run.wall_clock_s if measured.run is not None else None
    return {"final": measured.final.tolist(), "wall_clock_s": wall_s}


def attached(device: torch.device, ranks: int = 2, steps: int = 20) -> Figures:
    """Training loops under ``paceline.attach`` whose models share one device, against gloo on the CPU.

    Returns:
        ``differences``: by scheme, of the final models, relative to their size.
    """
    on_device = {"device": device.type, "backend": "nccl" if device.type == "cuda" else "gloo"}
    finals = []
    for options in (on_device, {}):
        pool = Pool(ranks)
        try:
            pool.ask(share_gpu)
            answers = [
                pool.ask(
                    attach_jobs.train, scheme=scheme, steps=steps, loops=steps, timeout_s=30.0, **options
                )
                for scheme in ATTACHED.values()
            ]
        finally:
            pool.close()
        if errors := [each["error"] for ranks_answers in answers for each in ranks_answers if each["error"]]:
            raise RunError(errors[0])
        finals.append([torch.tensor([each["final"] for each in one], dtype=torch.float64) for one in answers])
    differences = [((got - want).norm() / want.norm()).item() for got, want in zip(*finals, strict=True)]
    return {"ranks": ranks, "steps": steps, "differences": dict(zip(ATTACHED, differences, strict=True))}


def scenario_on(device: torch.device, changes: Sequence[str] = ("repeats=1",)) -> Figures:
    """Simulate the ready scenario ``resnet-20`` with gradients on a device.

    Returns:
        ``gradient_s``: of one, as measured; ``gradients``: how many were computed, in ``wall_s`` of this
        machine's time; ``verdict``: who is first.
    """
    scenario = resolve(load("resnet-20", changes), device)
    begin_s = time.perf_counter()
    runs = list(simulate(scenario, device=device))
    wall_s = time.perf_counter() - begin_s
    summary = summarise(scenario.name, runs, read_facts(dump(scenario)).target)
    measured = scenario.cluster.compute.measured
    assert measured is not None
    return {
        "workers": scenario.cluster.workers,
        "gradient_s": measured.times[0],
        "gradients": sum(run.iterations for run in runs) * scenario.cluster.workers,
        "wall_s": wall_s,
        "verdict": verdict_of(summary, "simulated")["text"],
    }


def parts(device: torch.device) -> Mapping[str, tuple[float, Callable[[], Figures]]]:
    """Every part: the seconds that it may take, and what it does."""
    return {
        **{f"gradients {task}": (40.0, partial(gradient_rates, task, device)) for task in TASKS},
        **{f"measured {task}": (45.0, partial(unseen_batch_sizes, task, device)) for task in TASKS},
        "contract 1": (40.0, partial(contract, 1)),
        "contract 2": (60.0, partial(contract, 2)),
        "sharing": (40.0, partial(sharing, device)),
        "scenario resnet-20": (55.0, partial(scenario_on, device)),
        "attach": (90.0, partial(attached, device)),
    }
