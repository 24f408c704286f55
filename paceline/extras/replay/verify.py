"""Verify recorded runs: replay the events of a result folder in one process, and compare the final models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from paceline.sim.config.user_code.code_files import reading_results
from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError, RunError, did_you_mean, quote, shorten
from paceline.sim.experiments.parity import Models, combinations, worst_difference
from paceline.sim.experiments.prepare import prepare
from paceline.sim.program.operations import Publish
from paceline.sim.records.folder import read_results, runs_of
from paceline.sim.records.run import Event, Run, score_difference, sum_tolerance
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.scenario.schema import Scenario, parse
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.training.scoring import digest, score_models
from paceline.sim.workloads.workload import Task, Workload

from .replay_driver import ShortRecordError, replay

_ENDED: Final = (
    "the target ended it before its workers were done; only a run without stop.target, or of "
    "'paceline validate --steps N', can be replayed"
)


@dataclass(frozen=True)
class Recorded:
    """A run of a result folder, and what it was made of."""

    folder: Path
    scenario: Scenario
    entry: SchemeEntry
    run: Run

    @property
    def name(self) -> str:
        """Its scheme, seed and source, as a user names it."""
        return f"{self.run.label}, seed {self.run.seed}, {self.run.source}"

    def events(self) -> Sequence[Event]:
        """Its events; ``InputError`` where none were kept."""
        if not self.run.events:
            label = shorten(self.run.label)
            raise InputError(f"{self.folder}: {label} has no events; run it with 'events: all'")
        return self.run.events

    def trained_job(self) -> tuple[Job, TrainingProblem, Task]:
        """Its job, problem and task; ``InputError`` where nothing was trained, or views were of fewer."""
        run, known = self.run, self.scenario.cluster.workers
        workers = len(run.evaluations[0].steps) if run.evaluations else known
        if workers != known:
            raise InputError(
                f"{self.folder}: {shorten(run.label)} was recorded with {workers} workers, its scenario has "
                f"{known}; make these results again"
            )
        job = prepare(self.scenario, self.entry, run.seed)
        if job.shrinks:
            raise InputError(
                f"{self.folder}: {shorten(run.label)} has views of fewer workers (on_fault: shrink); "
                "simulate it again to verify it"
            )
        if job.problem is None or job.task is None:
            raise InputError(
                f"{self.folder}: nothing was trained (timing_only), so there is nothing to replay"
            )
        return job, job.problem, job.task


def read_recorded(folder: Path) -> list[Recorded]:
    """All runs of a result folder; ``InputError`` where its scenario lacks one's scheme."""
    results = read_results(folder)
    with reading_results(folder):
        scenario = parse(results.scenario, str(folder / "scenario.yaml"))
    entries = {entry.label: entry for entry in scenario.schemes}
    runs = runs_of(results)
    for run in runs:
        if run.label not in entries:
            raise InputError(
                f"{folder}: its scenario has no scheme {quote(run.label)}; {did_you_mean(run.label, entries)}"
            )
    return [Recorded(folder, scenario, entries[run.label], run) for run in runs]


@dataclass(frozen=True)
class Replayed:
    """A recorded run, compared with its replay.

    Attributes:
        run: as recorded.
        same_bits: whether the final parameters are equal bit for bit.
        difference: largest difference of a score of the same models; of a folder without step vectors the
            relative difference of the final training loss. None where nothing was recorded.
    """

    run: Run
    same_bits: bool
    difference: float | None

    @property
    def agrees(self) -> bool:
        """Whether the bits are equal, or scores differ by no more than ``sum_tolerance``."""
        tolerance = sum_tolerance(self.run.exchanges)
        return self.same_bits or (self.difference is not None and self.difference <= tolerance)


def verify_replay(folder: Path) -> Iterator[Replayed]:
    """Replay all runs of a result folder, one by one.

    Raises ``InputError`` without events or training, ``RunError`` for a record that is partial or does not
    fit.
    """
    for each in read_recorded(folder):
        each.events()
        with reading_results(folder):
            job, problem, task = each.trained_job()
            try:
                replayed = replay_run(job, problem.workload, task, each.run)
            except LookupError as error:
                raise InputError(f"{folder} is damaged: its runs and tables do not fit together") from error
        yield replayed


def replay_run(job: Job, workload: Workload, task: Task, run: Run) -> Replayed:
    """Replay a recorded run of a trained job; raises ``RunError`` as above."""
    programs = [job.program(rank) for rank in range(job.workers)]
    models = Models(combinations(run.evaluations))

    def kept(worker: int, operation: Publish) -> None:
        models.take(worker, operation.step + 1, operation.value, operation.averaged)

    try:
        finals = replay(job, programs, run.events, kept)
    except ShortRecordError as error:
        why = _ENDED if run.reached_target else error
        raise RunError(f"{shorten(run.label)}, seed {run.seed}: {why}") from error
    except RunError as error:
        raise RunError(f"{shorten(run.label)}, seed {run.seed}: {error}") from error
    number, worst = worst_difference(job, run.evaluations, models)
    difference = worst if number else None
    recorded = run.evaluations[-1].metrics.get("train_loss") if run.evaluations else None
    kind = job.scored_kind
    if difference is None and recorded is not None and kind not in ("averaged", None):
        scores = score_models(workload, task, finals, (kind,))[kind]
        difference = score_difference({"train_loss": scores["train_loss"]}, {"train_loss": recorded})
    return Replayed(run, digest(finals) == run.digest, difference)
