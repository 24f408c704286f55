"""The model of one worker after one of its steps: the run again, up to there."""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path

from torch import Tensor
from typing_extensions import override

from paceline import arguments
from paceline.sim.config.user_code.code_files import reading_results
from paceline.sim.devices import one_thread
from paceline.sim.drivers.job import UNRECORDED, Job
from paceline.sim.errors import InputError, RunError, did_you_mean, quote, shorten
from paceline.sim.experiments.parity import Models, Recorder
from paceline.sim.experiments.simulate import engine_named, simulate_job
from paceline.sim.network import profile as profiles
from paceline.sim.records.folder import PROFILE_FILE
from paceline.sim.training.scoring import as_they_are

from .replay_driver import ShortRecordError, replay
from .verify import Recorded, read_recorded


def model_at(folder: str | PathLike[str], at: int, worker: int = 0, run: str = "") -> dict[str, Tensor]:
    """The model that a worker had published after a step of a recorded run: ``paceline replay --at``.

    Args:
        folder: a result folder.
        at: number of the worker's steps; 0: the initial model.
        worker: its rank.
        run: which run, by its name in ``paceline replay`` ('gossip, seed 0, simulated'), or by the first
            parts of that; "": there is one.

    Returns:
        The tensors by name, on the CPU, as the ``state_dict()`` of the task's module has them; of a task
        without a module a vector for each layer. A simulated run's are equal to the bit, and so are a
        measured one's where workers only mixed and sent messages; else equal up to the rounding of a
        library's sums.

    Raises:
        InputError: there is no such run, worker or step, or nothing was trained.
        RunError: the record does not fit its scenario.
    """
    path, steps = arguments.read_path("folder", folder), arguments.read_whole("--at", at)
    arguments.check_is("--run", run, str, "the name of a run")
    return find_model(path, steps, arguments.read_whole("--worker", worker), run)[1]


def find_model(folder: Path, at: int, worker: int, run: str) -> tuple[Recorded, dict[str, Tensor]]:
    """The run of that name and the tensors of its model; see ``model_at``."""
    records = read_recorded(folder)
    fitting = [each for each in records if f"{each.name},".startswith(f"{run}," if run else "")]
    if len(fitting) != 1:
        names = [each.name for each in fitting or records]
        choice = f"write one of: {'; '.join(names)}" if fitting else did_you_mean(run, names)
        given = f"--run {quote(run)} fits {len(fitting)}" if run else f"there are {len(fitting)}"
        raise InputError(f"{given} runs in {folder}; {choice}{'' if run else ' after --run'}")
    record = fitting[0]
    with reading_results(folder), one_thread():
        job, problem, _ = record.trained_job()
        if not 0 <= worker < job.workers:
            raise InputError(
                f"--worker {worker}: the run has {job.workers} workers; write 0 to {job.workers - 1}"
            )
        if at < 0:
            raise InputError(f"--at {at}: steps count from 0, the initial model; write 0 or more")
        search = _Search({(worker, at)}, left=1 + round(record.run.iterations * job.workers))
        with suppress(_Stop, ShortRecordError):
            search.take(worker, 0, job.start, None)
            _again(record, job, search)
        if not search.published:
            last = search.done[worker]
            raise InputError(
                f"--at {at}: worker {worker} took {last} steps in {shorten(record.name)}; write 0 to {last}"
            )
        return record, problem.workload.state_dict(search.published[worker, at].detach())


class _Stop(Exception):
    """Ends a run where the wanted model is found, or where the recorded run has ended."""


@dataclass
class _Search(Models):
    """Takes publications up to the wanted one.

    Attributes:
        left: publications of all workers until the run's end.
        done: each worker's steps so far.
    """

    left: int = 0
    done: dict[int, int] = field(default_factory=dict)

    @override
    def take(self, worker: int, steps: int, value: Tensor, averaged: Tensor | None) -> None:
        if self.left == 0:
            raise _Stop
        super().take(worker, steps, value, averaged)
        self.left -= 1
        self.done[worker] = steps
        if self.published:
            raise _Stop


def _again(record: Recorded, job: Job, search: _Search) -> None:
    """Run a job as recorded, in one process, until the search ends it."""
    run, scoring = record.run, job.scoring
    if run.source == "measured" and not job.synchronous:
        events = record.events()
        programs = [job.program(rank) for rank in range(job.workers)]
        replay(job, programs, events, lambda w, each: search.take(w, each.step + 1, each.value, None))
        return
    again = replace(
        job,
        scoring=replace(scoring, target=None, gradient_noise=None, keep=1, keep_share=0.0),
        recording=UNRECORDED,
        churn=None if job.stops_for_faults else job.churn,
    )
    if run.source == "measured" and job.problem is not None:
        search.left = 1 + job.workers * max([round(run.iterations), *run.evaluations[-1].steps])
        looped = replace(job.problem, method="looped")
        again = replace(again, problem=looped, max_iterations=None, max_time_s=math.inf)
    recorder = Recorder(None, None, scoring.every, scoring.on, None, as_they_are, models=search)
    fitted = record.folder / PROFILE_FILE  # of a validation's prediction
    profile = profiles.load(fitted) if fitted.is_file() else record.scenario.cluster.profile
    driver = engine_named(run.engine or "event")
    ended = simulate_job(again, profile=profile, engine=driver, scorer_of=lambda _: recorder)
    if ended.status == "partial" and run.status != "partial":
        raise RunError(f"{shorten(record.name)}: {ended.message}")
