"""Networks that learn with random features, beside one machine: errors, speed-ups, memory, time of a step.

n agents with m examples each do gossip with full local gradients (learning rate 1) on noisy values of
cos(2 x), x ~ Normal(0, 1), in shared random Fourier features, for T = sqrt(n m) steps: the paper's number for
the worst case. The *error* of a model w is half the mean squared distance E (w . phi(x) - cos 2x)^2 / 2 over
the whole law of x, by quadrature. One machine does gradient descent on all n m examples, which is solved by
eigenvalues: w_t = sum over eigenvalues l of (1 - (1 - l)^t) / l. Every agent has to arrive: of a network the
worst agent's error counts.

The paper's cost of a step, in multiplications of one feature: m M for an agent's gradient, deg M for its
averaging, and a delay; n m M for one machine.

Source: Richards, Rebeschini and Rosasco, ICML 2020 (arXiv 2007.00360).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from typing import Final

import numpy as np
import pandas as pd
import torch
from scipy.stats import linregress
from typing_extensions import override

from paceline.extras.papers.tasks.random_features import fourier_features
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.stacked import StackedRunner, StackedTask
from paceline.sim.experiments.prepare import clock_only, prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.program import operations as ops
from paceline.sim.records.intervals import Interval, of_median
from paceline.sim.scenario.schema import parse
from paceline.sim.seeds import Floats
from paceline.sim.topology import plan
from paceline.sim.topology.matrix import second_modulus
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.workloads.partition import Batches

TOPOLOGIES: Final = {"cycle": "ring", "grid": "grid", "complete": "complete"}
"""The paper's name of a graph -> ours."""
AGENTS: Final = (25, 49, 100)
EACH: Final = (10, 40, 160, 640)
"""Examples of an agent, m."""
SEEDS: Final = (1, 2, 3, 4, 5)
FEATURES: Final = 100
WIDTH: Final = 1.0
NOISE: Final = 0.5
DELAY: Final = 10
"""Delay of an averaging over M, in multiplications."""
WITHIN: Final = 1.5
"""A network is as good as one machine where its error is at most so many times as large."""
PATIENCE: Final = 1.5
"""An agent that is not as good as one machine is after so many times its steps has not arrived."""
NUMBERS_OF_FEATURES: Final = (4, 8, 16, 32, 64, 128, 256, 512)
PLATEAU_EXAMPLES: Final = 2500

_SCENARIO: Final = """
name: random-features
seed: {seed}
workload:
  task: random-features
  features: {features}
  width: {width}
  dimension: 1
  noise: {noise}
  examples: {examples}
  batch_size: {each}
  optimizer: {{lr: 1.0}}
cluster:
  workers: {agents}
  compute: {{time: {gradient_us} us}}
  network: {{latency: {delay_us} us, bandwidth: 4 GB/s}}
schemes: [{{gossip: {{topology: {topology}}}}}]
evaluate: {{every: {steps} steps}}
stop: {{max_iterations: {steps}}}
gradients: batched
events: none
"""
"""A multiplication takes 1 ns, and so does sending a number of 4 bytes."""


def job_of(topology: str, agents: int, each: int, seed: int, steps: int, features: int = FEATURES) -> Job:
    """Gossip of so many agents with ``each`` examples, the costs of a step as the paper counts them."""
    text = _SCENARIO.format(
        seed=seed, features=features, width=WIDTH, noise=NOISE, examples=agents * each, each=each,
        agents=agents, gradient_us=each * features * 1e-3, delay_us=DELAY * features * 1e-3,
        topology=TOPOLOGIES[topology], steps=steps,
    )  # fmt: skip
    scenario = parse(text)
    return prepare(scenario, scenario.schemes[0], seed)


def condensed(job: Job) -> Job:
    """The job with as many examples for an agent as there are features, and equal gradients.

    With Q R the decomposition of an agent's features [m, M], its gradient is that on the rows of R and the
    targets Q' y, both times sqrt(M / m). Where m is not above M the job stays as it is.
    """
    assert job.problem is not None
    workload, batches = job.problem.workload, job.problem.batches
    m, features = batches.batch_size, workload.start.numel()
    if m <= features:
        return job
    inputs, targets = [], []
    for shard in batches.shards:
        rows = torch.from_numpy(shard)
        q, r = torch.linalg.qr(workload.inputs[rows].double())
        inputs.append(math.sqrt(features / m) * r)
        targets.append(math.sqrt(features / m) * (q.T @ workload.targets[rows].double()))
    fewer = replace(
        workload, inputs=torch.cat(inputs).to(workload.start), targets=torch.cat(targets).to(workload.start),
        labels=None, smoothness=None,
    )  # fmt: skip
    shards = tuple(np.arange(k * features, (k + 1) * features) for k in range(job.workers))
    return replace(
        job, problem=TrainingProblem(fewer, Batches(shards, features, job.seed), job.problem.method)
    )


# --- errors -------------------------------------------------------------------------------------


class _Trajectory(StackedRunner):
    """Keeps all that is published: a tensor [n, M] for each step."""

    def __init__(self, job: Job) -> None:
        super().__init__(job)
        self.models: list[torch.Tensor] = []

    @override
    def publish(self, task: StackedTask, operation: ops.Publish) -> None:
        super().publish(task, operation)
        self.models.append(operation.value)


def trajectory(job: Job) -> torch.Tensor:
    """All agents' models after every step, [T, n, M]."""
    run = _Trajectory(job)
    try:
        run.begin(0)
        return torch.stack(run.models)
    finally:
        run.close(0)


@cache
def _quadrature(features: int, seed: int) -> tuple[Floats, Floats, Floats]:
    """Features [k, M] of places, the true values [k] there, and the places' weights [k], whose sum is 1."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)
    phi = fourier_features(nodes[:, None], features, WIDTH, seed)
    return phi, np.cos(2 * nodes), weights / weights.sum()


def errors(models: Floats, seed: int) -> Floats:
    """The error of every model, from [..., M] to [...]."""
    phi, values, weights = _quadrature(models.shape[-1], seed)
    error: Floats = 0.5 * (models @ phi.T - values) ** 2 @ weights
    return error


def one_machine(job: Job, steps: int) -> Floats:
    """Models of gradient descent on all examples of a job, [steps, M], in closed form."""
    assert job.problem is not None
    phi, y = (each.double().numpy() for each in (job.problem.workload.inputs, job.problem.workload.targets))
    sigma, b = phi.T @ phi / len(y), phi.T @ y / len(y)
    values, vectors = np.linalg.eigh(sigma)
    values = values.clip(min=1e-12)
    filtered = -np.expm1(np.arange(1, steps + 1)[:, None] * np.log1p(-values)) / values
    models: Floats = filtered * (vectors.T @ b) @ vectors.T
    return models


@dataclass(frozen=True)
class Outcome:
    """One network under one seed, beside one machine with the same examples.

    Attributes:
        topology, agents, each, seed: which.
        steps: T, which one machine does.
        alone: its error then.
        worst: the worst agent's error after as many.
        arrived: steps after which every agent's error is at most ``WITHIN`` times ``alone``; None: never.
        alone_arrived: and those of the one machine.
    """

    topology: str
    agents: int
    each: int
    seed: int
    steps: int
    alone: float
    worst: float
    arrived: int | None
    alone_arrived: int

    @property
    def excess(self) -> float:
        """The worst agent's error over that of one machine."""
        return self.worst / self.alone

    @property
    def speed_up(self) -> float:
        """Time of one machine over that of the network, by the paper's costs; 0 where it does not arrive."""
        if self.arrived is None:
            return 0.0
        step = self.each + largest_degree(self.topology, self.agents) + DELAY
        return self.alone_arrived / self.arrived * self.agents * self.each / step


@cache
def largest_degree(topology: str, agents: int) -> int:
    """Neighbours of an agent, itself not counted."""
    matrix = plan(TOPOLOGIES[topology], agents).matrix(0)
    return int((matrix.toarray() > 0).sum(1).max()) - 1


@cache
def inverse_gap(topology: str, agents: int) -> float:
    """1 / (1 - sigma_2)."""
    return 1 / (1 - second_modulus(plan(TOPOLOGIES[topology], agents).matrix(0)))


@lru_cache(maxsize=1)
def _alone(agents: int, each: int, seed: int) -> tuple[Job, Floats]:
    """A network's job, condensed, for as many steps as it may take; and the errors of one machine, [T]."""
    steps = math.ceil(math.sqrt(agents * each))
    job = job_of("cycle", agents, each, seed, math.ceil(PATIENCE * steps))
    return condensed(job), errors(one_machine(job, steps), seed)


def run_network(topology: str, agents: int, each: int, seed: int) -> Outcome:
    """Train a network and one machine on the same examples."""
    job, alone = _alone(agents, each, seed)
    job = replace(job, options=job.scheme.options.model_validate({"topology": TOPOLOGIES[topology]}))
    worst = errors(trajectory(job).double().numpy(), seed).max(1)
    steps, goal = len(alone), WITHIN * alone[-1]
    there = np.flatnonzero(worst <= goal)
    return Outcome(
        topology, agents, each, seed, steps, float(alone[-1]), float(worst[steps - 1]),
        int(there[0]) + 1 if len(there) else None, int(np.flatnonzero(alone <= goal)[0]) + 1,
    )  # fmt: skip


def run_networks() -> list[Outcome]:
    """All networks under all seeds."""
    return [
        run_network(topology, agents, each, seed)
        for agents in AGENTS
        for each in EACH
        for seed in SEEDS
        for topology in TOPOLOGIES
    ]


@dataclass(frozen=True)
class Threshold:
    """The examples that an agent of a network needs.

    Attributes:
        agents, topology: which network.
        inverse_gap: of its mixing matrix.
        needed: where the median excess falls to ``WITHIN``, interpolated between the logarithms; the fewest
            that were tried where it is below that from the start, infinite where it never is.
    """

    agents: int
    topology: str
    inverse_gap: float
    needed: float


def thresholds(outcomes: pd.DataFrame) -> list[Threshold]:
    """One for each network."""
    out = []
    for _, some in outcomes.groupby(["agents", "topology"], sort=False):
        agents, topology = int(some["agents"].iloc[0]), str(some["topology"].iloc[0])
        medians = some.groupby("each")["excess"].median()
        tried, excess = medians.index.to_numpy(float), medians.to_numpy() - WITHIN
        above = np.flatnonzero(excess > 0)
        if not len(above):
            needed = float(tried[0])
        elif above[-1] == len(tried) - 1:
            needed = math.inf
        else:
            k = int(above[-1])
            needed = float(tried[k] * (tried[k + 1] / tried[k]) ** (excess[k] / (excess[k] - excess[k + 1])))
        out.append(Threshold(agents, topology, inverse_gap(topology, agents), needed))
    return out


def threshold_slope(needed: Sequence[Threshold]) -> float:
    """d log (examples needed) / d log (inverse gap), where they are known and above the fewest tried."""
    known = [row for row in needed if EACH[0] < row.needed < math.inf]
    logs = [np.log([row.inverse_gap for row in known]), np.log([row.needed for row in known])]
    return float(linregress(logs[0], logs[1]).slope)


def plateau() -> pd.DataFrame:
    """One machine's error for many numbers of features, a row for each of them and each seed."""
    steps = math.ceil(math.sqrt(PLATEAU_EXAMPLES))
    rows = []
    for features in NUMBERS_OF_FEATURES:
        for seed in SEEDS:
            job = job_of("complete", 2, PLATEAU_EXAMPLES // 2, seed, 1, features)
            error = errors(one_machine(job, steps)[-1], seed)
            rows.append({"features": features, "seed": seed, "error": float(error)})
    return pd.DataFrame(rows)


def slopes(outcomes: pd.DataFrame, agents: int) -> dict[str, Interval]:
    """d log error / d log (n m) of so many agents, by graph; over the seeds."""

    def slope(some: pd.DataFrame, column: str) -> float:
        return float(linregress(np.log(some["total"]), np.log(some[column])).slope)

    chosen = outcomes[outcomes["agents"] == agents]
    intervals: dict[str, Interval] = {}
    for topology in TOPOLOGIES:
        by_seed = chosen[chosen["topology"] == topology].groupby("seed")
        intervals[topology] = of_median([slope(some, "worst") for _, some in by_seed])
    by_seed = chosen[chosen["topology"] == "complete"].groupby("seed")
    intervals["one machine"] = of_median([slope(some, "alone") for _, some in by_seed])
    return intervals


# --- costs --------------------------------------------------------------------------------------


def memory_bytes(agents: int, total: int) -> dict[str, int]:
    """Bytes of an agent's tensors in a step on a cycle: examples, model, gradient, what it gets."""
    alone = agents == 1  # one of two that hold as much does what one machine would
    job = job_of("complete", 2, total, 1, 1) if alone else job_of("cycle", agents, total // agents, 1, 1)
    assert job.problem is not None
    workload, held = job.problem.workload, {}

    def loss(w: torch.Tensor, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        held["examples"] = inputs.untyped_storage().nbytes() + targets.untyped_storage().nbytes()
        return workload.loss(w, inputs, targets)

    problem = replace(job.problem, workload=replace(workload, loss=loss), method="looped")
    gradient = problem.gradient(0, 0, job.start).value
    degree = 0 if alone else largest_degree("cycle", agents)
    held["models"] = gradient.untyped_storage().nbytes() + (1 + degree) * job.start.untyped_storage().nbytes()
    return held


def step_times(agents: int, each: int) -> dict[str, tuple[float, float]]:
    """Seconds of a step by the paper's costs, and simulated, by graph."""
    times = {}
    for topology in TOPOLOGIES:
        steps = 20
        job = clock_only(job_of(topology, agents, each, 1, steps))
        cost = 1e-9 * FEATURES * (each + largest_degree(topology, agents) + DELAY)
        times[topology] = (cost, simulate_job(job).wall_clock_s / steps)
    return times


def distance_from_pooled() -> float:
    """The largest difference of a model of 25 agents with complete averaging from one machine's, 50 steps."""
    job = job_of("complete", 25, 20, 1, 50)
    assert job.problem is not None
    w = job.problem.workload
    exact = replace(w, start=w.start.double(), inputs=w.inputs.double(), targets=w.targets.double())
    job = replace(job, problem=replace(job.problem, workload=exact), start=job.start.double())
    return float(abs(trajectory(job).numpy() - one_machine(job, 50)[:, None]).max())
