"""Processes that stay, for tests of the cluster driver: they run one job after another.

The start-up of torch is paid once, by multiprocessing's fork server. A task is the name of a module and of a
function ``f(group, **options)`` in it, and the answer is what that returns; both as JSON.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import tempfile
import traceback
from collections.abc import Callable, Iterable
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore, PrefixStore

from paceline.realrun.group.group import Group, join
from tests.support.warm import forks

_AFTER_S = 30.0
"""How long the others are left after one has raised."""
_SILENT_S = 100.0
"""How long a task may take before everybody tells where it is."""


def _serve(rank: int, size: int, folder: str, pipe: Connection) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    stacks = _stacks(folder, rank).open("w")
    group = join(FileStore(str(Path(folder) / "store"), size), rank, size, 60.0)
    while (asked := pipe.recv_bytes()) != b"":
        faulthandler.dump_traceback_later(_SILENT_S, file=stacks)
        module, function, options = json.loads(asked)
        try:
            answer = {"answer": getattr(importlib.import_module(module), function)(group, **options)}
        except Exception:
            answer = {"raised": traceback.format_exc()}
        faulthandler.cancel_dump_traceback_later()
        answer["broken"] = group.broken
        pipe.send_bytes(json.dumps(answer).encode())
    os._exit(0)  # helper threads of a failed run may still block in gloo


def _stacks(folder: str, rank: int) -> Path:
    return Path(folder) / f"stacks{rank}"


class Pool:
    """``size`` processes in one group.

    Attributes:
        broken: a run of theirs has failed, so that no other can follow.
    """

    def __init__(self, size: int) -> None:
        # A process forked from one in which a module has asked CUDA cannot use CUDA.
        context = get_context("spawn") if torch.cuda.is_available() else forks()
        self.size = size
        self.broken = False
        self._folder = tempfile.TemporaryDirectory()
        self._pipes: list[Connection] = []
        self.processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(rank, size, self._folder.name, there), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self.processes.append(process)

    def ask(self, task: Callable[..., Any], /, **options: Any) -> list[Any]:
        """Have every process call ``task(group, **options)``; None for one that has died meanwhile."""
        message = json.dumps([task.__module__, task.__name__, options]).encode()
        for pipe in self._pipes:
            pipe.send_bytes(message)
        answers: list[Any] = [None] * self.size
        silent, raised = set(range(self.size)), ""
        while silent:
            limit_s = _AFTER_S if raised else _SILENT_S + _AFTER_S
            ready = wait([self._pipes[rank] for rank in silent], timeout=limit_s)
            if not ready:
                self.broken = True
                raised = raised or self._where(silent)
                break
            for rank in [r for r in silent if self._pipes[r] in ready]:
                silent.discard(rank)
                try:
                    answer = json.loads(self._pipes[rank].recv_bytes())
                    self.broken |= "raised" in answer or answer["broken"]
                except EOFError:
                    self.broken = True
                    continue
                if "raised" in answer:
                    raised = raised or f"rank {rank}:\n{answer['raised']}"
                answers[rank] = answer.get("answer")
        if raised:
            raise AssertionError(raised)
        return answers

    def _where(self, silent: Iterable[int]) -> str:
        """Where those are that do not answer."""
        stacks = [f"rank {rank}:\n{_stacks(self._folder.name, rank).read_text()}" for rank in sorted(silent)]
        return "\n".join(["no answer", *stacks])

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            try:
                pipe.send_bytes(b"")
            except BrokenPipeError:
                continue
        for process in self.processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join()
        self._folder.cleanup()


class Pools:
    """One pool of each size, started when it is first asked for and anew once it is broken."""

    def __init__(self) -> None:
        self._started: dict[int, Pool] = {}

    def of(self, size: int) -> Pool:
        """``size`` processes that can run a job."""
        if size in self._started and self._started[size].broken:
            self._started.pop(size).close()
        if size not in self._started:
            self._started[size] = Pool(size)
        return self._started[size]

    def close(self) -> None:
        """End them all."""
        for pool in self._started.values():
            pool.close()


def ask_once(size: int, task: Callable[..., Any], /, **options: Any) -> list[Any]:
    """As ``Pool.ask``, of processes that are there for this alone: a task may leave them of no use."""
    pool = Pool(size)
    try:
        return pool.ask(task, **options)
    finally:
        pool.close()


def default_group(group: Group) -> None:
    """In a process of a pool: make torch's default group, as a script does that torchrun has started."""
    if not dist.is_initialized():
        store = PrefixStore("default of a script", group.store)
        dist.init_process_group("gloo", store=store, rank=group.rank, world_size=group.size)
