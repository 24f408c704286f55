"""Commands that predict: simulate, check, throughput."""

from __future__ import annotations

from contextlib import suppress
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
    hand_over,
    load_scenario,
    print_answer,
    say,
    watching,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from paceline.sim.records.run import Run
    from paceline.sim.records.summary import SchemeFacts, Tuned


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
    from functools import partial

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
