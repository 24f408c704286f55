"""Averaging schemes in the user's own training loop.

    with paceline.attach(model, optimizer, {"gossip": {"topology": "ring"}}, steps=1000) as worker:
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = criterion(model(inputs), targets)
            loss.backward()
            worker.step(loss)                # instead of optimizer.step()

The scheme is the same coroutine as everywhere, on the same driver, in a thread of its own. Where it asks for
a gradient, the loop computes it: the model is moved to the point in question, and ``backward`` leaves the
answer. So messages travel while the loop computes.

A worker may be several ranks joined by DDP or FSDP. The first of them then runs the scheme.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue
from statistics import fmean
from typing import Any, Final, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import GradBucket, Store
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from paceline.sim.compute.attached import AttachedRun
from paceline.sim.compute.compute_settings import Compute
from paceline.sim.compute.model import ComputeModel
from paceline.sim.config import files
from paceline.sim.config.limits import MAX_SEED, MAX_STEPS
from paceline.sim.config.user_code.code_files import script_folder, search_beside
from paceline.sim.config.yaml_file import validate_document
from paceline.sim.drivers.job import Job, JobCollectives, JobLayers, Scoring
from paceline.sim.errors import InputError, PacelineError, RunError, shorten
from paceline.sim.network.network import free_network
from paceline.sim.network.transport import TransferModel
from paceline.sim.records.carry.noise import NoisePoint
from paceline.sim.records.run import Run
from paceline.sim.scenario.entries import SchemeEntry
from paceline.sim.schemes import find_scheme
from paceline.sim.schemes.common.local_steps import is_by_time
from paceline.sim.training.gradient_noise import moments, norm2
from paceline.sim.training.gradients import TrainingProblem
from paceline.sim.training.optimizer import WithBuffers
from paceline.sim.workloads.modules import backward_segments, trained_parameters
from paceline.sim.workloads.workload import Evaluated, SegmentCallback

from ..calibration.training_run import record_of
from ..driver.one_run import run_job
from ..group.group import SWITCH_S, Group, leave, meet
from ..group.job_store import JobStore, open_job_store
from ..group.store import Control, check_timeout, torchrun_store
from ..transport.device import settle, use
from .loop_objects import (
    ENDED,
    FAILED,
    WANTED,
    ModelVector,
    ReplicaGroup,
    TorchRule,
    check_wrappers,
    find_replica_group,
)

_LET_GO_S: Final = 0.05
"""Time in which gloo's threads drop tensors: they need the interpreter, and its end before that aborts."""


class Attached:
    """The worker that this process belongs to; ``rank`` and ``size`` number it among the workers.

    Its ``run`` is the record, after the ``with`` block, on one of the ranks; None on the others.
    """

    def __init__(
        self, vector: ModelVector, x: Tensor, replicas: ReplicaGroup, control: Control, loop: _Loop
    ) -> None:
        self.rank = replicas.worker
        self.size = replicas.workers
        self.run: Run | None = None
        self._vector = vector
        self._x = x
        self._replicas = replicas
        self._control = control
        self._loop = loop
        self._noise: LoopNoise | None = None
        self._losses: list[Any] = []
        self._wanted = False
        self._error: PacelineError | None = None

    def half(self) -> None:
        """For ``gradient_noise``: call this after ``backward`` on the first half of a batch."""
        if self._noise is not None and self._noise.due:
            self._noise.half = self._vector.without_buffers(self._vector.gradient(self._x))

    def step(self, loss: Tensor | float | None = None) -> None:
        """Submit the gradient left by ``backward``; return when the next one is wanted.

        The model is then at the next gradient's point; after the last step, at this worker's final model.
        ``loss``: of this rank's batch, for schemes that choose by it (leader SGD), and for ``losses.jsonl``.

        Raises ``RunError`` if the run failed, here or on another rank, or has had all of its steps.
        """
        if not self._wanted:
            raise self._error or RunError("all steps are done: 'steps' says how many there are")
        gradient = self._vector.gradient(self._x)
        mean_loss: Any = None
        if loss is not None:
            mean_loss = self._replicas.mean(torch.as_tensor(loss).detach().reshape(1).to(gradient))
            self._losses += [mean_loss] if self._replicas.leads else []
        if self._noise is not None:
            self._noise.note(self._vector.without_buffers(gradient), mean_loss)
        settle(gradient.device)
        if self._replicas.leads:
            self._loop.gradients.put(Evaluated(gradient, mean_loss))
        self._next()
        if self._error is not None:
            raise self._error

    def _next(self) -> None:
        """Move the model to the point of the next gradient, or else to the final one."""
        word = WANTED
        if self._replicas.leads:
            point = self._loop.points.get()
            if point is None:
                word, point = ENDED, self._loop.final
                self.run, self._error = self._loop.run, self._loop.error
            if self._error is not None:
                word = FAILED
                self._control.put(f"failed/{self.rank}", str(self._error))
            self._x = point
        word = self._replicas.share(word, self._x)
        self._vector.load(self._x)
        self._wanted = word == WANTED
        if word == FAILED and not self._replicas.leads:
            self._error = RunError(self._control.get(f"failed/{self.rank}"))


class _Loop:
    """The driver's training problem: gradients come from the loop; nothing is scored.

    Attributes:
        points: where gradients are wanted; None at last.
        gradients: the loop's answers; None: there will be no more.
    """

    workload = None
    model_weights = ()

    def __init__(self, worker: int, start: Tensor, segments: tuple[tuple[str, int, int], ...]) -> None:
        self.points: SimpleQueue[Tensor | None] = SimpleQueue()
        self.gradients: SimpleQueue[Evaluated | None] = SimpleQueue()
        self.final = start
        self.run: Run | None = None
        self.error: PacelineError | None = None
        self._worker = worker
        self._segments = segments

    def of_part(self, index: int, part: int | None) -> tuple[_Loop, int]:
        """Itself: a loop's gradient is in one part."""
        return self, index

    def gradient(
        self, worker: int, index: int, point: Tensor, on_segment: SegmentCallback | None = None
    ) -> Evaluated:
        """Have the loop compute the gradient at ``point`` [d].

        Its segments are known only when all of it is: the backward pass is the loop's own.
        """
        settle(point.device)
        self.points.put(point)
        evaluated = self.gradients.get()
        if evaluated is None:
            raise RunError(f"worker {self._worker}: its loop ended after {index} of its steps")
        if on_segment is not None:
            for _, start, stop in self._segments:
                on_segment(start, stop, evaluated)
        return evaluated

    def drive(self, group: Group, job: Job, backend: str, timeout_s: float) -> None:
        """Run the scheme, in the driver's thread."""
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
            self.points.put(None)


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
    gradient_noise: tuple[int, int] | None = None,
) -> Iterator[Attached]:
    """Attach a scheme to a training loop: see ``paceline.attach`` for arguments and errors."""
    _check_arguments(steps, seed, timeout_s, "gloo" if inside is None else backend)
    rule, vector = TorchRule(optimizer), ModelVector(model)
    entry = _parse_scheme(scheme)
    store, rank, size = _open_store(timeout_s)
    with closing(store):
        control = Control(store, rank, size)
        replicas = find_replica_group(control, inside, timeout_s)
        check_wrappers(model, replicas.members)
        spec = find_scheme(entry.name)
        spec.check(entry.options, replicas.workers)
        x = vector.value()
        settle(x.device)
        segments = backward_segments(model)
        loop = _Loop(replicas.worker, x, segments)
        job = Job(
            scheme=spec,
            options=entry.options,
            label=entry.label or entry.name,
            workers=replicas.workers,
            seed=seed,
            start=x,
            optimizer=WithBuffers(rule, vector.num_buffers) if vector.num_buffers else rule,
            problem=cast("TrainingProblem", loop),
            task=None,
            bytes_per_parameter=x.element_size(),
            compute=ComputeModel(Compute.model_validate({"time": "0 s"}), (), seed),
            transfer=TransferModel(free_network(replicas.workers)),
            collectives=JobCollectives("gloo_ring"),
            layers=JobLayers(segments, parameters=trained_parameters(model)),
            scoring=Scoring(steps),
            max_iterations=steps,
        )
        worker = Attached(vector, x, replicas, control, loop)
        losses: list[list[float]] = []
        if gradient_noise is not None:
            worker._noise = LoopNoise(model, replicas, rule, *gradient_noise)
            if spec.averages_gradients(entry.options) and not spec.encodes(entry.options):
                rule.watched = gradient_noise[0], vector.without_buffers(x).numel()
        try:
            with _run_driver(loop, replicas, store, job, backend, timeout_s):
                worker._next()
                if worker._error is None:
                    yield worker
                    loop.gradients.put(None)  # the loop computes no more of them
                    while worker._wanted:
                        worker._next()
                if worker._noise is not None and worker._error is None:
                    worker.run = worker._noise.finish(control, timeout_s, worker.run)
                if records is not None and worker._error is None:
                    losses = [*filter(None, control.meet("losses", [*map(float, worker._losses)], timeout_s))]
        finally:
            if inside is not None:
                time.sleep(_LET_GO_S)
            if records is not None and worker.run is not None:
                _write_records(record_of(worker.run, job, entry), losses, job, Path(records))
        if worker._error is not None:
            raise worker._error


def check_noise(*numbers: int) -> tuple[int, int]:
    """The two positive numbers of ``gradient_noise``; ``InputError`` for anything else."""
    if len(numbers) != 2 or min(numbers) < 1:
        raise InputError(f"attach: gradient_noise is {numbers}; write (every, batch_size), both positive")
    return numbers[0], numbers[1]


def _write_records(
    record: AttachedRun | None, losses: Sequence[Sequence[float]], job: Job, folder: Path
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if record is not None:
        files.write_json(record, folder / "attached.json")
    if losses:
        under = {"scheme": job.label, "seed": job.seed, "workers": job.workers}
        under |= job.options.model_dump(include={"period"})
        means = enumerate(map(fmean, zip(*losses, strict=False)))
        rows = (json.dumps({**under, "step": step, "train_loss": loss}) for step, loss in means)
        files.write_atomically(folder / "losses.jsonl", "\n".join(rows) + "\n")


def _check_arguments(steps: int, seed: int, timeout_s: float, beside: str) -> None:
    """Raise ``InputError`` for numbers out of range, or another backend ``beside`` the loop's own group."""
    if not 1 <= steps <= MAX_STEPS:
        raise InputError(f"attach: steps is {shorten(steps)}; from 1 to {MAX_STEPS:,} are possible")
    if not 0 <= seed <= MAX_SEED:
        raise InputError(f"attach: seed is {shorten(seed)}; from 0 to {MAX_SEED} are possible")
    check_timeout("attach: timeout_s", timeout_s)
    if beside != "gloo":
        raise InputError(
            f"attach: with 'inside' workers exchange over gloo, not {beside}: two communicators of NCCL "
            "that are used at once may wait for each other for ever"
        )


@contextmanager
def _run_driver(
    loop: _Loop, replicas: ReplicaGroup, store: Store, job: Job, backend: str, timeout_s: float
) -> Iterator[None]:
    """Run the driver in a thread during the block, on the leading rank only."""
    if not replicas.leads:
        yield
        return
    group = meet(store, replicas.worker, replicas.workers, timeout_s)
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_S)
    thread = threading.Thread(target=loop.drive, args=(group, job, backend, timeout_s), daemon=True)
    thread.start()
    try:
        yield
    finally:
        loop.gradients.put(None)  # without a reader once all steps are done
        thread.join()
        sys.setswitchinterval(usual_s)
        if loop.error is None:
            leave(group)


def _parse_scheme(scheme: str | Mapping[str, Any]) -> SchemeEntry:
    with search_beside(script_folder()):
        entry = validate_document(SchemeEntry, scheme, "attach")
    if entry.optimizer is not None:
        raise InputError(f"attach: {entry.name}.optimizer: the optimizer is the loop's own; leave this out")
    if getattr(entry.options, "round", 0.0):
        raise InputError(f"attach: {entry.name}.round: a round takes its real time here; leave this out")
    if is_by_time(entry.options):
        raise InputError(
            f"attach: {entry.name}.period: by time needs the workers' speeds, which are not known here; "
            "write a number of steps"
        )
    return entry


_uses: Final = itertools.count()
"""Number of stores opened by this process: torch's still holds the entries of earlier uses."""


def _open_store(timeout_s: float) -> tuple[JobStore, int, int]:
    name = f"attached {next(_uses)}"
    if not dist.is_initialized():
        return torchrun_store(os.environ, timeout_s, "start this script with torchrun", name)
    torch_store = dist.distributed_c10d._get_default_store()
    rank, size = dist.get_rank(), dist.get_world_size()
    return open_job_store(os.environ, rank, size, timeout_s, torch_store, name), rank, size


class LoopNoise:
    """A worker's S2_i and |g_i|^2 at every multiple of ``every`` steps, for ``batch_size`` examples.

    Nothing is known of shards: they count as infinite, so H2 is that of their sources.
    """

    def __init__(
        self, model: nn.Module, replicas: ReplicaGroup, rule: TorchRule, every: int, batch_size: int
    ) -> None:
        self._replicas, self._rule, self._every, self._batch_size = replicas, rule, every, batch_size
        joined = [each for each in model.modules() if isinstance(each, DistributedDataParallel)]
        self._shares = len(replicas.members) if joined else 1
        self._done, self._local2 = 0, torch.zeros(())
        self._points: list[tuple[float, ...]] = []
        self.half: Tensor | None = None
        for each in joined if self._shares > 1 else ():
            try:  # torch refuses annotations that are text
                each.register_comm_hook(
                    each.process_group, lambda group, bucket: self._average(group, bucket)
                )
            except RuntimeError:
                raise InputError(
                    "attach: gradient_noise: this DDP has a communication hook already"
                ) from None

    @property
    def due(self) -> bool:
        """Whether the present step is measured."""
        return self._done > 0 and self._done % self._every == 0

    def _average(self, group: dist.ProcessGroup, bucket: GradBucket) -> torch.futures.Future[Tensor]:
        if self.due:
            self._local2 = self._local2.to(bucket.buffer().device) + norm2(bucket.buffer())
        return allreduce_hook(group, bucket)

    def note(self, gradient: Tensor, loss: Tensor | None) -> None:
        """Note a step's gradient [d], without buffers; ``RunError`` where its half is missing."""
        if self.due:
            shares, own = self._shares, float(norm2(gradient))
            if shares > 1:
                total = shares * float(self._replicas.mean(self._local2))
                noise = self._batch_size / shares * (total - shares * own) / (shares - 1)
            elif self.half is None:
                raise RunError("attach: gradient_noise: call worker.half() between a batch's two halves")
            else:
                noise = self._batch_size * float(norm2(2 * self.half - gradient))
            known = np.nan if loss is None else float(loss)
            self._points.append((self._done, self._rule.lr_at(0), known, noise, own))
            self._local2, self.half = torch.zeros(()), None
        self._done += 1

    def finish(self, control: Control, timeout_s: float, run: Run | None) -> Run | None:
        """Give the joined points of all workers to ``run``; all ranks call this after the last step."""
        lists = control.meet("noise", self._points if self._replicas.leads else None, timeout_s)
        joined: list[NoisePoint] = []
        for each in zip(*(points for points in lists if points is not None), strict=False):
            (step, *_), lr, losses, noise, norms2 = np.array(each).T
            mean2 = self._rule.norms2.get(int(step))
            batches = np.full(len(each), float(self._batch_size))
            joint = moments(noise, norms2, mean2 or 0.0, batches, np.inf)
            joined.append(
                NoisePoint(
                    step=int(step), examples=len(each) * self._batch_size, lr=float(lr[0]),
                    loss=float(losses.mean()) if np.isfinite(losses).all() else None, noise=joint.noise,
                    heterogeneity=mean2 and joint.heterogeneity, norm2=mean2 and joint.norm2,
                )
            )  # fmt: skip
        return run and replace(run, gradients=tuple(joined))
