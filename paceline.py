"""Paceline's front door: the command line, and the few public names.

Everything heavy is imported inside the commands, so that ``paceline --help`` is quick.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from command_parts import (
    AsJson,
    Changes,
    Device,
    Engine,
    Force,
    OnLab,
    Out,
    ProfileFile,
    ReportFile,
    ScenarioFile,
    Trace,
    print_json,
    say,
    watching,
)
from sim.errors import InputError, PacelineError
from sim.whole_file import write_whole
from topology_commands import topology_app

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    import torch
    from torch.distributed import ProcessGroup

    from realrun.attach import Attached
    from sim.records import Run
    from sim.scenario import Scenario
    from sim.study import Study
    from sim.summary import Tuned

app = typer.Typer(
    name="paceline",
    help="Which averaging scheme of distributed SGD reaches the target first by the clock, and by how much?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

lab_app = typer.Typer(help="The emulated network on this machine.", no_args_is_help=True)
app.add_typer(lab_app, name="lab")
app.add_typer(topology_app, name="topology")


def load(path: str | Path, changes: Sequence[str] = ()) -> Scenario:
    """Read a scenario file.

    Args:
        path: a YAML file.
        changes: ``dotted.key=value`` each, as after ``--set``.

    Raises:
        InputError: what is wrong, in which line, and the nearest valid choice.
    """
    from sim import scenario

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
    """Run a scheme inside your own training loop, under torchrun: see ``realrun.attach``."""
    from realrun import attach as attaching

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
            data), see ``sim.workloads.own``; the options in ``workload`` are its parameters.
        changes: ``dotted.key=value`` each, as after ``--set``.
        device: where gradients are computed: ``auto``, ``cpu`` or ``cuda``.
        progress: show on standard error which run is under way.

    Returns:
        The runs: ``.summary``, ``.metrics`` and ``.events`` are data frames, ``.save(folder)`` writes them.

    Raises:
        InputError: the scenario or the task is wrong.
    """
    from contextlib import nullcontext

    from sim import prepare
    from sim import simulate as simulator
    from sim.asked import asked
    from sim.study import Study

    where = prepare.device_named(device)
    resolved = prepare.resolve(asked(scenario, task, changes), where)
    tuning: list[Tuned] = []
    with watching(resolved) if progress else nullcontext(None) as told:
        if resolved.tune is not None:
            resolved, tuning = simulator.tuned(resolved, device=where, progress=told)
        runs = tuple(simulator.simulate(resolved, device=where, progress=told, warn=say))
    return Study(resolved, runs, tuple(tuning))


@app.command("simulate")
def simulate_command(
    scenario: ScenarioFile,
    changes: Changes = None,
    out: Out = None,
    device: Device = "auto",
    engine: Engine = "auto",
    profile: ProfileFile = None,
    force: Force = False,
    trace: Trace = False,
    as_json: AsJson = False,
) -> None:
    """Predict: real gradients under a virtual clock, for every scheme and seed."""
    from sim import prepare, result_folder
    from sim import profile as profiles
    from sim import simulate as simulator
    from sim.errors import nearest
    from sim.scenario import load

    _check_trace(trace, out)
    if engine not in ("auto", "event"):
        raise InputError(f"--engine {engine}: {nearest(engine, ['auto', 'event'])}")
    asked = load(scenario, changes or [])
    if profile is not None:
        cluster = asked.cluster.model_copy(update={"profile": profiles.load(profile)})
        asked = asked.model_copy(update={"cluster": cluster})
    where = prepare.device_named(device)
    left = None if out is None or force else simulator.unfinished(out, asked)
    if left is not None:
        resolved, done, tuning = left.scenario, left.runs, left.tuning
        force = True
        say(f"going on with {out}: {len(done)} runs are there")
    else:
        if out is not None:
            result_folder.check_free(out, force)
        resolved, done, tuning = prepare.resolve(asked, where), [], []
    runs: list[Run] = []
    interrupted = False
    try:
        with watching(resolved) as progress:
            if resolved.tune is not None:
                resolved, tuning = simulator.tuned(resolved, device=where, progress=progress)
            for run in simulator.simulate(resolved, device=where, progress=progress, done=done, warn=say):
                runs.append(run)
    except KeyboardInterrupt:
        interrupted = True
    _hand_over(resolved, runs, out, force, as_json, trace, tuning)
    if interrupted:
        asked_for = len(resolved.schemes) * len(prepare.seeds_of(resolved))
        again = " (the same command goes on from there)" if out is not None and runs else ""
        say(f"interrupted: {len(runs)} of {asked_for} runs are complete and kept{again}")
        raise typer.Exit(130)


@app.command()
def realrun(
    scenario: ScenarioFile,
    changes: Changes = None,
    processes: Annotated[
        bool, typer.Option("--processes", help="start one gloo process per worker on this machine")
    ] = False,
    lab: Annotated[
        bool, typer.Option("--lab", help="the same, in the scenario's network, emulated on this machine")
    ] = False,
    slurm: Annotated[
        bool, typer.Option("--slurm", help="run nothing; print a script that does, for sbatch")
    ] = False,
    per_node: Annotated[
        int, typer.Option("--per-node", metavar="N", help="--slurm: processes (with NCCL: GPUs) of a node")
    ] = 1,
    timeout: Annotated[float, typer.Option("--timeout", help="seconds that any wait may last")] = 60.0,
    out: Out = None,
    force: Force = False,
    trace: Trace = False,
    as_json: AsJson = False,
) -> None:
    """Measure: the same scenario and the same scheme code on real processes."""
    from contextlib import ExitStack

    from realrun.launch import Processes, measure
    from realrun.plan import plan
    from realrun.slurm import script
    from sim import result_folder
    from sim.network.build import build_network
    from sim.prepare import seeds_of
    from sim.scenario import load

    _check_trace(trace, out)
    if slurm:
        options = [*(f"--set={change}" for change in changes or []), f"--timeout={timeout:g}"]
        options += [f"--out={out}"] if out is not None else []
        flags = {"--force": force, "--trace": trace, "--json": as_json}
        options += [flag for flag, wanted in flags.items() if wanted]
        sys.stdout.write(script(load(scenario, changes or []), scenario, per_node, options))
        return
    if not (processes or lab):
        raise InputError(
            "realrun needs a cluster: add --processes (this machine) or --lab (this machine, the scenario's "
            "network emulated), or start it on one: torchrun --nproc-per-node N -m realrun SCENARIO, or "
            "--slurm for a script"
        )
    asked = load(scenario, changes or [])
    if out is not None:
        result_folder.check_free(out, force)
    runs: list[Run] = []
    interrupted = False
    try:
        with ExitStack() as stack:
            progress = stack.enter_context(watching(asked))
            cells = plan(asked, progress)
            how: dict[str, Any] = {"timeout_s": timeout}
            if lab:
                from realrun.lab import Lab

                network = build_network(asked.cluster.network, asked.cluster.workers)
                hosts = stack.enter_context(Lab(network, hosts=asked.lab.hosts, queue=asked.lab.queue))
                how |= {"popen": hosts.popen, "environment": {"GLOO_SOCKET_IFNAME": hosts.interface}}
            pool = stack.enter_context(Processes(asked.cluster.workers, **how))
            for result in measure(asked, cells, pool, progress=progress):
                runs.append(result.run)
    except KeyboardInterrupt:
        interrupted = True
    _hand_over(asked, runs, out, force, as_json, trace)
    if interrupted:
        asked_for = len(asked.schemes) * len(seeds_of(asked))
        say(f"interrupted: {len(runs)} of {asked_for} runs are complete and kept")
        raise typer.Exit(130)


@app.command()
def probe(
    scenario: ScenarioFile,
    out: Annotated[Path, typer.Option("--out", metavar="MEASURED.json", help="the file to write")],
    changes: Changes = None,
    lab: OnLab = False,
) -> None:
    """Measure transfers, collectives and gradients, one at a time, on the scenario's network."""
    from realrun import probe as probing
    from realrun import validate as validation
    from sim import json_file
    from sim.scenario import load

    asked = load(scenario, changes or [])
    if asked.cluster.workers < 2:
        raise InputError("a probe needs at least two workers")
    hosts = validation.hosts_of(asked, lab)
    with validation.open_pool(asked, lab, probing=False) as pool:
        say(f"probing a {hosts}")
        found = probing.measure(pool, hosts, asked)
    json_file.write(found, out)
    say(f"wrote {out}")


@app.command()
def calibrate(
    measured: Annotated[
        list[Path],
        typer.Argument(metavar="MEASURED.json...", help="files of 'paceline probe' and of paceline.attach"),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="PROFILE.yaml", help="the profile to write")],
    nominal: Annotated[
        Path | None,
        typer.Option(
            "--nominal",
            metavar="SCENARIO",
            help="the network on which paceline.attach recorded; it does not know",
        ),
    ] = None,
) -> None:
    """Fit the correction factors to measurements; also draws measured against fitted durations."""
    from realrun import calibrate as calibration
    from realrun import measured as reading
    from sim import profile as profiles
    from sim.scenario import load

    known = None if nominal is None else load(nominal)
    fit = calibration.calibrate([reading.load(path, known) for path in measured])
    picture = out.with_suffix(".png")
    calibration.plot(fit, picture)
    write_whole(out, profiles.dump(fit.profile))
    say(f"wrote {out} and {picture}: durations fit to {fit.profile.residual_pct:.1f} % (median)")


@app.command()
def validate(
    scenario: ScenarioFile,
    changes: Changes = None,
    lab: OnLab = False,
    profile: ProfileFile = None,
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, metavar="N", help="compare N steps instead of running to the target"),
    ] = None,
    out: Out = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Predict and measure, and say how far they are apart and whether the decision was right."""
    from rich.console import Console

    import reports
    from realrun import calibrate as calibration
    from realrun import clocks, compare_table
    from realrun import probe as probing
    from realrun import validate as validation
    from sim import result_folder
    from sim.scenario import dump, load

    asked = load(scenario, changes or [])
    if out is not None:
        result_folder.check_free(out, force)
    hosts = validation.hosts_of(asked, lab)
    factors = validation.profile_for(asked, profile, hosts)
    with validation.open_pool(asked, lab, probing=factors is None) as pool:
        if factors is None:
            say("no --profile: probing this machine first")
            factors = calibration.calibrate([probing.measure(pool, hosts)]).profile
        found = validation.validate(asked, pool, factors, steps, say)
    if out is not None:
        runs = [*found.predicted, *found.measured]
        result_folder.write_results(out, dump(found.scenario), found.scenario.name, runs, force=force)
        text = json.dumps(found.comparison, indent=1, allow_nan=False)
        write_whole(out / "validation.json", text + "\n")
        reports.build([out], out / "report.html")
        say(f"wrote {out}")
    if as_json:
        print_json(found.comparison)
    else:
        Console().print(compare_table.render(found.comparison))
    if sentence := clocks.said(found.measured):
        say(sentence)
    failed = [run for run in (*found.predicted, *found.measured) if run.status == "partial"]
    for run in failed:
        say(f"{run.label}, seed {run.seed}, {run.source}: {run.message}")
    if failed or any(each["same"] is False for each in found.comparison["trajectories"]):
        raise typer.Exit(1)


@lab_app.command("check")
def lab_check(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="[SCENARIO]", help="check this scenario's network, not standard ones"),
    ] = None,
) -> None:
    """Measure what this machine's lab can emulate."""
    from rich.console import Console

    from realrun.lab.check import check, render
    from sim.network.build import build_network
    from sim.scenario import load

    network = None
    if scenario is not None:
        asked = load(scenario)
        network = build_network(asked.cluster.network, asked.cluster.workers)
    Console().print(render(check(network)))


@app.command()
def check(
    scenario: ScenarioFile, changes: Changes = None, device: Device = "auto", as_json: AsJson = False
) -> None:
    """Say what a scenario means: its cluster and routes, what a step costs, how long simulating takes."""
    from rich.console import Console

    from reports import check_table
    from sim import check as checking
    from sim import prepare
    from sim.scenario import load

    found = checking.check(load(scenario, changes or []), prepare.device_named(device))
    if as_json:
        print_json(found)
    else:
        Console().print(check_table.render(found))


@app.command()
def netem(
    scenario: ScenarioFile,
    changes: Changes = None,
    hosts: Annotated[
        str | None,
        typer.Option("--hosts", metavar="A,B,...", help="IPv4 addresses by rank; absent: $HOST0, ..."),
    ] = None,
    interface: Annotated[
        str, typer.Option("--interface", metavar="NAME", help="the hosts' network device")
    ] = "eth0",
    host: Annotated[
        int | None, typer.Option("--host", metavar="RANK", min=0, help="only the commands of this host")
    ] = None,
    undo: Annotated[bool, typer.Option("--undo", help="only the commands that undo it")] = False,
) -> None:
    """Print the tc commands that make a cluster in one place play the scenario's network."""
    from realrun import netem as commands
    from sim.network.build import build_network
    from sim.scenario import load

    cluster = load(scenario, changes or []).cluster
    n = cluster.workers
    named = commands.checked_addresses(hosts, n) if hosts else [f"$HOST{rank}" for rank in range(n)]
    found = commands.scripts(build_network(cluster.network, n), named, commands.checked_interface(interface))
    if host is not None and host >= n:
        raise InputError(f"--host {host}: ranks go from 0 to {n - 1}")
    chosen = found if host is None else found[host : host + 1]
    sys.stdout.write(commands.render(chosen, named, undo))


@app.command()
def replay(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="a result folder with all events")],
) -> None:
    """Run recorded runs again in one process, and compare what comes out."""
    import torch

    from sim.again import replay_folder

    torch.set_num_threads(1)
    agree = True
    for found in replay_folder(folder):
        agree &= found.agrees
        verdict = "the same final parameters, bit for bit"
        if not found.same_bits:
            how_far = "unknown" if found.difference is None else f"{found.difference:.1e}"
            verdict = f"other final parameters; relative difference of the final loss {how_far}"
        sys.stdout.write(f"{found.run.label}, seed {found.run.seed}, {found.run.source}: {verdict}\n")
    if not agree:
        raise typer.Exit(1)


@app.command()
def report(
    folders: Annotated[list[Path], typer.Argument(metavar="DIR...", help="result folders")],
    out: ReportFile = Path("report.html"),
) -> None:
    """Write one self-contained page: who wins, by how much, and why; its tables and figures beside it."""
    import reports

    files = out.with_name(f"{out.stem}-files")
    reports.build(folders, out, files)
    say(f"wrote {out} and {files}: tables and figures for papers")


@app.command()
def schema() -> None:
    """Print the JSON Schema of scenario files, for editors."""
    from sim.scenario import json_schema

    print_json(json_schema())


@app.command("list")
def list_names(as_json: AsJson = False) -> None:
    """List the schemes, topologies and tasks that scenarios can name."""
    from sim.schemes import SCHEMES
    from sim.topology import TOPOLOGIES
    from sim.workloads import TASKS

    names = {"schemes": sorted(SCHEMES), "topologies": sorted(TOPOLOGIES), "tasks": sorted(TASKS)}
    if as_json:
        print_json(names)
        return
    for kind, members in names.items():
        sys.stdout.write(f"{kind}: {' '.join(members)}\n")


def _check_trace(trace: bool, out: Path | None) -> None:
    if trace and out is None:
        raise InputError("--trace writes into the result folder: add --out DIR")


def _hand_over(
    scenario: Scenario,
    runs: list[Run],
    out: Path | None,
    force: bool,
    as_json: bool,
    trace: bool,
    tuning: Sequence[Tuned] = (),
) -> None:
    """Write the results, print them, and fail where a run failed."""
    from rich.console import Console

    from reports import words
    from reports.table import render
    from sim import result_folder
    from sim.scenario import dump
    from sim.summary import summarise

    text = dump(scenario)
    summary = summarise(scenario.name, runs, result_folder.target_of(text), tuning)
    if out is not None and runs:
        result_folder.write_results(out, text, scenario.name, runs, force=force, tuning=tuning, trace=trace)
        say(f"wrote {out}")
    if as_json:
        print_json(summary)
    else:
        Console().print(render(summary))
        for sentence in words.tuning(summary):
            Console().print(sentence, markup=False, highlight=False)
    failed = [run for run in runs if run.status == "partial"]
    for run in failed:
        say(f"{run.label}, seed {run.seed}: {run.message}")
    if failed:
        raise typer.Exit(1)


def main() -> NoReturn:
    """Run the command line: exit status 0 done, 1 the run failed, 2 the input is wrong."""
    try:
        app(standalone_mode=True)
    except InputError as error:
        say(f"paceline: {error}")
        sys.exit(2)
    except PacelineError as error:
        say(f"paceline: {error}")
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    main()
