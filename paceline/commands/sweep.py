"""``paceline sweep``: who is first, under many settings at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from paceline.commands.console import (
    AsJson,
    Device,
    Force,
    Jobs,
    Out,
    ScenarioFile,
    SetOption,
    print_json,
    say,
    terminal,
    watching,
)

if TYPE_CHECKING:
    from paceline.sim.records.run import Run
    from paceline.sim.records.summary import Tuned


def sweep(
    scenario: ScenarioFile,
    grid: Annotated[
        list[str],
        typer.Option(
            "--grid",
            metavar="dotted.key=value,value",
            help="the values of one key; repeatable: all combinations",
        ),
    ],
    changes: SetOption = None,
    out: Out = None,
    device: Device = "auto",
    jobs: Jobs = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Predict under many settings: what does not depend on the network is computed once."""
    from paceline.reports import tables, winner_map
    from paceline.sim.experiments import prepare
    from paceline.sim.experiments.jobs import check_jobs
    from paceline.sim.experiments.sweep import folder
    from paceline.sim.experiments.sweep import grid as grids
    from paceline.sim.scenario.schema import load

    check_jobs(jobs)
    settings = grids.settings_of(grids.read_grid(grid))
    loaded = [load(scenario, [*(changes or []), *grids.changes_of(each)]) for each in settings]
    where = prepare.device_named(device)
    runs: list[list[Run]] = []
    tuning: list[list[Tuned]] = []
    with folder.begin(loaded, where, out, force=force, say=say) as (resolved, parts):
        try:
            with watching(resolved[0], len(resolved)) as progress:
                resolved, tuning = grids.choose_values(
                    resolved, device=where, progress=progress, parts=parts, jobs=jobs
                )
                progress.begin(sum(each.num_runs for each in parts))
                runs = grids.simulate(
                    resolved,
                    device=where,
                    progress=progress,
                    complete=progress.complete,
                    warn=say,
                    parts=parts,
                    jobs=jobs,
                )
        except KeyboardInterrupt:
            kept = "" if out is None else f"; what is complete is kept in {out} (the same command goes on)"
            say(f"interrupted{kept}")
            raise typer.Exit(130) from None
        summaries = [folder.summarise_setting(*each) for each in zip(resolved, runs, tuning, strict=True)]
        answer = folder.describe(settings, summaries)
        if out is not None:
            folder.write(out, answer, resolved, runs, tuning)
            pictured = winner_map.write_winner_map(answer, out / folder.WINNERS_FILE)
            also = f" and {folder.WINNERS_FILE}" if pictured else ""
            say(f"wrote {out}: a result folder for each setting, {folder.SWEEP_FILE}{also}")
    if as_json:
        print_json(answer)
    else:
        terminal().print(tables.render_sweep(answer))
    failed = [run for own in runs for run in own if run.status == "partial"]
    for run in failed:
        say(f"{run.label}, seed {run.seed}: {run.message}")
    if failed:
        raise typer.Exit(1)
