"""Commands that measure: realrun, probe, calibrate, validate, lab check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

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
    clock_time,
    hand_over,
    load_scenario,
    plain_app,
    print_answer,
    print_result,
    say,
    terminal,
    watching,
)
from paceline.sim.errors import InputError, shorten

if TYPE_CHECKING:
    from paceline.realrun.calibration.validate import Validation
    from paceline.realrun.launch.launched_job import JobRanks
    from paceline.realrun.launch.processes import Processes
    from paceline.sim.network.profile import HostKind
    from paceline.sim.records.run import Run
    from paceline.sim.scenario.schema import Scenario

lab_app = plain_app("The emulated network on this machine.")

Slurm = Annotated[bool, typer.Option("--slurm", help="run nothing; print a script that does, for sbatch")]
PerNode = Annotated[
    int, typer.Option("--per-node", metavar="N", help="--slurm: processes (with NCCL: GPUs) of a node")
]


Timeout = Annotated[float, typer.Option("--timeout", metavar="SECONDS", help="how long any wait may last")]
MEASURED_MARKS: Final = (b'"plan"', b'"durations"')
"""Contents of all files of ``probe``."""
MeasuredFile = Annotated[Path, typer.Option("--out", metavar="MEASURED.json", help="the file to write")]
StepsOption = Annotated[
    int | None,
    typer.Option("--steps", metavar="N", help="compare N steps instead of running to the target"),
]
Tolerance = Annotated[
    float,
    typer.Option("--tolerance", metavar="PERCENT", help="how far off a scheme's times may be to pass"),
]


def realrun(
    scenario: ScenarioFile,
    changes: SetOption = None,
    processes: Annotated[
        bool, typer.Option("--processes", help="start one gloo process per worker on this machine")
    ] = False,
    lab: Annotated[
        bool, typer.Option("--lab", help="the same, in the scenario's network, emulated on this machine")
    ] = False,
    slurm: Slurm = False,
    per_node: PerNode = 1,
    timeout: Timeout = 60.0,
    out: Out = None,
    force: Force = False,
    trace: TraceOption = False,
    as_json: AsJson = False,
) -> None:
    """Run the same schemes on real processes. Scenario and code are those of a simulation."""
    from paceline.realrun.calibration.validate import lab_of
    from paceline.realrun.group.store import check_timeout
    from paceline.realrun.launch.batch_script import script
    from paceline.realrun.launch.cells import run_requests
    from paceline.realrun.launch.processes import Processes, check_faults, check_processes
    from paceline.sim.experiments.prepare import with_units
    from paceline.sim.network.build import build_network

    check_trace(trace, out)
    check_timeout("--timeout", timeout)
    if processes + lab + slurm > 1:
        raise InputError("--processes, --lab and --slurm are three clusters: choose one of them")
    if slurm:
        loaded = load_scenario(scenario, changes)
        run_requests(loaded)
        values = {"--timeout": f"{timeout:g}", "--out": out}
        options = job_options(changes, values, {"--force": force, "--trace": trace, "--json": as_json})
        print_result(script(loaded, scenario, per_node, options))
        return
    if not (processes or lab):
        raise InputError(
            "realrun needs a cluster: add --processes (this machine) or --lab (this machine, the scenario's "
            "network emulated), or start it on one: torchrun --nproc-per-node N -m paceline.realrun "
            "SCENARIO, or --slurm for a script"
        )
    loaded = with_units(load_scenario(scenario, changes))
    check_processes(loaded.cluster.workers)
    check_faults(loaded, lab)
    network = build_network(loaded.cluster.network, loaded.cluster.workers)
    pool = Processes(lab=lab_of(loaded, network) if lab else None, timeout_s=timeout)
    measure("realrun --lab" if lab else "realrun --processes", loaded, pool, out, force, trace, as_json)


def measure(
    command: str,
    scenario: Scenario,
    pool: Processes | JobRanks,
    out: Path | None,
    force: bool,
    trace: bool,
    as_json: bool,
) -> None:
    """Make a scenario's real runs, as ``command``, on processes of this machine or the ranks of a job."""
    from paceline.realrun.driver.clocks import describe_clocks
    from paceline.realrun.launch.cells import keep_runs, run_requests, with_lengths
    from paceline.realrun.launch.launched_job import JobRanks
    from paceline.realrun.launch.processes import measure_runs
    from paceline.sim.scenario.schema import over_transport

    runs: list[Run] = []
    in_job = isinstance(pool, JobRanks)
    broken = False
    carried = over_transport(scenario, scenario.cluster.backend)
    with keep_runs(scenario, command, out, force, say) as parts:
        try:
            with watching(scenario) as progress:
                requests = run_requests(scenario) if in_job else with_lengths(scenario, progress)
                progress.begin("run", len(requests), parts.num_kept("run"))
                with pool:
                    for result in measure_runs(scenario, requests, pool, progress=progress, parts=parts):
                        runs.append(result.run)
                        if len(runs) > parts.num_kept("run"):
                            progress.complete(result.run.label)
                        broken = in_job and result.run.status == "partial"
                        if broken:  # a job's ranks are not started anew
                            break
        except KeyboardInterrupt:
            if runs:
                with suppress(typer.Exit):  # of a failed run
                    hand_over(carried, runs, None, as_json, trace)
            raise
        if not broken:
            parts.check_not_replaced()
        if sentence := describe_clocks(runs):
            say(sentence)
        hand_over(carried, runs, None if broken else out, as_json, trace)


def probe(scenario: ScenarioFile, out: MeasuredFile, changes: SetOption = None, lab: OnLab = False) -> None:
    """Time transfers, collectives and gradients. One by one, on the scenario's network."""
    from paceline.realrun.calibration import validate as validation
    from paceline.realrun.calibration.probes import hosts_of
    from paceline.sim.config.files import check_out_file

    check_out_file(out, MEASURED_MARKS, sources=[scenario])
    loaded = load_scenario(scenario, changes)
    hosts = hosts_of(loaded, lab)
    measure_hosts(loaded, hosts, validation.processes_for(loaded, lab, probing=False), out)


def measure_hosts(scenario: Scenario, hosts: HostKind, pool: Processes | JobRanks, out: Path) -> None:
    """Probe the network of a scenario on ``hosts``, and write the measurements to ``out``."""
    from paceline.realrun.calibration.cluster_probes import check_probed, plan_of
    from paceline.realrun.calibration.cluster_probes import measure as probe_network
    from paceline.sim.config.files import write_json

    check_probed(scenario)
    with pool:
        say(f"probing a {hosts}, for {clock_time(plan_of(scenario).length_s)}")
        measurements = probe_network(pool, hosts, scenario)
    write_json(measurements, out)
    rates = ", ".join(f"{name}: {rate / 1e6:.3g} MB/s" for name, rate in measurements.encoding.items())
    say(f"wrote {out}; a core of this machine encodes at cluster.compute.encoding: {{{rates}}}")


def calibrate(
    measured: Annotated[
        list[Path],
        typer.Argument(
            metavar="MEASURED",
            help="files of 'paceline probe' and of paceline.attach, folders of real runs",
        ),
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
    """Fit correction factors to measurements. Draws measured against fitted durations."""
    from paceline.realrun.calibration import fit as calibration
    from paceline.sim.config.files import check_out_file, write_atomically
    from paceline.sim.network import profile as profiles
    from paceline.sim.scenario.schema import load

    check_out_file(out, [b"factors:", b"residual_pct:"], sources=[*measured, *filter(None, [nominal])])
    picture = out.with_suffix(".png")
    if picture == out:
        raise InputError(f"--out {out}: is where the picture goes; call it {out.with_suffix('.yaml')}")
    check_out_file(picture, [calibration.PICTURE_MARK.encode()])
    known = None if nominal is None else load(nominal)
    several = [each for path in dict.fromkeys(measured) for each in calibration.load_all(path, known, say)]
    fit = calibration.calibrate(several)
    calibration.plot(fit, picture)
    write_atomically(out, profiles.dump(fit.profile))
    for sentence in fit.undetermined:
        say(sentence)
    fits = f"durations on a {fit.profile.hosts} fit to {fit.profile.residual_pct:.1f} % (median)"
    say(f"wrote {out} and {picture}: {fits}")


def validate(
    scenario: ScenarioFile,
    changes: SetOption = None,
    lab: OnLab = False,
    profile: ProfileFile = None,
    steps: StepsOption = None,
    tolerance: Tolerance = 5.0,
    slurm: Slurm = False,
    per_node: PerNode = 1,
    out: Out = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Predict, measure, and say how far apart they are. And whether the decision was right.

    Exit status 1 where the verdict is that predictions are off by more than --tolerance, or where not all
    runs were made; 0 where they are within it, or where real runs differ too much to tell.
    """
    from paceline.realrun.calibration import validate as validation
    from paceline.realrun.calibration.probes import hosts_of
    from paceline.realrun.launch.batch_script import script

    loaded = load_scenario(scenario, changes)
    validation.check_options(loaded, steps, tolerance)
    if lab and slurm:
        raise InputError("--lab and --slurm are two clusters: choose one of them")
    if slurm:
        values = {"--profile": profile, "--steps": steps, "--tolerance": f"{tolerance:g}", "--out": out}
        options = job_options(changes, values, {"--force": force, "--json": as_json})
        print_result(script(loaded, scenario, per_node, options, "validate"))
        return

    start = partial(validation.processes_for, loaded, lab)
    compare(loaded, hosts_of(loaded, lab), start, profile, steps, tolerance, out, force, as_json)


def compare(
    scenario: Scenario,
    hosts: HostKind,
    start: Callable[[bool], Processes | JobRanks],
    profile: Path | None,
    steps: int | None,
    tolerance_pct: float,
    out: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Predict, measure and compare; ``start`` opens the hosts and learns whether they are probed first."""
    from contextlib import nullcontext

    from paceline.realrun.calibration import cluster_probes as probes_of
    from paceline.realrun.calibration import validate as validation
    from paceline.realrun.calibration.fit import calibrate as fit
    from paceline.realrun.launch.launched_job import JobRanks
    from paceline.realrun.launch.processes import Processes
    from paceline.reports import page
    from paceline.sim.config.files import claim_folder
    from paceline.sim.records import folder as result_folder

    backend, network = scenario.cluster.backend, scenario.cluster.network
    validation.check_options(scenario, steps, tolerance_pct)
    with nullcontext() if out is None else claim_folder(out):
        if out is not None:
            if result_folder.lacks_page(out):
                page.build([out], out / result_folder.REPORT_FILE)
                say(f"the page of {out} was missing, and is there now")
            result_folder.check_free(out, force)
        factors, probes = validation.profile_for(scenario, profile, hosts), None
        if backend != "gloo":
            if factors is not None:
                raise InputError(
                    f"the profile is of gloo, and cluster.backend is {backend}: leave one of them out"
                )
            say(f"nothing is fitted over {backend}: its packaged constants predict")
        probing = factors is None and backend == "gloo"
        with start(probing) as pool:
            if hosts.kind == "cluster" and isinstance(pool, Processes):
                say("measuring on this machine's loopback, predicting the scenario's links; --lab has those")
            if probing:
                in_job = isinstance(pool, JobRanks)
                own = in_job or (hosts.kind == "cluster" and scenario.cluster.workers > 1)
                probed = scenario if own else probes_of.standard(network.tcp, network.queue)
                probes_of.check_probed(probed)
                say(
                    f"no --profile: probing {'these hosts' if in_job else 'this machine'} first, for "
                    f"{clock_time(probes_of.plan_of(probed).length_s)}"
                )
                probes = probes_of.measure(pool, hosts, probed)
                factors = fit([probes]).profile
            if factors is not None:
                say(f"measuring a {hosts}")
            outcome = validation.validate(scenario, pool, factors, steps, say, tolerance_pct)
        if out is not None:
            validation.write(outcome, out, force, factors, probes)
            page.build([out], out / result_folder.REPORT_FILE)
            say(f"wrote {out}")
    _print_outcome(outcome, as_json)
    if status := validation.exit_status(outcome):
        ended = typer.Exit(status)
        ended.add_note(outcome.comparison["verdict"]["text"])
        raise ended


def _print_outcome(outcome: Validation, as_json: bool) -> None:
    from paceline.realrun.driver.clocks import describe_clocks
    from paceline.reports import tables

    print_answer(outcome.comparison, as_json, tables.render_comparison)
    if as_json:
        say(outcome.comparison["verdict"]["text"])
    for sentence in filter(None, (describe_clocks(outcome.measured), outcome.comparison["message"])):
        say(sentence)
    for run in outcome.predicted:
        if run.status == "partial":
            say(f"{shorten(run.label)}, seed {run.seed}, {run.source}: {run.message}")


def job_options(
    changes: list[str] | None, values: Mapping[str, object], flags: Mapping[str, bool]
) -> list[str]:
    """Options for ``python -m paceline.realrun``; a value of None is left out."""
    return [
        *(f"--set={change}" for change in changes or []),
        *(f"{name}={value}" for name, value in values.items() if value is not None),
        *(flag for flag, wanted in flags.items() if wanted),
    ]


@lab_app.command("check")
def lab_check(
    scenario: Annotated[
        Path | None,
        typer.Argument(metavar="SCENARIO", help="check this scenario's network, not standard ones"),
    ] = None,
) -> None:
    """Measure what this machine's lab can emulate."""
    from paceline.realrun.lab.self_test import check, render
    from paceline.sim.network.build import build_network

    network = None
    if scenario is not None:
        loaded = load_scenario(scenario)
        network = build_network(loaded.cluster.network, loaded.cluster.workers)
    answer = render(check(network))  # the terminal hides its progress
    terminal().print(answer)
