"""A scheme inside somebody's own training loop.

    with paceline.attach(model, optimizer, {"gossip": {"topology": "ring"}}, steps=1000) as worker:
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            worker.step(loss)                # instead of optimizer.step()

The scheme is the same coroutine as everywhere, on the same driver, which runs in a thread of its own. Where
the scheme asks for a gradient, the loop computes it: the model is moved to the point in question, and what
``backward`` leaves is the answer. So messages travel while the loop computes, as the scheme has it.

A worker may be several ranks with DDP or FSDP among them. The first of them then runs the scheme.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store

from paceline.sim.compute.model import ComputeModel
from paceline.sim.compute.settings import Compute
from paceline.sim.config import files
from paceline.sim.config.yaml_file import validate_document
from paceline.sim.drivers.job import Job
from paceline.sim.errors import InputError, PacelineError, RunError
from paceline.sim.network.network import free_network
from paceline.sim.network.transfer import TransferModel
from paceline.sim.records.run import Run
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.schemes import find_scheme
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.training.optimizer import WithBuffers
from paceline.sim.workloads.modules import backward_segments
from paceline.sim.workloads.workload import Evaluated, Told

from ..calibration.training_run import record_of
from ..driver.run import run_job
from ..group.group import SWITCH_S, Group, leave, meet
from ..group.store import Control, torchrun_store
from ..transport.device import settle, use
from .model_vector import ModelVector, check_wrappers
from .replica_group import ENDED, FAILED, WANTED, ReplicaGroup, find_replica_group
from .torch_rule import TorchRule


class Attached:
    """This process's worker.

    Attributes:
        rank, size: which worker this process is, or belongs to, and how many workers there are.
        run: the record, after the ``with`` block, on one of the ranks; None on the others.
    """

    def __init__(
        self, vector: ModelVector, x: Tensor, team: ReplicaGroup, control: Control, loop: _Loop
    ) -> None:
        self.rank = team.worker
        self.size = team.workers
        self.run: Run | None = None
        self._vector = vector
        self._x = x
        self._team = team
        self._control = control
        self._loop = loop
        self._wanted = False
        self._error: PacelineError | None = None

    def step(self, loss: Tensor | float | None = None) -> None:
        """Hand in the gradient that ``backward`` has left, and come back when the next one is wanted.

        The model is then where that one is to be computed; after the last step, where this worker ended.

        Args:
            loss: of this rank's batch; only schemes that choose by it need it (leader SGD).

        Raises:
            RunError: the run failed, here or on another rank, or has had all of its steps.
        """
        if not self._wanted:
            raise self._error or RunError("all steps are done: 'steps' says how many there are")
        gradient = self._vector.gradient(self._x)
        told = None
        if loss is not None:
            told = self._team.mean(torch.as_tensor(loss).detach().reshape(1).to(gradient))
        settle(gradient.device)
        if self._team.leads:
            self._loop.answered.put(Evaluated(gradient, cast("Tensor", told)))
        self._next()
        if self._error is not None:
            raise self._error

    def _next(self) -> None:
        """Move the model to where the next gradient is wanted, or else to where this worker has ended."""
        word = WANTED
        if self._team.leads:
            point = self._loop.asked.get()
            if point is None:
                word, point = ENDED, self._loop.final
                self.run, self._error = self._loop.run, self._loop.error
            if self._error is not None:
                word = FAILED
                self._control.put(f"failed/{self.rank}", str(self._error))
            self._x = point
        word = self._team.share(word, self._x)
        self._vector.load(self._x)
        self._wanted = word == WANTED
        if word == FAILED and not self._team.leads:
            self._error = RunError(self._control.get(f"failed/{self.rank}"))

    def _end(self) -> None:
        """The loop computes no more gradients."""
        self._loop.answered.put(None)
        while self._wanted:
            self._next()


class _Loop:
    """What the driver takes for a workload: its gradients come from the loop; nothing is scored.

    Attributes:
        asked: where gradients are wanted; None at last.
        answered: the gradients; None: there will be no more.
        final, run, error: afterwards, where the worker ended, the record, and why the run failed.
    """

    workload = None

    def __init__(self, worker: int, start: Tensor, segments: tuple[tuple[str, int, int], ...]) -> None:
        self.asked: SimpleQueue[Tensor | None] = SimpleQueue()
        self.answered: SimpleQueue[Evaluated | None] = SimpleQueue()
        self.final = start
        self.run: Run | None = None
        self.error: PacelineError | None = None
        self._worker = worker
        self._segments = segments

    def gradient(self, worker: int, index: int, point: Tensor, told: Told | None = None) -> Evaluated:
        """For the driver: have the loop compute the gradient at ``point`` [d].

        Its parts are known when all of it is: the loop's backward pass is its own.
        """
        settle(point.device)
        self.asked.put(point)
        answer = self.answered.get()
        if answer is None:
            raise RunError(f"worker {self._worker}: its loop ended after {index} of its steps")
        if told is not None:
            for _, start, stop in self._segments:
                told(start, stop, answer)
        return answer

    def drive(self, group: Group, job: Job, backend: str, timeout_s: float) -> None:
        """In the driver's thread: run the scheme."""
        try:
            use(job.start.device)
            measured = run_job(group, job, backend=backend, timeout_s=timeout_s, warm_up=False)
            settle(job.start.device)
            self.final, self.run, self.error = measured.final, measured.run, measured.error
        except PacelineError as error:
            self.error = error
        except Exception as error:
            self.error = RunError(f"worker {self._worker}: {type(error).__name__}: {error}")
            self.error.__cause__ = error
        finally:
            self.asked.put(None)


@contextmanager
def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scheme: str | Mapping[str, Any],
    *,
    steps: int,
    seed: int = 0,
    inside: dist.ProcessGroup | None = None,
    backend: str = "gloo",
    timeout_s: float = 60.0,
    records: Path | str | None = None,
) -> Iterator[Attached]:
    """Do what ``paceline.attach`` says, where the arguments and errors are described."""
    if steps < 1:
        raise InputError(f"attach: steps is {steps}; at least one is needed")
    if inside is not None and backend != "gloo":
        raise InputError(
            f"attach: with 'inside' workers exchange over gloo, not {backend}: two communicators of NCCL "
            "that are used at once may wait for each other for ever"
        )
    rule = TorchRule(optimizer)
    vector = ModelVector(model)
    entry = _entry(scheme)
    store, rank, size = _surroundings(timeout_s)
    control = Control(store, rank, size)
    team = find_replica_group(control, inside, timeout_s)
    check_wrappers(model, team.members)
    found = find_scheme(entry.name)
    found.check(entry.options, team.workers)
    x = vector.value()
    settle(x.device)
    segments = backward_segments(model)
    loop = _Loop(team.worker, x, segments)
    job = Job(
        scheme=found,
        options=entry.options,
        label=entry.label or entry.name,
        workers=team.workers,
        seed=seed,
        start=x,
        optimizer=WithBuffers(rule, vector.num_buffers) if vector.num_buffers else rule,
        problem=cast("TrainingProblem", loop),
        task=None,
        bytes_per_parameter=x.element_size(),
        compute=ComputeModel(Compute.model_validate({"time": "0 s"}), (), seed),
        transfer=TransferModel(free_network(team.workers)),
        all_reduce="gloo_ring",
        segments=segments,
        every=steps,
        on="mean",
        max_iterations=steps,
    )
    worker = Attached(vector, x, team, control, loop)
    try:
        with _driven(loop, team, store, job, backend, timeout_s):
            worker._next()
            if worker._error is None:
                yield worker
                worker._end()
    finally:
        if records is not None and worker.run is not None:
            _write(worker.run, job, entry, Path(records))
    if worker._error is not None:
        raise worker._error


@contextmanager
def _driven(
    loop: _Loop, team: ReplicaGroup, store: Store, job: Job, backend: str, timeout_s: float
) -> Iterator[None]:
    """Meanwhile the driver runs in a thread, on the rank that leads."""
    if not team.leads:
        yield
        return
    group = meet(store, team.worker, team.workers, timeout_s)
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    thread = threading.Thread(target=loop.drive, args=(group, job, backend, timeout_s), daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.answered.put(None)  # nobody waits for it where all steps were done
        thread.join()
        sys.setswitchinterval(usual_s)
        if loop.error is None:
            leave(group)


def _entry(scheme: str | Mapping[str, Any]) -> SchemeEntry:
    entry = validate_document(SchemeEntry, scheme, "attach")
    if entry.optimizer is not None:
        raise InputError(f"attach: {entry.name}.optimizer: the optimizer is the loop's own; leave this out")
    return entry


def _surroundings(timeout_s: float) -> tuple[Store, int, int]:
    """A store for this use of the job's processes, this one's rank, and how many there are."""
    if dist.is_initialized():
        store, rank, size = (
            dist.distributed_c10d._get_default_store(),
            dist.get_rank(),
            dist.get_world_size(),
        )
    else:
        store, rank, size = torchrun_store(os.environ, timeout_s, "start this script with torchrun")
    times = store.add(f"attached/{rank}", 1)  # facts of an earlier time are still there
    return PrefixStore(f"attached {times}", store), rank, size


def _write(run: Run, job: Job, scheme: SchemeEntry, folder: Path) -> None:
    record = record_of(run, job, scheme)
    if record is not None:
        folder.mkdir(parents=True, exist_ok=True)
        files.write_json(record, folder / "attached.json")
