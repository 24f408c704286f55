"""Commands that predict: simulate, check, throughput, sweep."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.commands.console import (
    AsJson,
    Dask,
    Device,
    EngineName,
    Force,
    Jobs,
    Out,
    ProfileFile,
    ScenarioFile,
    SetOption,
    TraceOption,
    Why,
    check_trace,
    end_failed,
    hand_over,
    load_scenario,
    print_answer,
    say,
    say_middle,
    watching,
)

if TYPE_CHECKING:
    from paceline.sim.records.run import Run
    from paceline.sim.records.summary import SchemeFacts, Tuned
    from paceline.sim.scenario.overrides import Change


def simulate(
    scenario: ScenarioFile,
    changes: SetOption = None,
    out: Out = None,
    device: Device = "auto",
    engine: EngineName = "auto",
    jobs: Jobs = None,
    dask: Dask = None,
    profile: ProfileFile = None,
    force: Force = False,
    trace: TraceOption = False,
    why: Why = False,
    as_json: AsJson = False,
) -> None:
    """Simulate every scheme under a virtual clock. Gradients are real, and every seed has its run."""
    from paceline.sim.experiments import prepare
    from paceline.sim.experiments import simulate as simulator
    from paceline.sim.experiments.jobs import JobProcesses, check_jobs, connect
    from paceline.sim.network import profile as profiles
    from paceline.sim.scenario.overrides import name_lines

    check_trace(trace, out)
    check_jobs(jobs)
    driver = simulator.engine_named(engine)
    loaded = load_scenario(scenario, changes)
    if profile is not None:
        cluster = loaded.cluster.with_profile(profiles.load(profile), str(profile))
        loaded = loaded.model_copy(update={"cluster": cluster})
    where = prepare.device_named(device)
    with (
        connect(dask) as executor,
        name_lines(scenario, changes or []),
        simulator.begin(loaded, where, out, force=force, say=say) as (resolved, parts),
    ):
        tuning: list[Tuned] = []
        runs: list[Run] = []
        recorded = out is not None or as_json  # bounds are shown by a report's page alone
        facts: Mapping[str, SchemeFacts] | None = None if recorded or len(resolved.schemes) > 1 else {}
        try:
            with watching(resolved) as progress, JobProcesses(jobs, executor) as processes:
                here = partial(partial, device=where, progress=progress, processes=processes, engine=driver)
                resolved, tuning = here(simulator.choose_values)(resolved, parts=parts)
                if recorded:
                    from paceline.sim.experiments.costs.bounds import describe_schemes

                    facts = describe_schemes(resolved)
                parts = replace(parts, tuning=tuning, facts=facts)
                for run in here(simulator.simulate)(resolved, parts=parts, warn=say):
                    runs.append(run)
        except KeyboardInterrupt:
            if runs:
                with suppress(typer.Exit):  # of a failed run
                    hand_over(resolved, runs, None, as_json, trace, tuning, facts, why=why)
            raise
        parts.check_not_replaced()
        hand_over(resolved, runs, out, as_json, trace, tuning, facts, why=why)


def check(
    scenario: ScenarioFile,
    changes: SetOption = None,
    device: Device = "auto",
    forecast: Annotated[
        bool, typer.Option("--forecast", help="try schemes for longer: how many steps may they take?")
    ] = False,
    why: Why = False,
    as_json: AsJson = False,
) -> None:
    """Preview a scenario and the cost of a step. Shows the cluster, its routes and the time to simulate."""
    from paceline.reports import check_tables
    from paceline.sim.experiments import prepare
    from paceline.sim.experiments.costs import check as checking
    from paceline.sim.scenario.overrides import name_lines

    loaded = load_scenario(scenario, changes)
    with name_lines(scenario, changes or []):
        findings = checking.check(loaded, prepare.device_named(device), begin_s=0.0, forecast=forecast)
    print_answer(findings, as_json, partial(check_tables.render_check, why=why))


def throughput(
    scenario: ScenarioFile,
    changes: SetOption = None,
    tokens: Annotated[
        float | None, typer.Option("--tokens", metavar="NUMBER", help="tokens to train on, such as 140e9")
    ] = None,
    loss: Annotated[
        float | None,
        typer.Option("--loss", metavar="NATS", help="instead: as many as a published scaling law has for it"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say how fast a language model trains. And which bandwidth that needs."""
    from paceline.reports import tables
    from paceline.sim.experiments.costs import tokens as counting
    from paceline.sim.scenario.overrides import name_lines

    loaded = load_scenario(scenario, changes)
    with name_lines(scenario, changes or []):
        findings = counting.throughput(loaded, tokens, loss)
    print_answer(findings, as_json, tables.render_throughput)


def sweep(
    scenario: ScenarioFile,
    grid: Annotated[
        list[str] | None,
        typer.Option(
            "--grid",
            metavar="dotted.key=value,value",
            help="the values of one key; repeatable: all combinations; absent: the scenario's ranges",
        ),
    ] = None,
    together: Annotated[
        bool, typer.Option("--zip", help="the first values of all keys, then the second ones, and so on")
    ] = False,
    sample: Annotated[
        int | None,
        typer.Option("--sample", metavar="N", help="draw N settings; values may be ranges: 1 ms to 200 ms"),
    ] = None,
    changes: SetOption = None,
    out: Out = None,
    device: Device = "auto",
    jobs: Jobs = None,
    dask: Dask = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Simulate under many settings. Computations that are alike are shared."""
    from paceline.reports import sweep_page
    from paceline.reports.sweep_tables import render_sweep
    from paceline.sim.config.tracking import track
    from paceline.sim.experiments import prepare
    from paceline.sim.experiments.jobs import JobProcesses, check_jobs, connect
    from paceline.sim.experiments.sweep import grid as grids
    from paceline.sim.experiments.sweep import summaries as many
    from paceline.sim.experiments.sweep import sweep_folder
    from paceline.sim.experiments.sweep.sweep_settings import (
        changes_of,
        plan_settings,
        read_grid,
        with_ranges,
    )
    from paceline.sim.records.rows import run_of
    from paceline.sim.records.sweeps.content import SWEEP_FILE, describe_sweep
    from paceline.sim.scenario.ranges import ranges_of
    from paceline.sim.scenario.ready import find_scenario
    from paceline.sim.scenario.schema import load_each

    check_jobs(jobs)
    values, sample = with_ranges(read_grid(grid or []), ranges_of(scenario, changes or []), sample)
    if sample is None:
        say_middle(scenario, changes or [])
    settings, own, drawn = plan_settings(
        values, together, sample, lambda: next(load_each(scenario, [changes or []])).seed
    )
    where = prepare.device_named(device)
    changed: list[Sequence[Change]] = [
        [*own, *(changes or []), *changes_of(each, "--grid")] for each in settings
    ]
    scenarios = load_each(scenario, track("reading setting", changed))
    first = next(scenarios)
    names = sweep_folder.folder_names(len(settings))
    with ExitStack() as stack:
        executor = stack.enter_context(connect(dask))
        progress = stack.enter_context(watching(first))
        processes = stack.enter_context(JobProcesses(jobs, executor))
        if out is None and many.are_many(len(settings), first, where, processes):
            file = find_scenario(scenario)
            summaries = list(many.summarise_in_batches(file, changed, where, processes, say))
            answer = describe_sweep(names, settings, summaries, drawn)
            runs = [[run_of(row, (), ()) for row in each["runs"]] for each in summaries]
        else:
            begun = sweep_folder.begin([first, *scenarios], where, out, force=force, say=say)
            resolved, parts = stack.enter_context(begun)
            resolved, tuning = grids.choose_values(
                resolved, device=where, progress=progress, parts=parts, processes=processes
            )
            parts = sweep_folder.with_facts(parts, resolved, tuning)
            runs = grids.simulate(
                resolved, device=where, progress=progress, warn=say, parts=parts, processes=processes
            )
            for each in parts:
                each.check_not_replaced()
            draw = sweep_page.write_winners
            answer = sweep_folder.finish(out, settings, resolved, runs, tuning, draw, drawn)
    if out is not None:
        also = f" and {sweep_folder.WINNERS_FILE}" if (out / sweep_folder.WINNERS_FILE).exists() else ""
        say(f"wrote {out}: a result folder for each setting, {SWEEP_FILE}{also}")
    print_answer(answer, as_json, render_sweep)
    end_failed([run for own in runs for run in own])
