"""``paceline recommend``: which scheme to run here."""

from __future__ import annotations

import math
from functools import partial
from typing import Annotated

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
    hand_over,
    load_scenario,
    print_json,
    print_result,
    say,
    watching,
)


def recommend(
    scenario: ScenarioFile,
    hours: Annotated[
        float | None,
        typer.Option(
            "--hours",
            metavar="H",
            help="for the best score within H hours; without training, only what ends within them",
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option("--budget", metavar="MONEY", help="only what costs at most MONEY, such as '20000 $'"),
    ] = None,
    tokens: Annotated[
        float | None,
        typer.Option("--tokens", metavar="NUMBER", help="without training: tokens to plan for"),
    ] = None,
    changes: SetOption = None,
    out: Out = None,
    device: Device = "auto",
    jobs: Jobs = None,
    dask: Dask = None,
    force: Force = False,
    as_json: AsJson = False,
) -> None:
    """Say which scheme to run. Schemes, topologies, periods and codes race here, equally tuned."""
    from paceline.extras.recommend import candidates, plan
    from paceline.extras.recommend import recommend as recommending
    from paceline.reports.assumptions import assumed
    from paceline.sim.experiments import prepare
    from paceline.sim.experiments import simulate as simulator
    from paceline.sim.experiments.jobs import JobProcesses, check_jobs, connect
    from paceline.sim.records.scenario_facts import read_facts
    from paceline.sim.scenario.overrides import name_lines
    from paceline.sim.scenario.schema import dump

    check_jobs(jobs)
    loaded, where = load_scenario(scenario, changes), prepare.device_named(device)
    recommending.check_goal(loaded, hours, tokens, hours is not None or budget is not None)
    amount = recommending.amount_of(loaded, budget)
    with connect(dask) as executor, name_lines(scenario, changes or []):
        if loaded.workload.timing_only and loaded.workload.curves is None:
            if tokens is not None:
                answer = plan.plan(loaded, tokens, hours or math.inf, amount)
                lines = [*answer["text"], plan.NOTE, *assumed(answer["transport"])]
            else:
                timed = prepare.resolve(loaded, where)
                rows, known = plan.smallest_periods(timed), read_facts(dump(timed)).transport
                answer = {
                    "scenario": loaded.name, "transport": known, "share": plan.SHARE, "schemes": rows
                }  # fmt: skip
                steps_s = {row["label"]: row.get("step_s") for row in rows}
                lines = [*plan.describe(rows), plan.NOTE, *assumed(known, steps_s=steps_s)]
            if as_json:
                print_json(answer)
            else:
                print_result("".join(f"{line}\n" for line in lines))
            return
        whole = candidates.with_candidates(loaded)
        command = f"recommend{f' --hours {hours}' if hours else ''}{f' --budget {budget}' if budget else ''}"
        with simulator.begin(whole, where, out, force=force, say=say, command=command) as begun:
            resolved, parts = begun
            with watching(resolved) as progress, JobProcesses(jobs, executor) as processes:
                here = partial(partial, device=where, progress=progress, processes=processes)
                last, tuning, race = here(recommending.run_race)(resolved, hours, amount, parts=parts)
                runs = list(here(simulator.simulate)(last, parts=parts, warn=say))
                excluded, own = candidates.impossible(loaded), len(loaded.schemes)
                answer = recommending.advise(last, runs, race, amount, excluded, own, hours or math.inf)
            parts.check_not_replaced()
            hand_over(last, runs, out, as_json, False, tuning, recommendation=answer)
