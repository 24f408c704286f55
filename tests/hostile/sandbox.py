"""One command line on one piece of hostile input, in a process of its own with little time and memory."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import torch

from paceline.sim.experiments.simulate import begin, simulate
from paceline.sim.records.folder import CHECKSUMS_FILE, write_checksums, write_results
from paceline.sim.scenario.schema import dump, parse
from tests.support import warm

MAX_PROCESSOR_S: Final = 10
"""A command that computes for longer is ended by the kernel."""
MAX_WALL_S: Final = 60.0
"""A command that takes longer hangs, however busy this machine is."""
MAX_DATA_BYTES: Final = 2 * 2**30
"""What a command may take beyond what Python and its libraries have when it begins."""

ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
MISTAKES: Final = 5
"""Lines that one message may have: a scenario's first mistakes, each on a line."""
MESSAGE: Final = 1200
"""Letters that a line of a message may have."""


@dataclass(frozen=True)
class Case:
    """A piece of input, and what has to come of it.

    Attributes:
        name: for the test's id.
        argv: of ``paceline``; runs in a folder with ``files``.
        says: what the message has to name.
        files: name -> content; a link where it begins with ``->``.
        damage: done to a result folder that stands in ``r``; absent: there is none.
        sealed: the damaged folder gets checksums that fit, as if somebody had seen to that.
        fails: the input is not wrong by itself, but its run fails.
    """

    name: str
    argv: tuple[str, ...]
    says: tuple[str, ...]
    files: dict[str, str | bytes] = field(default_factory=dict)
    damage: Callable[[Path], None] | None = None
    sealed: bool = False
    fails: bool = False


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status (negative: the signal), and its two streams."""

    status: int | None
    out: str
    err: str


def lay_out(case: Case, folder: Path, results: Path) -> None:
    """Write the files of a case; ``results`` is a result folder that is as it should be."""
    if case.damage is not None:
        shutil.copytree(results, folder / "r")
        (folder / "r" / CHECKSUMS_FILE).unlink()  # as an older version wrote it: else these find everything
        case.damage(folder / "r")
        if case.sealed:
            write_checksums(folder / "r")
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str) and content.startswith("->"):
            path.symlink_to(content[2:])
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8", errors="surrogateescape")
        else:
            path.write_bytes(content)


def write_good(folder: Path, text: str) -> None:
    """Write the results of a scenario."""
    with begin(parse(text), torch.device("cpu")) as (scenario, _):
        write_results(folder, dump(scenario), scenario.name, list(simulate(scenario)))


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, hidden ones too; what is no plain file counts as its kind."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() and not path.is_symlink() else b""
        for path in sorted(folder.rglob("*"))
    }


def run(argv: tuple[str, ...], folder: Path, streams: Path) -> Ended:
    """Run ``paceline ARGV`` in ``folder``; its output goes to files in ``streams``."""
    process = warm.forks().Process(target=_be, args=(argv, str(folder), str(streams)))
    process.start()
    process.join(MAX_WALL_S)
    status = process.exitcode
    if status is None:
        process.kill()
        process.join()
    process.close()
    out, err = ((streams / name).read_bytes().decode(errors="replace") for name in ("out", "err"))
    return Ended(status, out, err)


def run_anew(argv: tuple[str, ...], folder: Path, streams: Path) -> Ended:
    """Run ``python -m paceline ARGV`` as a process that has loaded nothing before; otherwise like ``run``."""
    environment = {**os.environ, **ENVIRONMENT, "PYTHONPATH": str(Path(__file__).parents[2])}
    with (streams / "out").open("wb") as out, (streams / "err").open("wb") as err:
        process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *argv], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
            stdout=out, stderr=err,
        )  # fmt: skip
        try:
            status: int | None = process.wait(MAX_WALL_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
    return Ended(status, *((streams / name).read_bytes().decode(errors="replace") for name in ("out", "err")))


def _be(argv: tuple[str, ...], folder: str, streams: str) -> None:
    for number, name in ((1, "out"), (2, "err")):
        descriptor = os.open(Path(streams) / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
    os.chdir(folder)
    os.environ |= ENVIRONMENT
    data = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + MAX_DATA_BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    begun_s = resource.getrusage(resource.RUSAGE_SELF)
    limit_s = int(begun_s.ru_utime + begun_s.ru_stime) + MAX_PROCESSOR_S
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s))
    sys.argv = ["paceline", *argv]
    with contextlib.suppress(OSError):
        sys.stdin.close()
    from paceline.commands.app import main

    main()


def find_faults(case: Case, ended: Ended, before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    """Say what is wrong with how a case ended; nothing where all is as it should be."""
    faults = []
    if ended.status is None:
        return ["it hangs"]
    if ended.status != 2 - case.fails:
        faults.append(f"exit status {ended.status}, not {2 - case.fails}")
    if "Traceback" in ended.err or "Traceback" in ended.out:
        faults.append("a traceback")
    lines = ended.err.strip().splitlines()
    lines = [line for line in lines if not line.startswith(("Usage: ", "Try 'paceline", "going on with"))]
    if not 1 <= len([line for line in lines if line.strip()]) <= MISTAKES:
        faults.append(f"{len(lines)} lines instead of one message")
    if any(len(line) > MESSAGE for line in lines):
        faults.append(f"a line of {max(map(len, lines))} letters")
    faults += [f"does not say {word!r}" for word in case.says if word not in ended.err]
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        faults.append(f"wrote or lost {', '.join(changed[:5])}")
    if ended.out and not case.fails:
        faults.append("output beside the message")
    return faults
