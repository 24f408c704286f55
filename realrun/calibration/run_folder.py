"""Result folders of real runs, as calibration data: their events, and the network of their scenario."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from paceline.sim.config.user_code.code_files import reading_results
from paceline.sim.errors import InputError, quote, shorten
from paceline.sim.experiments.prepare import prepare
from paceline.sim.network.transfer import TransferModel
from paceline.sim.records.folder import SUMMARY_FILE, read_results, runs_of
from paceline.sim.records.run import Run
from paceline.sim.scenario.schema import Scenario, parse

from .training_run import TrainingRun, record_of

_MAX_RUNS: Final = 3
"""Largest number of fitted runs of each scheme: more would tell little more, and cost time."""


def load_runs(folder: Path, say: Callable[[str], None]) -> list[TrainingRun]:
    """Load the first few measured runs of each scheme in a result folder; ``say`` why a scheme is left out.
    ``InputError`` without a usable run.
    """
    with reading_results(folder):
        return _load_runs(folder, say)


def _load_runs(folder: Path, say: Callable[[str], None]) -> list[TrainingRun]:
    results = read_results(folder)
    scenario = parse(results.scenario, str(folder / "scenario.yaml"))
    if scenario.cluster.workers < 2:
        raise InputError(f"{folder}: one worker alone exchanges nothing")
    measured = [run for run in runs_of(results) if run.source == "measured"]
    if not measured:
        raise InputError(
            f"{folder} holds predictions alone, and calibration is about what was measured: give the folder "
            "of a realrun, of a validate, or a file of 'paceline probe' or paceline.attach"
        )
    measured_at = datetime.fromtimestamp((folder / SUMMARY_FILE).stat().st_mtime, UTC)
    taken: list[TrainingRun] = []
    problems: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for run in measured:
        if run.label in problems or seen[run.label] == _MAX_RUNS:
            continue
        seen[run.label] += 1
        try:
            taken.append(_training_run(run, scenario, folder, measured_at.isoformat(timespec="seconds")))
        except InputError as error:
            problems[run.label] = str(error)
    if not taken:
        raise InputError(next(iter(problems.values())))
    for label, why in problems.items():
        say(f"{shorten(label)} is left out: {why}")
    return taken


def _training_run(run: Run, scenario: Scenario, folder: Path, measured_at: str) -> TrainingRun:
    """A run as calibration data, if the simulator can repeat it."""
    entry = next((each for each in scenario.schemes if each.label == run.label), None)
    if entry is None:
        raise InputError(f"{folder}: its scenario has no scheme {quote(run.label)}")
    if not run.events:
        raise InputError(f"{folder}: {shorten(run.label)} has no events; run it with 'events: all'")
    if run.hosts.get("transport", "gloo") != "gloo":
        raise InputError(f"{folder}: was run over {run.hosts['transport']}; factors are fitted to gloo alone")
    record = record_of(run, prepare(scenario, entry, run.seed), entry)
    if record is None:
        raise InputError(f"{folder}: a worker of {shorten(run.label)} has not done a step")
    there = {
        "made": measured_at,
        "machine": ", ".join(dict.fromkeys(machine.host for machine in run.machines)) or "not recorded",
        "software": run.hosts.get("software", "not recorded"),
        "settings": {name: value for name, value in run.hosts.items() if name.startswith("net.")},
    }
    in_lab = run.hosts.get("kind") == "lab"
    taken = TrainingRun(record.model_copy(update=there), scenario, folder, in_lab, "for real")
    taken.predict(TransferModel(taken.nominal(), announcement=1.0, streams=True))  # raises where they differ
    return taken
