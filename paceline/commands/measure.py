"""Commands that measure: realrun, probe, calibrate, validate, lab check, netem."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.commands.console import (
    AsJson,
    Force,
    OnLab,
    Out,
    ProfileFile,
    ScenarioFile,
    SetOption,
    TraceOption,
    check_trace,
    end_interrupted,
    hand_over,
    print_json,
    say,
    terminal,
    watching,
)
from paceline.sim.errors import InputError, shorten

if TYPE_CHECKING:
    from paceline.sim.records.run import Run


def realrun(
    scenario: ScenarioFile,
    changes: SetOption = None,
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
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="how long any wait may last")
    ] = 60.0,
    out: Out = None,
    force: Force = False,
    trace: TraceOption = False,
    as_json: AsJson = False,
) -> None:
    """Measure: the same scenario and the same scheme code on real processes."""
    from contextlib import ExitStack

    from paceline.realrun.group.store import check_timeout
    from paceline.realrun.lab import Lab
    from paceline.realrun.launch.cells import keep_runs
    from paceline.realrun.launch.length import with_lengths
    from paceline.realrun.launch.processes import Processes, measure_runs
    from paceline.realrun.launch.slurm import script
    from paceline.sim.network.build import build_network
    from paceline.sim.scenario.schema import load, over_transport

    check_trace(trace, out)
    check_timeout("--timeout", timeout)
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
            "network emulated), or start it on one: torchrun --nproc-per-node N -m paceline.realrun "
            "SCENARIO, or --slurm for a script"
        )
    loaded = load(scenario, changes or [])
    runs: list[Run] = []
    interrupted = False
    command = "realrun --lab" if lab else "realrun --processes"
    with keep_runs(loaded, command, out, force, say) as parts:
        try:
            with ExitStack() as stack:
                progress = stack.enter_context(watching(loaded))
                requests = with_lengths(loaded, progress)
                network = build_network(loaded.cluster.network, loaded.cluster.workers)
                hosts = Lab(network, hosts=loaded.lab.hosts, queue=loaded.lab.queue) if lab else None
                pool = stack.enter_context(Processes(lab=hosts, timeout_s=timeout))
                progress.begin(parts.num_runs)
                for result in measure_runs(loaded, requests, pool, progress=progress, parts=parts):
                    runs.append(result.run)
                    if len(runs) > parts.num_runs:
                        progress.complete()
        except KeyboardInterrupt:
            interrupted = True
        carried = over_transport(loaded, loaded.cluster.backend)
        hand_over(carried, runs, None if interrupted else out, as_json, trace)
        if interrupted:
            end_interrupted(loaded, runs, out)


def probe(
    scenario: ScenarioFile,
    out: Annotated[Path, typer.Option("--out", metavar="MEASURED.json", help="the file to write")],
    changes: SetOption = None,
    lab: OnLab = False,
) -> None:
    """Measure transfers, collectives and gradients one by one on the scenario's network."""
    from paceline.realrun.calibration import measure as probing
    from paceline.realrun.calibration import validate as validation
    from paceline.sim.config import files
    from paceline.sim.scenario.schema import load

    loaded = load(scenario, changes or [])
    if loaded.cluster.workers < 2:
        raise InputError("a probe needs at least two workers")
    hosts = validation.hosts_of(loaded, lab)
    with validation.processes_for(loaded, lab, probing=False) as pool:
        say(f"probing a {hosts}")
        measurements = probing.measure(pool, hosts, loaded)
    files.write_json(measurements, out)
    say(f"wrote {out}")


def calibrate(
    measured: Annotated[
        list[Path],
        typer.Argument(metavar="MEASURED.json", help="files of 'paceline probe' and of paceline.attach"),
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
    """Fit correction factors to measurements, and draw measured against fitted durations."""
    from paceline.realrun.calibration import fit as calibration
    from paceline.realrun.calibration import fit as reading
    from paceline.sim.config.files import write_atomically
    from paceline.sim.network import profile as profiles
    from paceline.sim.scenario.schema import load

    known = None if nominal is None else load(nominal)
    fit = calibration.calibrate([reading.load(path, known) for path in measured])
    picture = out.with_suffix(".png")
    calibration.plot(fit, picture)
    write_atomically(out, profiles.dump(fit.profile))
    say(f"wrote {out} and {picture}: durations fit to {fit.profile.residual_pct:.1f} % (median)")


def validate(
    scenario: ScenarioFile,
    changes: SetOption = None,
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
    """Predict and measure; say how far apart they are and whether the decision was right."""
    from contextlib import nullcontext

    from paceline import reports
    from paceline.realrun.calibration import fit as calibration
    from paceline.realrun.calibration import measure as probing
    from paceline.realrun.calibration import validate as validation
    from paceline.realrun.driver import clocks
    from paceline.reports import tables
    from paceline.sim.config.files import claim_folder, write_atomically
    from paceline.sim.experiments.bounds import describe_schemes
    from paceline.sim.records import folder as result_folder
    from paceline.sim.scenario.schema import dump, load

    loaded = load(scenario, changes or [])
    with nullcontext() if out is None else claim_folder(out):
        if out is not None:
            result_folder.check_free(out, force)
        hosts = validation.hosts_of(loaded, lab)
        factors = validation.profile_for(loaded, profile, hosts)
        with validation.processes_for(loaded, lab, probing=factors is None) as pool:
            probes = None
            if factors is None:
                say("no --profile: probing this machine first")
                probes = probing.measure(pool, hosts)
                factors = calibration.calibrate([probes]).profile
            outcome = validation.validate(loaded, pool, factors, steps, say)
        if out is not None:
            runs = [*outcome.predicted, *outcome.measured]
            facts = describe_schemes(outcome.scenario)
            text = dump(outcome.scenario)
            result_folder.write_results(out, text, outcome.scenario.name, runs, force=force, facts=facts)
            text = json.dumps(outcome.comparison, indent=1, allow_nan=False)
            write_atomically(out / result_folder.VALIDATION_FILE, text + "\n")
            validation.write_factors(out, factors, probes)
            reports.build([out], out / "report.html")
            say(f"wrote {out}")
    if as_json:
        print_json(outcome.comparison)
    else:
        terminal().print(tables.render_comparison(outcome.comparison))
    if sentence := clocks.describe_clocks(outcome.measured):
        say(sentence)
    failed = [run for run in (*outcome.predicted, *outcome.measured) if run.status == "partial"]
    for run in failed:
        say(f"{shorten(run.label)}, seed {run.seed}, {run.source}: {run.message}")
    if failed or any(each["same"] is False for each in outcome.comparison["trajectories"]):
        raise typer.Exit(1)


def lab_check(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="SCENARIO", help="check this scenario's network, not standard ones"),
    ] = None,
) -> None:
    """Measure what this machine's lab can emulate."""
    from paceline.realrun.lab.check import check, render
    from paceline.sim.network.build import build_network
    from paceline.sim.scenario.schema import load

    network = None
    if scenario is not None:
        loaded = load(scenario)
        network = build_network(loaded.cluster.network, loaded.cluster.workers)
    terminal().print(render(check(network)))


def netem(
    scenario: ScenarioFile,
    changes: SetOption = None,
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
    from paceline.realrun.launch import netem as commands
    from paceline.sim.network.build import build_network
    from paceline.sim.scenario.schema import load

    cluster = load(scenario, changes or []).cluster
    n = cluster.workers
    named = commands.validate_addresses(hosts, n) if hosts else [f"$HOST{rank}" for rank in range(n)]
    scripts = commands.scripts(
        build_network(cluster.network, n), named, commands.validate_interface(interface)
    )
    if host is not None and host >= n:
        raise InputError(f"--host {host}: ranks go from 0 to {n - 1}")
    chosen = scripts if host is None else scripts[host : host + 1]
    sys.stdout.write(commands.render(chosen, named, undo))
