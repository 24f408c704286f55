"""``paceline sweep``: the winners under many settings at once."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from paceline.commands.console import (
    AsJson,
    Dask,
    Device,
    Force,
    Jobs,
    Out,
    ScenarioFile,
    SetOption,
    end_failed,
    print_answer,
    say,
    say_middle,
    watching,
)

if TYPE_CHECKING:
    from paceline.sim.scenario.overrides import Change


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
