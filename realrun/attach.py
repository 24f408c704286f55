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
"""

from __future__ import annotations

import csv
import io
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final, cast

import torch
import torch.distributed as dist
from pydantic import ValidationError
from torch._C._distributed_c10d import PrefixStore

from realrun.group import Group, join, leave
from realrun.run import run_job
from realrun.store import torchrun_store
from sim.compute.model import ComputeModel
from sim.compute.settings import Compute
from sim.entries import SchemeEntry
from sim.errors import InputError, PacelineError, RunError
from sim.gradients import Evaluated, Problem, Told
from sim.job import Job, TransferModel
from sim.network.platform import Network
from sim.optimizer import Adam, AdamSettings, AdamWSettings, Optimizer, Sgd, State, WithBuffers
from sim.problems import explain, one_line
from sim.records import Run
from sim.schemes import SCHEMES
from sim.whole_file import write_whole
from sim.workloads.modules import backward_segments
from sim.yaml_lines import dotted

Tensor = torch.Tensor

_VARIABLES: Final = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Attached:
    """This process's worker.

    Attributes:
        rank, size: which worker this is, and how many there are.
        run: the record, after the ``with`` block, on one of the ranks; None on the others.
        gradient_s: what the loop took for each of its gradients, in order.
    """

    def __init__(self, model: torch.nn.Module, rank: int, size: int) -> None:
        self.rank = rank
        self.size = size
        self.run: Run | None = None
        self.gradient_s: list[float] = []
        self._vector = _Vector(model)
        self._segments = backward_segments(model)
        self._asked: SimpleQueue[Tensor | None] = SimpleQueue()
        self._answered: SimpleQueue[Evaluated | None] = SimpleQueue()
        self._point: Tensor | None = None
        self._since_s = 0.0
        self._error: PacelineError | None = None

    def step(self, loss: Tensor | float | None = None) -> None:
        """Hand in the gradient that ``backward`` has left, and come back when the next one is wanted.

        The model is then where that one is to be computed; after the last step, where this worker ended.

        Args:
            loss: of the batch; only schemes that choose by it need it (leader SGD).

        Raises:
            RunError: the run failed, here or on another rank, or has had all of its steps.
        """
        if self._point is None:
            raise self._error or RunError("all steps are done: 'steps' says how many there are")
        told = None if loss is None else torch.as_tensor(loss).detach().reshape(1).to(self._point.dtype)
        found = Evaluated(self._vector.gradient(self._point), cast("Tensor", told))
        self.gradient_s.append(time.monotonic() - self._since_s)
        self._answered.put(found)
        self._next()

    def gradient(self, worker: int, index: int, point: Tensor, told: Told | None = None) -> Evaluated:
        """For the driver: have the loop compute the gradient at ``point`` [d].

        Its parts are known when all of it is: the loop's backward pass is its own.
        """
        self._asked.put(point)
        answer = self._answered.get()
        if answer is None:
            raise RunError(f"worker {self.rank}: its loop ended after {index} of its steps")
        if told is not None:
            for _, start, stop in self._segments:
                told(start, stop, Evaluated(answer.value[start:stop], answer.loss))
        return answer

    def _next(self) -> None:
        self._point = self._asked.get()
        if self._point is not None:
            self._vector.load(self._point)
        elif self._error is not None:
            raise self._error
        self._since_s = time.monotonic()

    def _drive(self, group: Group, job: Job, timeout_s: float) -> None:
        """In the driver's thread."""
        try:
            measured = run_job(group, job, timeout_s=timeout_s, warm_up=False)
            self.run, self._error = measured.run, measured.error
            self._vector.load(measured.final)
        except PacelineError as error:
            self._error = error
        self._asked.put(None)


class _Vector:
    """A module's parameters and running buffers as one vector [d], buffers last."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        self._buffers = [b for b in model.buffers() if b.is_floating_point()]
        everything = [*self._parameters, *self._buffers]
        if not self._parameters:
            raise InputError("attach: the model has no parameter that is trained")
        kinds = {(str(t.dtype), t.device.type) for t in everything}
        if len(kinds) > 1:
            raise InputError(f"attach: parameters and buffers must be alike, not {sorted(kinds)}")
        if kinds != {("torch.float32", "cpu")} and kinds != {("torch.float64", "cpu")}:
            raise InputError(f"attach: gloo averages float32 or float64 on the CPU, not {sorted(kinds)}")
        self.num_buffers = sum(b.numel() for b in self._buffers)

    def value(self) -> Tensor:
        """Where the model is."""
        return torch.cat([t.detach().reshape(-1) for t in (*self._parameters, *self._buffers)])

    def load(self, x: Tensor) -> None:
        """Move the model to ``x``."""
        offset = 0
        with torch.no_grad():
            for tensor in (*self._parameters, *self._buffers):
                tensor.copy_(x[offset : offset + tensor.numel()].view_as(tensor))
                offset += tensor.numel()

    def gradient(self, point: Tensor) -> Tensor:
        """What ``backward`` has left; for the buffers, old value minus new."""
        parts = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self._parameters]
        if self._buffers:
            new = torch.cat([b.detach().reshape(-1) for b in self._buffers])
            parts.append(point[-self.num_buffers :] - new)
        return torch.cat(parts)


class _FromTorch:
    """The update rule of a torch optimiser, with whatever learning rate it has at the time.

    The scheme keeps the moments, since it may average them; those of the torch optimiser stay empty.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        if len(optimizer.param_groups) != 1:
            raise InputError(
                f"attach: the optimizer has {len(optimizer.param_groups)} parameter groups; give it one"
            )
        self._rule()

    def _rule(self) -> Optimizer:
        (group,) = self._optimizer.param_groups
        kind = type(self._optimizer)
        if group.get("maximize") or group.get("amsgrad") or group.get("dampening"):
            raise InputError("attach: maximize, amsgrad and dampening are not supported")
        if kind is torch.optim.SGD:
            return Sgd(float(group["lr"]), group["momentum"], group["nesterov"], group["weight_decay"])
        if kind in (torch.optim.Adam, torch.optim.AdamW):
            decoupled = kind is torch.optim.AdamW
            settings = (AdamWSettings if decoupled else AdamSettings)(
                lr=float(group["lr"]), beta1=group["betas"][0], beta2=group["betas"][1],
                eps=group["eps"], weight_decay=group["weight_decay"],
            )  # fmt: skip
            return Adam(settings, decoupled=decoupled)
        raise InputError(f"attach: torch.optim.{kind.__name__} is not supported; use SGD, Adam or AdamW")

    def init(self, x: Tensor) -> State:
        """The state before the first update at ``x``."""
        return self._rule().init(x)

    def update(self, x: Tensor, gradient: Tensor, state: State) -> tuple[Tensor, State]:
        """One step from ``x``."""
        return self._rule().update(x, gradient, state)

    def lr_at(self, k: int) -> float:
        """The learning rate now."""
        return self._rule().lr_at(k)


@contextmanager
def attach(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    scheme: str | Mapping[str, Any],
    *,
    steps: int,
    seed: int = 0,
    timeout_s: float = 60.0,
    records: Path | str | None = None,
) -> Iterator[Attached]:
    """Average ``model`` with those of the other processes of this torchrun job, as ``scheme`` says.

    Args:
        model: on the CPU; the same initial parameters on all ranks.
        optimizer: SGD, Adam or AdamW with one parameter group; a scheduler may change its learning rate.
        scheme: as in a scenario: ``"all_reduce"``, or ``{"gossip": {"topology": "ring"}}``.
        steps: how many times ``step`` will be called, the same on all ranks.
        seed: of the scheme's random choices.
        timeout_s: how long a wait for others may last.
        records: a folder for ``gradient_s_RANK.csv``, which a scenario's ``compute.trace`` reads.

    Raises:
        InputError: the model, the optimiser, the scheme or the surroundings will not do.
        RunError: another rank was lost, or the loop ended too early.
    """
    if steps < 1:
        raise InputError(f"attach: steps is {steps}; at least one is needed")
    rule = _FromTorch(optimizer)
    vector = _Vector(model)
    entry = _entry(scheme)
    group, ours = _group(timeout_s)
    worker = Attached(model, group.rank, group.size)
    x = vector.value()
    hosts = Network(
        ("here",), (0,) * group.size, (), ((0.0,),), ((float("inf"),),)
    )  # real messages need no model of one
    job = Job(
        scheme=SCHEMES[entry.name],
        options=entry.options,
        label=entry.name,
        workers=group.size,
        seed=seed,
        start=x,
        optimizer=WithBuffers(rule, vector.num_buffers) if vector.num_buffers else rule,
        problem=cast("Problem", _Loop(worker)),
        task=None,
        bytes_per_parameter=x.element_size(),
        compute=ComputeModel(Compute.model_validate({"time": "0 s"}), (), seed),
        transfer=TransferModel(hosts),
        all_reduce="gloo_ring",
        segments=worker._segments,
        every=steps,
        on="mean",
        max_iterations=steps,
    )
    SCHEMES[entry.name].check(entry.options, group.size)
    thread = threading.Thread(target=worker._drive, args=(group, job, timeout_s), daemon=True)
    thread.start()
    worker._next()
    try:
        yield worker
    finally:
        worker._answered.put(None)  # nobody waits for it where all steps were done
        thread.join()
        if records is not None:
            _write_times(Path(records), group.rank, worker.gradient_s)
        if ours and worker._error is None:
            leave(group)
    if worker._error is not None:
        raise worker._error


class _Loop:
    """What the driver takes for a workload: its gradients come from the loop; nothing is scored."""

    workload = None

    def __init__(self, worker: Attached) -> None:
        self.gradient = worker.gradient


def _entry(scheme: str | Mapping[str, Any]) -> SchemeEntry:
    try:
        return SchemeEntry.model_validate(scheme)
    except ValidationError as error:
        first = explain(error, SchemeEntry, scheme)[0]
        where = f"{dotted(first.at)}: " if first.at else ""
        raise InputError(f"attach: {where}{one_line(first.message)}") from error


def _group(timeout_s: float) -> tuple[Group, bool]:
    """The processes of this job, and whether they were joined here."""
    if dist.is_initialized():
        if dist.get_backend() != "gloo":
            raise InputError(
                f"attach: the process group is {dist.get_backend()}; initialise it with gloo, or not at all"
            )
        store, rank = dist.distributed_c10d._get_default_store(), dist.get_rank()
        times = store.add(f"attached/{rank}", 1)  # facts of an earlier time are still there
        return Group(rank, dist.get_world_size(), PrefixStore(f"attached {times}", store)), False
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise InputError(f"attach: {', '.join(missing)} not set: start this script with torchrun")
    if os.environ["MASTER_ADDR"] in ("127.0.0.1", "localhost"):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    threads = torch.get_num_threads()
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    group = join(torchrun_store(os.environ, timeout_s), rank, size, timeout_s)
    torch.set_num_threads(threads)  # the loop's own choice
    return group, True


def _write_times(folder: Path, rank: int, durations_s: list[float]) -> None:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["duration [s]"])
    rows.writerows([repr(value)] for value in durations_s)
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"gradient_s_{rank}.csv", text.getvalue())
