"""The quadratic in double precision, and its gradients by hand: what recursions in numpy are checked with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.sim.drivers.job import Job
from paceline.sim.training.gradients import TrainingProblem
from tests.support.factory import make_job, run_events

Array = NDArray[np.float64]
Gradients = Callable[[int, Array], Array]

DIMENSION, EXAMPLES = 5, 96


def in_double(job: Job) -> Job:
    """The same job with all numbers in double precision."""
    assert job.problem is not None
    w = job.problem.workload
    exact = replace(w, start=w.start.double(), inputs=w.inputs.double(), targets=w.targets.double())
    problem = TrainingProblem(exact, job.problem.batches, job.problem.method)
    return replace(job, problem=problem, start=job.start.double())


def quadratic_job(scheme: str, options: dict[str, Any], **job: Any) -> Job:
    """A scheme on a small noisy quadratic, in double precision."""
    made = make_job(
        scheme, options, task="quadratic", task_options={"dimension": DIMENSION, "examples": EXAMPLES},
        **{"batch_size": 3, **job},
    )  # fmt: skip
    return in_double(made)


def gradients_of(job: Job) -> Gradients:
    """``g(k, x)``: all workers' gradients [n, d] in step k at x [n, d], h (x - mean of the batch)."""
    assert job.problem is not None
    examples, batches = job.problem.workload.inputs.numpy(), job.problem.batches
    curvature = torch.logspace(-1, 0, DIMENSION, base=10.0).double().numpy()

    def gradients(k: int, x: Array) -> Array:
        means = [examples[batches.examples(worker, k)].mean(0) for worker in range(job.workers)]
        return np.asarray(curvature * (x - np.stack(means)))

    return gradients


def finals_of(job: Job) -> Array:
    """All workers' last models [n, d], from the event driver."""
    return np.stack([final.numpy() for final in run_events(job).finals])


def start_of(job: Job) -> Array:
    """All workers' first models [n, d]."""
    return np.tile(job.start.numpy(), (job.workers, 1))


def close(found: Any, expected: Any) -> None:
    """Equal but for the rounding of some thousand additions in double precision."""
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)
