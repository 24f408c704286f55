"""Serves blocks of both drivers, of raw ``torch.func.vmap`` and of a plain loop.

    python -m benchmarks.speed.ours WAY WORKERS HIDDEN

The plain loop and raw vmap compute gradients, always of the same batch, and nothing else. The drivers also
draw batches and durations (cv 0.1), update, average, and keep the clock and the accounts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import torch

from benchmarks.speed.children import Block, serve
from benchmarks.speed.work import BATCH_SIZE, LR, PERIOD, Work, parse_work
from paceline.sim.drivers.event import EventDriver
from paceline.sim.drivers.job import Job
from paceline.sim.drivers.lockstep.lockstep_driver import LockstepDriver
from tests.support.factory import make_job

SCHEMES: Final[Mapping[str, tuple[str, dict[str, Any]]]] = {
    "gossip": ("gossip", {"topology": "one_peer_exponential"}),
    "local_sgd": ("local_sgd", {"period": PERIOD}),
}


def make_speed_job(scheme: str, work: Work) -> Job:
    """A job of so many workers; the number of its steps is that of each block."""
    name, options = SCHEMES[scheme]
    return make_job(
        name, options, task="digits-mlp", task_options={"hidden": work.hidden}, workers=work.workers,
        batch_size=BATCH_SIZE, lr=LR, cv=0.1, every=10**9, latency_s=0.01, sharing="none",
        transport="ideal", all_reduce="auto", record_events=False,
    )  # fmt: skip


def event_driver(scheme: str, work: Work) -> Block:
    """Message by message."""
    job = make_speed_job(scheme, work)

    def block(steps: int) -> None:
        limited = replace(job, max_iterations=steps)
        EventDriver(limited, [limited.program(rank) for rank in range(job.workers)], limited.scorer()).run()

    return block


def lockstep(scheme: str, work: Work) -> Block:
    """All workers at once."""
    job = make_speed_job(scheme, work)

    def block(steps: int) -> None:
        limited = replace(job, max_iterations=steps)
        LockstepDriver(limited, limited.scorer()).run()

    return block


def plain_loop(work: Work) -> Block:
    """``backward()`` for one worker after the other."""
    module = work.module()
    inputs, classes = (each[:, :BATCH_SIZE] for each in work.examples())

    def block(steps: int) -> None:
        for _ in range(steps):
            for worker in range(work.workers):
                module.zero_grad()
                loss = torch.nn.functional.cross_entropy(module(inputs[worker]), classes[worker])
                loss.backward()  # type: ignore[no-untyped-call]

    return block


def raw_vmap(work: Work) -> Block:
    """The gradients of all workers in one ``torch.func.vmap``."""
    module = work.module()
    inputs, classes = (each[:, :BATCH_SIZE].contiguous() for each in work.examples())
    shapes = {name: parameter.shape for name, parameter in module.named_parameters()}
    sizes = [shape.numel() for shape in shapes.values()]
    start = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    points = start.repeat(work.workers, 1)

    def loss(x: torch.Tensor, inputs: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        parts = zip(shapes.items(), torch.split(x, sizes), strict=True)
        held = {name: part.view(shape) for (name, shape), part in parts}
        outputs = torch.func.functional_call(module, held, (inputs,))
        return torch.nn.functional.cross_entropy(outputs, classes)

    gradients = torch.func.vmap(torch.func.grad(loss))

    def block(steps: int) -> None:
        for _ in range(steps):
            gradients(points, inputs, classes)

    return block


WAYS: Final[Mapping[str, Callable[[Work], Block]]] = {
    "plain_loop": plain_loop,
    "raw_vmap": raw_vmap,
    **{f"lockstep_{scheme}": partial(lockstep, scheme) for scheme in SCHEMES},
    **{f"event_{scheme}": partial(event_driver, scheme) for scheme in SCHEMES},
}


def main() -> None:
    """Serve one of them."""
    torch.set_num_threads(1)
    way, work = parse_work(sys.argv[1:])
    serve(WAYS[way](work))


if __name__ == "__main__":
    main()
