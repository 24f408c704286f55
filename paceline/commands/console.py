"""What the commands share: their options, and how they talk to the user."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from paceline.sim.errors import InputError, shorten

if TYPE_CHECKING:
    from rich.console import Console

    from paceline.sim.records.run import Run
    from paceline.sim.records.summary import Tuned
    from paceline.sim.scenario.schema import Scenario

ScenarioFile = Annotated[Path, typer.Argument(metavar="SCENARIO", help="a scenario file (YAML)")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="dotted.key=value", help="change one value of the scenario; repeatable"),
]
Out = Annotated[
    Path | None, typer.Option("--out", metavar="DIR", help="write the results to this new folder")
]
Force = Annotated[bool, typer.Option("--force", help="replace the output if it exists")]
ReportFile = Annotated[Path, typer.Option("--out", metavar="FILE", help="the page to write")]
TraceOption = Annotated[
    bool, typer.Option("--trace", help="add trace.json to --out, for Chrome's tracing page and Perfetto")
]
AsJson = Annotated[bool, typer.Option("--json", help="print one JSON object on standard output")]
OnLab = Annotated[
    bool,
    typer.Option(
        "--lab", help="on the scenario's network, emulated on this machine; absent: on its loopback"
    ),
]
ProfileFile = Annotated[
    Path | None,
    typer.Option("--profile", metavar="PROFILE.yaml", help="correction factors, from 'paceline calibrate'"),
]
Device = Annotated[
    str, typer.Option("--device", metavar="auto|cpu|cuda", help="where gradients are computed")
]
Engine = Annotated[
    str, typer.Option("--engine", metavar="auto|event", hidden=True, help="what moves the virtual clock")
]


def terminal(stderr: bool = False) -> Console:
    """A console that prints text as it stands: what users call things is neither markup nor emoji codes."""
    from rich.console import Console

    return Console(stderr=stderr, markup=False, emoji=False)


@contextmanager
def watching(scenario: Scenario) -> Iterator[Callable[[str, int], None]]:
    """Show on standard error which run is under way; what it gives is called with a label and a step."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    limit = scenario.stop.max_iterations
    with Progress(*columns, console=terminal(stderr=True), transient=True) as bar:
        shown = bar.add_task("preparing")

        def progress(label: str, steps: int) -> None:
            bar.update(
                shown, description=f"{shorten(label)}: step {steps}" + (f" of {limit}" if limit else "")
            )

        yield progress


def print_json(value: Any) -> None:
    """One JSON object on standard output."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def say(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(text + "\n")


def check_trace(trace: bool, out: Path | None) -> None:
    """Refuse a trace without a folder to write it to."""
    if trace and out is None:
        raise InputError("--trace writes into the result folder: add --out DIR")


def hand_over(
    scenario: Scenario,
    runs: list[Run],
    out: Path | None,
    force: bool,
    as_json: bool,
    trace: bool,
    tuning: Sequence[Tuned] = (),
) -> None:
    """Write the results, print them, and fail where a run failed."""
    from paceline.reports import words
    from paceline.reports.tables import render_summary
    from paceline.sim.records import folder as result_folder
    from paceline.sim.records.summary import summarise
    from paceline.sim.scenario.schema import dump

    text = dump(scenario)
    summary = summarise(scenario.name, runs, result_folder.target_of(text), tuning)
    if out is not None and runs:
        result_folder.write_results(out, text, scenario.name, runs, force=force, tuning=tuning, trace=trace)
        say(f"wrote {out}")
    if as_json:
        print_json(summary)
    else:
        terminal().print(render_summary(summary))
        for sentence in words.tuning(summary):
            terminal().print(sentence, highlight=False)
    failed = [run for run in runs if run.status == "partial"]
    for run in failed:
        say(f"{shorten(run.label)}, seed {run.seed}: {run.message}")
    if failed:
        raise typer.Exit(1)


def end_interrupted(scenario: Scenario, runs: Sequence[Run], afterwards: str = "") -> NoReturn:
    """Say how many runs an interrupted command has kept, and end with the status of an interrupt."""
    from paceline.sim.experiments.prepare import seeds_of

    asked_for = len(scenario.schemes) * len(seeds_of(scenario))
    say(f"interrupted: {len(runs)} of {asked_for} runs are complete and kept{afterwards}")
    raise typer.Exit(130)
