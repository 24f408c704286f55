"""``paceline recommend``: which scheme to run here."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from paceline.commands.console import (
    AsJson,
    Device,
    Force,
    Jobs,
    Out,
    ScenarioFile,
    SetOption,
    end_failed,
    print_json,
    say,
    terminal,
    watching,
)


def recommend(
    scenario: ScenarioFile,
    hours: Annotated[
        float | None,
        typer.Option("--hours", metavar="H", help="the best score after H hours, not the time to the target"),
    ] = None,
    changes: SetOption = None,
    out: Out = None,
    device: Device = "auto",
    jobs: Jobs = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say what to run: schemes, topologies, periods and codes race on this cluster, equally tuned."""
    from paceline.reports.recommendations.terminal import render_recommendation
    from paceline.sim.experiments import prepare
    from paceline.sim.experiments import simulate as simulator
    from paceline.sim.experiments.jobs import JobProcesses, check_jobs
    from paceline.sim.experiments.recommend import candidates
    from paceline.sim.experiments.recommend import recommend as recommending
    from paceline.sim.experiments.tune import deciding_score
    from paceline.sim.records import folder
    from paceline.sim.scenario.overrides import name_lines
    from paceline.sim.scenario.schema import dump, load

    check_jobs(jobs)
    loaded = load(scenario, changes or [])
    score = deciding_score(loaded)
    if hours is not None:
        loaded = recommending.within(loaded, hours)
    whole, problems = candidates.with_candidates(loaded)
    where = prepare.device_named(device)
    with (
        name_lines(scenario, changes or []),
        simulator.begin(whole, where, out, force=force, say=say, command="recommend") as (resolved, parts),
    ):
        try:
            with watching(resolved) as progress, JobProcesses(jobs) as processes:
                result = recommending.recommend(
                    resolved, score, hours, device=where, progress=progress, parts=parts, warn=say,
                    processes=processes,
                )  # fmt: skip
        except KeyboardInterrupt:
            kept = "" if out is None else f"; what is complete is kept in {out} (the same command goes on)"
            say(f"interrupted{kept}")
            raise typer.Exit(130) from None
        parts.check_not_replaced()
        answer = result.answer | {"left_out": problems}
        if out is not None:
            text = dump(result.scenario)
            folder.write_results(out, text, whole.name, result.runs, True, result.tuning, facts={})
            say(f"wrote {out}: the runs of the last {len(result.scenario.schemes)} candidates")
    if as_json:
        print_json(answer)
    else:
        terminal().print(render_recommendation(answer))
    end_failed(result.runs)
