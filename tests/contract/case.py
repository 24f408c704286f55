"""One promise of the drivers' contract: what its workers do, and what they say and when."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import torch

from paceline.sim.drivers.job import Job
from paceline.sim.program.encoding import Qsgd
from paceline.sim.program.worker import Program, Worker
from tests.support.factory import make_job, make_scheme

UNIT = 1 / 32
"""Seconds; exact in binary."""

GRADIENT = 2 * UNIT

X = torch.arange(4.0)
"""What is sent where values do not matter."""

ONE_APART = ((1, 2, 3), (0,))
"""Groups: three together, and one alone."""

PAIRS = ((0, 2), (3, 1))
"""Groups of two each, in an order of their own."""

CODEC = Qsgd(bits=4, bucket=3)
"""Of what is sent encoded."""


@dataclass
class Log:
    """What a worker says, and when it was at what point, in units."""

    said: list[Any] = field(default_factory=list)
    times: list[float] = field(default_factory=list)

    def say(self, value: Any) -> None:
        """Note something that is the same on every driver."""
        self.said.append(value.tolist() if isinstance(value, torch.Tensor) else value)

    async def at(self, worker: Worker) -> None:
        """Note the time."""
        self.times.append(await worker.now() / UNIT)


Body = Callable[[Worker, Log], Coroutine[Any, Any, None] | Program]


@dataclass(frozen=True)
class Case:
    """One promise.

    Attributes:
        body: what every worker does.
        workers: how many there are.
        said: for each rank what it says.
        times: for each rank what it notes, in units.
        lockstep: it runs on the lockstep driver too.
        faults: rank -> number of its operation at which it dies.
        error: kind and words of the error that ends the run; "" if it does not fail.
        iterations: ``max_iterations`` of the job.
        task: what it trains.
    """

    body: Body
    workers: int
    said: tuple[tuple[Any, ...], ...] = ()
    times: tuple[tuple[float, ...], ...] = ()
    lockstep: bool = False
    faults: tuple[tuple[int, int], ...] = ()
    error: tuple[str, str] = ("", "")
    iterations: int = 3
    task: str = "quadratic"

    @property
    def name(self) -> str:
        """As tests show it."""
        return f"{self.body.__name__.strip('_')}-{self.workers}"


def contract_job(case: Case, logs: dict[int, Log]) -> Job:
    """The job of a case; ``logs`` gets what its workers note, by rank (or by -1 when stacked)."""

    def program(worker: Worker, options: Any) -> Any:
        log = logs[worker.ranks[0] if len(worker.ranks) == 1 else -1] = Log()
        return case.body(worker, log)

    return make_job(
        make_scheme(program), task=case.task, batch_size=4, workers=case.workers, compute_s=GRADIENT,
        max_iterations=case.iterations,
        task_options={"dimension": 4, "examples": 64} if case.task == "quadratic" else {},
    )  # fmt: skip


def says(log: Log) -> tuple[Any, ...]:
    """What a worker said."""
    return tuple(log.said)


def close_to(actual: Any, expected: Any) -> bool:
    """Equal, numbers within 1e-6 relative."""
    if isinstance(expected, float):
        return isinstance(actual, float) and abs(actual - expected) <= 1e-6 * max(1.0, abs(expected))
    if isinstance(expected, list | tuple):
        return len(actual) == len(expected) and all(
            close_to(f, e) for f, e in zip(actual, expected, strict=True)
        )
    return bool(actual == expected)
