"""``paceline recommend``: which scheme to run here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

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

if TYPE_CHECKING:
    from rich.console import RenderableType


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
    from paceline.reports.recommendations.terminal import render_periods, render_recommendation
    from paceline.sim.experiments import prepare
    from paceline.sim.experiments import simulate as simulator
    from paceline.sim.experiments.jobs import JobProcesses, check_jobs
    from paceline.sim.experiments.recommend import candidates
    from paceline.sim.experiments.recommend import recommend as recommending
    from paceline.sim.experiments.recommend.period import SHARE, smallest_periods
    from paceline.sim.experiments.sweep import grid
    from paceline.sim.experiments.tune import deciding_score
    from paceline.sim.records import folder
    from paceline.sim.scenario.overrides import name_lines
    from paceline.sim.scenario.schema import dump, load

    check_jobs(jobs)
    loaded = load(scenario, changes or [])
    score, where = deciding_score(loaded), prepare.device_named(device)
    goal = recommending.with_goal(loaded, hours)
    if goal.workload.timing_only and goal.workload.curves is None:
        with name_lines(scenario, changes or []):
            rows = smallest_periods(prepare.resolve(goal, where))
        _show(as_json, {"scenario": goal.name, "share": SHARE, "schemes": rows}, render_periods)
        return
    whole, problems = candidates.with_candidates(goal)
    with (
        name_lines(scenario, changes or []),
        simulator.begin(whole, where, out, force=force, say=say, command="recommend") as (resolved, parts),
    ):
        try:
            with watching(resolved) as progress, JobProcesses(jobs) as processes:
                raced = recommending.run_race(
                    resolved, score, hours, device=where, progress=progress, parts=parts, warn=say,
                    processes=processes,
                )  # fmt: skip
                again = partial(grid.simulate, device=where, progress=progress, processes=processes)
                answer = recommending.recommend(raced, again) | {"left_out": problems}
        except KeyboardInterrupt:
            kept = "" if out is None else f"; what is complete is kept in {out} (the same command goes on)"
            say(f"interrupted{kept}")
            raise typer.Exit(130) from None
        parts.check_not_replaced()
        if out is not None:
            text = dump(raced.scenario)
            folder.write_results(out, text, whole.name, raced.runs, True, raced.tuning, facts={})
            say(f"wrote {out}: the runs of the last {len(raced.scenario.schemes)} candidates")
    _show(as_json, answer, render_recommendation)
    end_failed(raced.runs)


def _show(
    as_json: bool, answer: Mapping[str, Any], render: Callable[[Mapping[str, Any]], RenderableType]
) -> None:
    if as_json:
        print_json(answer)
    else:
        terminal().print(render(answer))
