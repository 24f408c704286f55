"""The Python interface: load, simulate, attach. Light to import; what is heavy is imported inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.console import say, watching

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch.distributed import ProcessGroup

    from paceline.realrun.attach.attach import Attached
    from paceline.sim.experiments.study import Study
    from paceline.sim.records.summary import Tuned
    from paceline.sim.scenario.schema import Scenario


def load(path: str | Path, changes: Sequence[str] = ()) -> Scenario:
    """Read a scenario file.

    Args:
        path: a YAML file.
        changes: ``dotted.key=value`` each, as after ``--set``.

    Raises:
        InputError: what is wrong, in which line, and the nearest valid choice.
    """
    from paceline.sim.scenario import schema as scenario

    return scenario.load(path, changes)


def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scheme: str | Mapping[str, Any],
    *,
    steps: int,
    seed: int = 0,
    inside: ProcessGroup | None = None,
    backend: str = "gloo",
    timeout_s: float = 60.0,
    records: Path | str | None = None,
) -> AbstractContextManager[Attached]:
    """Run a scheme inside your own training loop, under torchrun: see ``paceline.realrun.attach.attach``."""
    from paceline.realrun.attach import attach as attaching

    return attaching.attach(
        model, optimizer, scheme, steps=steps, seed=seed, inside=inside, backend=backend,
        timeout_s=timeout_s, records=records,
    )  # fmt: skip


def simulate(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    *,
    task: Callable[..., Any] | None = None,
    changes: Sequence[str] = (),
    device: str = "auto",
    progress: bool = True,
) -> Study:
    """Predict: run every scheme under every seed, with real gradients under a virtual clock.

    Args:
        scenario: what ``load`` returns, the path of a file, or what would stand in one, as a mapping.
        task: what is trained, in the place of the scenario's task: a function that returns (model, loss,
            data), see ``paceline.sim.workloads.user``; the options in ``workload`` are its parameters.
        changes: ``dotted.key=value`` each, as after ``--set``.
        device: where gradients are computed: ``auto``, ``cpu`` or ``cuda``.
        progress: show on standard error which run is under way.

    Returns:
        The runs: ``.summary``, ``.metrics`` and ``.events`` are data frames, ``.save(folder)`` writes them.

    Raises:
        InputError: the scenario or the task is wrong.
    """
    from contextlib import nullcontext

    from paceline.sim.experiments import prepare
    from paceline.sim.experiments import simulate as simulator
    from paceline.sim.experiments.study import Study
    from paceline.sim.scenario.schema import resolve_scenario

    where = prepare.device_named(device)
    resolved = prepare.resolve(resolve_scenario(scenario, task, changes), where)
    tuning: list[Tuned] = []
    with watching(resolved) if progress else nullcontext(None) as told:
        if resolved.tune is not None:
            resolved, tuning = simulator.tuned(resolved, device=where, progress=told)
        runs = tuple(simulator.simulate(resolved, device=where, progress=told, warn=say))
    return Study(resolved, runs, tuple(tuning))
