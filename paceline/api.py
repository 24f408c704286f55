"""The Python interface: load, simulate, sweep, attach. Light to import; heavy modules are imported inside."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline import arguments
from paceline.commands.console import say, say_middle, watching
from paceline.sim.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

    from paceline.realrun.attach.attach import Attached
    from paceline.sim.scenario.schema import Scenario
    from paceline.sim.topology import Plan, TopologyEntry
    from paceline.study import Study, Sweep


def load(path: str | Path, changes: Sequence[str] = ()) -> Scenario:
    """Read a scenario file.

    >>> load("scenarios/one-rack.yaml", ["seed=3"]).seed
    3

    Args:
        path: a YAML file, or the name of a ready scenario, as in ``paceline list``.
        changes: ``dotted.key=value`` each, as after ``--set``.

    Raises:
        InputError: names the mistake, its line, and the nearest valid choice.
    """
    from paceline.sim.scenario import schema as scenario

    arguments.check_changes(changes)
    return scenario.load(arguments.read_path("path", path), changes)


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
    gradient_noise: tuple[int, int] | None = None,
) -> AbstractContextManager[Attached]:
    """Average ``model`` with the other workers of this torchrun job, by ``scheme``.

    ::

        with paceline.attach(model, optimizer, {"gossip": {"topology": "ring"}}, steps=1000) as worker:
            for inputs, targets in batches:
                optimizer.zero_grad()
                loss = criterion(model(inputs), targets)
                loss.backward()
                worker.step(loss)  # instead of optimizer.step()

    Args:
        model: the same initial parameters on all ranks, on the CPU or on a GPU.
        optimizer: SGD, Adam or AdamW with one parameter group; a scheduler may change its learning rate.
        scheme: as in a scenario: ``"all_reduce"``, or ``{"gossip": {"topology": "ring"}}``.
        steps: number of calls of ``step``, alike on all ranks.
        seed: of the scheme's random choices.
        inside: the ranks of this worker, over which DDP or ``fully_shard`` averages gradients. The first of
            them holds the whole model. None: each rank is a worker.
        backend: torch's name of the backend for pattern operations; messages always go over gloo.
        timeout_s: time limit of a wait for others.
        records: a folder for ``attached.json``: the first steps of the run, as far as all workers came, for
            ``paceline calibrate`` and a scenario's ``compute.trace.attached``; and for ``losses.jsonl``, the
            workers' mean loss at each step, where ``step`` was given it: a file of curves. On the machine of
            the rank that has ``run``; to be given on all ranks or on none.
        gradient_noise: (every, batch_size): measure the noise of gradients at multiples of this number of
            steps, into ``run.gradients``. ``batch_size``: examples of a worker's batch. DDP's ranks have
            equal shares of it; without DDP the loop calls ``half()`` between ``backward`` for the first and
            for the second half of a batch, each with half of the loss.

    Returns:
        A context. Its value has ``step(loss)``, ``rank`` and ``size`` (number of this process's worker, and
        number of workers) and, after the block and on one of the ranks, ``run``: a ``Run``.

    Raises:
        InputError: the model, the optimiser, the scheme or the environment is not supported.
        RunError: another rank was lost, or the loop ended too early.
    """
    import torch

    from paceline.realrun.attach import attach as attaching

    arguments.check_is("attach: model", model, torch.nn.Module, "a module of torch's")
    arguments.check_is("attach: optimizer", optimizer, torch.optim.Optimizer, "an optimizer of torch's")
    arguments.check_is(
        "attach: scheme", scheme, (str, Mapping), "a scheme's name, or a mapping with its options"
    )
    arguments.check_is("attach: backend", backend, str, "the name of a backend")
    arguments.check_is("attach: timeout_s", timeout_s, (int, float), "seconds")
    steps, seed = arguments.read_whole("attach: steps", steps), arguments.read_whole("attach: seed", seed, 0)
    folder = None if records is None else arguments.read_path("attach: records", records)
    if gradient_noise is not None:
        arguments.check_is("attach: gradient_noise", gradient_noise, tuple, "(every, batch_size)")
        numbers = [arguments.read_whole("attach: gradient_noise", each) for each in gradient_noise]
        gradient_noise = attaching.check_noise(*numbers)
    return attaching.attach(
        model, optimizer, scheme, steps=steps, seed=seed, inside=inside, backend=backend,
        timeout_s=timeout_s, records=folder, gradient_noise=gradient_noise,
    )  # fmt: skip


def topology_plan(
    topology: TopologyEntry | str | Mapping[str, Any], workers: int, weights: str = "auto", seed: int = 0
) -> Plan:
    """Mixing patterns of a topology, those of Paceline's schemes: ``await worker.mix(plan.at(k), x)``.

    >>> topology_plan({"ring_lattice": {"degree": 4}}, workers=8).at(0).sources[0]
    (1, 2, 6, 7)

    ``topology`` and ``weights`` are as in scenarios; a scheme's parameters ``topology: TopologyEntry`` and
    ``weights: str`` are checked before a run. ``seed``: ``worker.seed``. Raises ``InputError``.
    """
    from paceline.sim import topology as topologies

    workers, seed = arguments.read_whole("workers", workers), arguments.read_whole("seed", seed, 0)
    arguments.check_is("weights", weights, str, "the name of a rule")
    return topologies.plan(topologies.TopologyEntry.of(topology), workers, weights, seed)


def simulate(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    *,
    task: Callable[..., Any] | None = None,
    schemes: Sequence[Any] | None = None,
    changes: Sequence[str] = (),
    device: str = "auto",
    engine: str = "auto",
    jobs: int | None = None,
    executor: Executor | None = None,
    progress: bool = True,
) -> Study:
    """Predict: run every scheme under every seed, with real gradients under a virtual clock.

    >>> scenario = {
    ...     "name": "two-schemes",
    ...     "workload": {"task": "quadratic", "batch_size": 4, "optimizer": {"lr": 0.1}},
    ...     "cluster": {
    ...         "workers": 4,
    ...         "compute": {"time": "10 ms"},
    ...         "network": {"latency": "20 ms", "bandwidth": "100 Mbit/s"},
    ...     },
    ...     "schemes": ["all_reduce", {"local_sgd": {"period": 8}}],
    ...     "stop": {"target": {"metric": "train_loss", "value": 20}, "max_iterations": 400},
    ... }
    >>> simulate(scenario, progress=False).winner
    'local_sgd'

    Args:
        scenario: the result of ``load``, the path of a file, the name of a ready one, or a file's content as
            a mapping.
        task: replaces the scenario's task: a function that returns (model, loss, data); its parameters are
            options in ``workload``.
        schemes: replace the scenario's: names, your own functions (``async def``), and mappings of either to
            its options: ``["all_reduce", rare_average, {rare_average: {"period": 8}}]``.
        changes: ``dotted.key=value`` each, as after ``--set``.
        device: for gradients: ``auto``, ``cpu`` or ``cuda``.
        engine: of the virtual clock: ``event``, one event after another; ``lockstep``, all workers at once,
            where that is exact; ``auto``, lockstep wherever it is.
        jobs: number of parallel runs, each in a process of its own; None: one per core. It does not change
            the runs. A ``task`` from Python runs in this process.
        executor: any of ``concurrent.futures``, such as Dask's ``client.get_executor()``, for all runs.
        progress: show the current run on standard error.

    Returns:
        The runs: ``.summary``, ``.metrics`` and ``.events`` are data frames, ``.save(folder)`` writes them,
        ``.report()`` makes a page and ``.plot()`` a figure of them.

    Raises:
        InputError: the scenario or the task is wrong, or lockstep is asked for where it is not exact.
    """
    from paceline.sim.experiments import prepare
    from paceline.sim.experiments import simulate as simulator
    from paceline.sim.experiments.jobs import JobProcesses
    from paceline.sim.scenario.schema import resolve_scenario
    from paceline.study import Study

    arguments.check_is("engine", engine, str, "'auto', 'event' or 'lockstep'")
    scenario, jobs = _checked(scenario, task, changes, device, jobs, executor, progress)
    where, driver = prepare.device_named(device), simulator.engine_named(engine)
    resolved = prepare.resolve(resolve_scenario(scenario, task, changes, schemes), where)
    say_middle(scenario, changes)
    shown = watching(resolved) if progress else nullcontext(None)
    with shown as on_progress, JobProcesses(jobs, executor) as processes:
        resolved, tuning = simulator.choose_values(
            resolved, device=where, progress=on_progress, processes=processes, engine=driver
        )
        runs = simulator.simulate(
            resolved, device=where, progress=on_progress, warn=say, processes=processes, engine=driver
        )
        return Study(resolved, tuple(runs), tuple(tuning))


def _checked(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    task: Callable[..., Any] | None,
    changes: Sequence[str],
    device: str,
    jobs: int | None,
    executor: Executor | None,
    progress: bool,
) -> tuple[Scenario | Mapping[str, Any] | str | Path, int | None]:
    """Check the arguments shared by ``simulate`` and ``sweep``; returns scenario and jobs."""
    import os

    import torch

    from paceline.sim.config.problems import format_value
    from paceline.sim.experiments.jobs import check_jobs
    from paceline.sim.scenario.schema import Scenario

    if not torch.is_grad_enabled():  # nor in inference mode
        raise InputError("gradients are off: call it outside torch.no_grad() and inference_mode()")
    kinds = (Scenario, Mapping, str, os.PathLike)
    arguments.check_is("scenario", scenario, kinds, "what load returns, a path, or a mapping")
    if not isinstance(scenario, Scenario | Mapping):
        scenario = arguments.read_path("scenario", scenario)
    if task is not None and not callable(task):
        raise InputError(f"task: must be a function, not {format_value(task)}")
    arguments.check_changes(changes)
    arguments.check_is("device", device, str, "'auto', 'cpu' or 'cuda'")
    arguments.check_is("progress", progress, bool, "True or False")
    if executor is not None:
        arguments.check_is("executor", executor, Executor, "an executor of concurrent.futures")
    whole = None if jobs is None else arguments.read_whole("jobs", jobs)
    check_jobs(whole)
    return scenario, whole


def profile_layers(
    model: nn.Module, loss: Callable[..., Any], inputs: Tensor, targets: Tensor, file: str | Path
) -> float:
    """Time the layers of your model on its device, and write them as a ``workload.layer_profile`` file.

    Args:
        model: a module with trained parameters, on the device of the inputs.
        loss: ``loss(outputs, targets)``, one number.
        inputs, targets: a batch.
        file: CSV, with a row for each module that has parameters of its own.

    Returns:
        Seconds of a gradient, all layers together: ``cluster.compute.time`` of such a device.

    Raises:
        InputError: the model has no trained parameters, one takes no part in its output, or the file cannot
            be written.
    """
    import pandas as pd
    import torch

    from paceline.sim.compute.timing import time_layers
    from paceline.sim.config.files import write_atomically

    arguments.check_is("model", model, torch.nn.Module, "a module of torch's")
    if not callable(loss):
        raise InputError("loss: must be a function of outputs and targets")
    for name, batch in (("inputs", inputs), ("targets", targets)):
        arguments.check_is(name, batch, torch.Tensor, "a tensor, a batch")
    path = arguments.read_path("file", file)
    layers = time_layers(model, loss, inputs, targets)
    table = pd.DataFrame(layers).set_axis(["layer", "parameters", "forward [s]", "backward [s]"], axis=1)
    write_atomically(path, table.to_csv(index=False, lineterminator="\n"))
    return sum(each.forward_s + each.backward_s for each in layers)


def sweep(
    scenario: Scenario | Mapping[str, Any] | str | Path,
    grid: Mapping[str, Sequence[Any]] | None = None,
    *,
    task: Callable[..., Any] | None = None,
    schemes: Sequence[Any] | None = None,
    changes: Sequence[str] = (),
    device: str = "auto",
    progress: bool = True,
    jobs: int | None = None,
    executor: Executor | None = None,
    together: bool = False,
    sample: int | None = None,
) -> Sweep:
    """Predict under many settings, each bit for bit as ``simulate`` of that setting alone.

    The computation of synchronous schemes does not depend on the network. Where they run in lockstep, they
    are trained once for all networks, compute times and stragglers of the grid, under a clock for each; equal
    models are scored once. Everything else is simulated setting by setting.

    >>> latencies = {"cluster.network.latency": ["1 ms", "100 ms"]}
    >>> scenario = {
    ...     "name": "near-and-far",
    ...     "workload": {"task": "quadratic", "batch_size": 4, "optimizer": {"lr": 0.1}},
    ...     "cluster": {
    ...         "workers": 4,
    ...         "compute": {"time": "10 ms"},
    ...         "network": {"latency": "1 ms", "bandwidth": "100 Mbit/s", "sharing": "none"},
    ...     },
    ...     "schemes": ["all_reduce", {"local_sgd": {"period": 8}}],
    ...     "stop": {"target": {"metric": "train_loss", "value": 20}, "max_iterations": 400},
    ... }
    >>> sweep(scenario, latencies, progress=False).winners["winner"].tolist()
    ['local_sgd', 'local_sgd']

    Args:
        scenario: as for ``simulate``.
        grid: dotted key -> its values, as in a file; all combinations are run. None: draws from the ranges in
            the scenario.
        together: run the first values of all keys, then the second ones, and so on.
        sample: number of settings to draw instead, from lists and ranges such as ``["1 ms to 200 ms"]``.
        task, schemes, changes, device: as for ``simulate``.
        progress: show the progress of the runs on standard error.
        jobs, executor: as for ``simulate``, for the runs that share no training.

    Returns:
        A study for each setting: ``.summary`` is a data frame of all of them, ``.winners`` has one row each.

    Raises:
        InputError: the scenario, the task, or a key or value of the grid is wrong.
    """
    from paceline.sim.config.tracking import track
    from paceline.sim.experiments import prepare
    from paceline.sim.experiments.jobs import JobProcesses
    from paceline.sim.experiments.sweep import grid as grids
    from paceline.sim.experiments.sweep.sweep_settings import changes_of, plan_settings, with_ranges
    from paceline.sim.scenario.ranges import ranges_of
    from paceline.sim.scenario.schema import resolve_each
    from paceline.study import Study, Sweep

    scenario, jobs = _checked(scenario, task, changes, device, jobs, executor, progress)
    where = prepare.device_named(device)
    arguments.check_is("together", together, bool, "True or False")
    sample = None if sample is None else arguments.read_whole("sample", sample)
    given = arguments.read_grid({} if grid is None else grid)
    values, sample = with_ranges(given, ranges_of(scenario, changes), sample)
    settings, own, drawn = plan_settings(
        values, together, sample, lambda: next(resolve_each(scenario, task, [changes], schemes)).seed
    )
    tracked = track("reading setting", settings)
    scenarios = resolve_each(
        scenario, task, ([*own, *changes, *changes_of(each)] for each in tracked), schemes
    )
    first = next(scenarios)
    watched = watching(first) if progress else nullcontext(None)
    with watched as shown, JobProcesses(jobs, executor) as processes:
        unchosen = grids.resolve([first, *scenarios], where)
        resolved, tuning = grids.choose_values(unchosen, device=where, progress=shown, processes=processes)
        runs = grids.simulate(resolved, device=where, progress=shown, warn=say, processes=processes)
    studies = (Study(*each) for each in zip(resolved, map(tuple, runs), map(tuple, tuning), strict=True))
    return Sweep(tuple(settings), tuple(studies), drawn)
