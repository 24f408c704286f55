"""``paceline explore``: a page on which the cluster of a study can be changed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.commands.console import Device, ScenarioFile, SetOption, load_scenario, say


def explore(
    scenario: ScenarioFile,
    changes: SetOption = None,
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="the page")] = Path("explore.html"),
    device: Device = "auto",
) -> None:
    """Write a page with sliders. Who is first on other links, machines or prices?

    SCENARIO may be a result folder. Each scheme is trained once; the page computes its clock anew.
    """
    from paceline.extras.explore.export import build, export
    from paceline.reports.page import check_page
    from paceline.sim.experiments import prepare
    from paceline.sim.experiments.jobs import JobProcesses
    from paceline.sim.experiments.simulate import choose_values
    from paceline.sim.records.folder import SCENARIO_FILE, read_results

    check_page(out)
    if scenario.is_dir():
        read_results(scenario)  # a damaged one is refused
        scenario /= SCENARIO_FILE
    where = prepare.device_named(device)
    with JobProcesses(None) as processes:
        chosen, _ = choose_values(
            prepare.resolve(load_scenario(scenario, changes), where), device=where, processes=processes
        )
        content = export(chosen, where, processes)
    build(content, out)
    for label, why in content["left_out"].items():
        say(f"not in the page: {label}: {why}")
    say(f"wrote {out}: open it in a browser")
