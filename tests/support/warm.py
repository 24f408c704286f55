"""Processes forked from one that has loaded torch: as if started anew, in a twentieth of the time.

A process gets the environment, the folder, the module path, the standard streams and the session that one
started anew would have. What a start itself promises is for tests with a genuine one.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest
import torch.distributed.run

_PRELOAD = [
    "tests.support.cluster_pool", "tests.support.factory", "tests.contract.cases", "sklearn.datasets",
    "paceline.commands.app", "paceline.realrun.attach.attach", "paceline.realrun.launch.cells",
    "paceline.realrun.calibration.probes", "torch.distributed.run", "torch._dynamo",
    "paceline.reports.paper_files", "paceline.extras.replay.verify", "paceline.sim.topology.search.find",
    "networkx", "pyarrow.parquet", "paceline.reports.page", "tests.hostile.sandbox",
]  # fmt: skip


def forks() -> ForkServerContext:
    """Where processes come from; the first of them waits until torch is loaded."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOAD)
    return context


class WarmProcess:
    """What launchers use of ``subprocess.Popen``; standard error is a pipe where that is asked for."""

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], **options: Any) -> None:
        context = forks()
        stdin, to_stdin = context.Pipe(duplex=False)
        from_stdout, stdout = context.Pipe(duplex=False)
        from_stderr, stderr = context.Pipe(duplex=False) if "stderr" in options else (None, None)
        streams = [end for end in (stdin, stdout, stderr) if end is not None]
        self._process = context.Process(target=_be, args=(argv, dict(env), Path.cwd(), streams))
        self._process.start()
        self.stdin, self.stdout = _file(to_stdin, "wb"), _file(from_stdout, "rb")
        self.stderr = None if from_stderr is None else _file(from_stderr, "rb")
        for end in streams:
            end.close()

    @property
    def pid(self) -> int:
        """Its number."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit status of one that has ended."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The exit status of one that has ended."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit status."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def kill(self) -> None:
        """End it."""
        self._process.kill()


def popen(rank: int, argv: list[str], env: Mapping[str, str], /, **options: Any) -> subprocess.Popen[bytes]:
    """For ``paceline.realrun.launch.processes.Processes``: start ``python -m MODULE ...``."""
    return cast("subprocess.Popen[bytes]", WarmProcess(argv, env=env, **options))


def torchrun(*words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``torchrun OPTIONS SCRIPT``, whose ranks are forked; a thread gets none of its signal handlers."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    forks()
    *options, script = words
    forked = ["--run-path", "--start-method", "forkserver", str(Path(script).absolute())]
    with ThreadPoolExecutor(1) as beside:
        beside.submit(torch.distributed.run.main, [*options, *forked]).result()


def _file(end: Connection, mode: str) -> BinaryIO:
    with closing(end):
        return cast("BinaryIO", os.fdopen(os.dup(end.fileno()), mode))


def _be(argv: Sequence[str], env: Mapping[str, str], folder: Path, streams: Sequence[Connection]) -> None:
    """In the new process: be what ``argv`` asks for."""
    for number, end in enumerate(streams):
        with closing(end):
            os.dup2(end.fileno(), number)
    sys.stdin = os.fdopen(0, closefd=False)  # multiprocessing has closed it
    os.setsid()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    installed = [path for path in sys.path if path.startswith((sys.prefix, sys.base_prefix))]
    sys.path[:] = [str(folder), *filter(None, env.get("PYTHONPATH", "").split(os.pathsep)), *installed]
    _, dash_m, module, *arguments = argv
    assert dash_m == "-m"
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
