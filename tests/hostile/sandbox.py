"""One command line on one piece of hostile input, in a process of its own with little time and memory."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import torch

from paceline.extras.report import bundle
from paceline.sim.config.files import write_json
from paceline.sim.experiments.simulate import begin, simulate
from paceline.sim.network import profile as profiles
from paceline.sim.records.comparison import compare
from paceline.sim.records.folder import VALIDATION_FILE, write_results
from paceline.sim.records.formats.result_files import write_checksums
from paceline.sim.scenario.schema import dump, parse
from tests.support import warm
from tests.support.made_measurements import TRUE, exact_fit, measurements
from tests.support.made_runs import made_run

LARGE_BYTES: Final = 2**26
"""A longer file may be one that only says so, and holds nothing."""
MAX_PROCESSOR_S: Final = 10
"""A command that computes for longer is ended by the kernel."""
MAX_WALL_S: Final = 60.0
"""A command that takes longer hangs, however busy this machine is."""
MAX_DATA_BYTES: Final = 2 * 2**30
"""What a command may take beyond what Python and its libraries have when it begins."""

VALIDATED: Final = """\
name: rack
workload: {task: digits-mlp, payload: 1 MB}
cluster: {workers: 2, network: {latency: 1 ms, bandwidth: 100 Mbit/s}}
schemes: [all_reduce, local_sgd]
stop: {target: {metric: test_accuracy, value: 0.95}}
"""
"""The resolved scenario of a validation."""

SMALL: Final = """\
name: small
seed: 3
workload: {task: quadratic, dimension: 10, examples: 64, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 2, compute: {time: 5 ms}, network: {latency: 1 ms, bandwidth: 1 Gbit/s}}
evaluate: {every: 2 steps}
schemes: [all_reduce, ad_psgd]
stop: {max_iterations: 4}
"""
"""A scenario that takes little time."""

TWICE: Final = "repeats: 2\n"
"""What the scenario of the unfinished folder has more."""

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
        damage: done to what ``given`` names; absent: it is not there.
        given: ``r``, a result folder; ``unfinished``, one whose runs are not complete, which stands in ``r``;
            or a file: ``bundle.json``, ``measured.json``, ``profile.yaml``.
        sealed: the damaged folder gets checksums that fit, as if somebody had seen to that.
        fails: the input is not wrong by itself, but its run fails.
    """

    name: str
    argv: tuple[str, ...]
    says: tuple[str, ...]
    files: dict[str, str | bytes] = field(default_factory=dict)
    damage: Callable[[Path], None] | None = None
    given: str = "r"
    sealed: bool = False
    fails: bool = False


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status (negative: the signal), and its two streams."""

    status: int | None
    out: str
    err: str


def lay_out(case: Case, folder: Path, good: Path) -> None:
    """Write the files of a case; ``good`` is where there are things as they should be."""
    if case.damage is not None:
        there = folder / ("r" if case.given == "unfinished" else case.given)
        if (source := provide(case.given, good)).is_file():
            shutil.copy2(source, there)
        else:
            shutil.copytree(source, there)
        case.damage(there)
        if case.sealed:
            write_checksums(there)
    for name, content in case.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str) and content.startswith("->"):
            path.symlink_to(content[2:])
        elif isinstance(content, str):
            path.write_text(content, encoding="utf-8", errors="surrogateescape")
        else:
            path.write_bytes(content)


def provide(name: str, good: Path) -> Path:
    """Something as it should be, see ``Case.given``; it is made when it is first wanted."""
    path = good / name
    if not path.exists():
        match name:
            case "bundle.json":
                write_good_bundle(path)
            case "measured.json":
                write_json(measurements(TRUE), path)
            case "profile.yaml":
                path.write_text(profiles.dump(exact_fit().profile))
            case _:
                raise ValueError(name)
    return path


def write_good(folder: Path, text: str) -> None:
    """Write the results of a scenario as ``r``, and the first of two runs as ``unfinished``."""
    with begin(parse(text), torch.device("cpu")) as (scenario, _):
        write_results(folder / "r", dump(scenario), scenario.name, list(simulate(scenario)))
    kept = begin(parse(text + TWICE), torch.device("cpu"), folder / "unfinished", say=lambda line: None)
    with kept as (scenario, parts):
        next(iter(simulate(scenario, parts=parts)))


def write_good_bundle(path: Path) -> None:
    """Write the bundle of a validation."""
    predicted = [made_run(label, reached_s=10.0 + k) for k, label in enumerate(("all_reduce", "local_sgd"))]
    measured = [replace(run, source="measured") for run in predicted]
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work) / "validated"
        comparison = compare("rack", predicted, measured, [], set(), True, [])
        added = {VALIDATION_FILE: json.dumps(comparison)}
        write_results(folder, VALIDATED, "rack", [*predicted, *measured], added=added)
        bundle.write_bundle(folder, path)


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder, hidden ones too; of a large one, and of what is none, the size counts."""

    def content(path: Path) -> bytes:
        size = path.lstat().st_size
        plain = path.is_file() and not path.is_symlink() and size <= LARGE_BYTES
        return path.read_bytes() if plain else str(size).encode()

    return {str(path.relative_to(folder)): content(path) for path in sorted(folder.rglob("*"))}


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
