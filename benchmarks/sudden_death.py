"""Kill commands at random moments, start them again, and compare what comes out with an undisturbed start.

``python -m benchmarks.sudden_death simulate 50`` (or ``report``, ``realrun``, ``lab``): every second time by
SIGKILL, else by SIGTERM. ``lab`` is ``realrun --lab``. A line for each moment; exit status 1 if anything is
lost, differs, or is left over.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, get_args

from paceline.sim.records.folder import PARTS_FOLDER, RUN_PART, read_part, read_results, runs_of
from paceline.sim.records.run import Run

Command = Literal["simulate", "report", "realrun", "lab"]

_MARK: Final = "PACELINE_SUDDEN_DEATH"
_GONE_S: Final = 2.0
"""How long processes may outlive the one that started them."""
_SHARED_MEMORY: Final = Path("/dev/shm")
"""Where semaphores of processes are, named after who made them."""
_SYNCHRONOUS: Final = ("all_reduce", "gossip")
_SCENARIO: Final = """\
name: death
seed: 3
gradients: looped
workload: {task: quadratic, dimension: 30, examples: 128, batch_size: 4, optimizer: {lr: 0.1}}
cluster: {workers: 2, compute: {time: 5 ms, jitter: {lognormal: {cv: 0.2}}}, network: {latency: 1 ms}}
evaluate: {every: 5 steps}
schemes: [all_reduce, {gossip: {topology: ring}}, ad_psgd]
events: all
"""
_LENGTHS: Final = {
    "simulate": "stop: {max_iterations: 300}\nrepeats: 4\n",
    "report": "stop: {max_iterations: 300}\nrepeats: 2\n",
    "realrun": "stop: {max_iterations: 400}\nrepeats: 3\n",
    "lab": "stop: {max_iterations: 100}\nrepeats: 2\n",
}


@dataclass(frozen=True)
class Place:
    """A folder of one start, and of those after it.

    Attributes:
        top: holds the results, and nothing else in the end.
        temporary: where temporary files go.
        argv: the command.
    """

    top: Path
    temporary: Path
    argv: tuple[str, ...]

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command."""
        environment = {
            **os.environ,
            _MARK: str(self.top),
            "TMPDIR": str(self.temporary),
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.Popen(
            self.argv, env=environment, cwd=self.top, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    def processes(self) -> list[int]:
        """The processes that there are of the command."""
        mark = f"{_MARK}={self.top}".encode()
        pids = []
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and mark in (entry / "environ").read_bytes().split(b"\0"):
                    pids.append(int(entry.name))
            except OSError:  # it has ended meanwhile
                continue
        return pids


def place(work: Path, name: str, command: Command, source: Path) -> Place:
    """Make the folder of a start; ``source`` is the scenario, or for ``report`` the result folder."""
    top, temporary = work / name, work / f"{name}-temporary"
    top.mkdir()
    temporary.mkdir()
    argv = [sys.executable, "-m", "paceline", "realrun" if command == "lab" else command, str(source)]
    measured = ["--lab" if command == "lab" else "--processes", "--out", "r", "--timeout", "20"]
    argv += {"simulate": ["--out", "r"], "report": ["--out", "r.html"]}.get(command, measured)
    return Place(top, temporary, tuple(argv))


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def complete_runs(place: Place) -> list[Run]:
    """The runs that a dead command has left."""
    parts = sorted((place.top / "r" / PARTS_FOLDER).glob(f"{RUN_PART}-*"))
    return [read_part(path)[0] for path in parts]


def die(place: Place, after_s: float, number: signal.Signals) -> str:
    """Start the command and send it a signal; says what was wrong until its processes had ended."""
    child = place.start()
    try:
        child.wait(after_s)
    except subprocess.TimeoutExpired:
        child.send_signal(number)
    child.wait()
    end_s = time.monotonic() + _GONE_S
    while left := place.processes():
        if time.monotonic() > end_s:
            for process in left:
                os.kill(process, signal.SIGKILL)
            return f"{len(left)} processes outlive it by {_GONE_S:g} s"
        time.sleep(0.02)
    semaphores = [path.name for path in _SHARED_MEMORY.glob(f"*-{child.pid}-*")]
    return f"left over: {', '.join(semaphores)}" if semaphores else ""


def digests(runs: Sequence[Run]) -> dict[tuple[str, int], str]:
    """Of the runs whose final models are the same on any machine and at any load."""
    return {(run.label, run.seed): run.digest for run in runs if run.label in _SYNCHRONOUS}


def _without_gaps(run: Run) -> Run:
    """A run without the scores that it lacks: beside others it has the columns of their scores too."""
    scores = (
        replace(each, metrics={name: x for name, x in each.metrics.items() if x is not None})
        for each in run.evaluations
    )
    return replace(run, evaluations=tuple(scores))


def go_on(place: Place, whole: Place, command: Command) -> tuple[str, list[str]]:
    """Start a dead command again: how far it had come, and what is wrong in the end.

    Args:
        place: where it died.
        whole: where it has run undisturbed.
        command: which.
    """
    before = complete_runs(place)
    finished = (place.top / "r" / "summary.json").is_file()
    came = "finished" if finished else f"{len(before)} runs complete"
    status = place.start().wait()
    if status != (2 if finished else 0):  # finished results are not replaced
        return came, [f"exit status {status}"]
    wrong = []
    if command in ("realrun", "lab"):
        after, undisturbed = (runs_of(read_results(each.top / "r")) for each in (place, whole))
        if [_without_gaps(run) for run in after[: len(before)]] != [_without_gaps(run) for run in before]:
            wrong.append("complete runs have changed")
        if digests(after) != digests(undisturbed):
            wrong.append("other digests")
    elif contents(place.top) != contents(whole.top):
        wrong.append("other bytes")
    names = {path.name for path in place.top.iterdir()} - {path.name for path in whole.top.iterdir()}
    names |= {path.name for path in place.temporary.iterdir()}
    if names:
        wrong.append(f"left over: {', '.join(sorted(names))}")
    deadline_s = time.monotonic() + _GONE_S
    while place.processes() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if place.processes():
        wrong.append("processes are left")
    return came, wrong


def campaign(command: Command, moments: int, seed: int, work: Path) -> Iterator[tuple[str, list[str]]]:
    """Kill a command at random moments of its life; yields what was done each time, and what was wrong."""
    scenario = work / "death.yaml"
    scenario.write_text(_SCENARIO + _LENGTHS[command], encoding="utf-8")
    source = scenario
    if command == "report":
        results = place(work, "results", "simulate", scenario)
        results.start().wait()
        source = results.top / "r"
    whole = place(work, "whole", command, source)
    begun_s = time.monotonic()
    if whole.start().wait() != 0:
        raise SystemExit(f"{command} fails undisturbed")
    lasts_s = time.monotonic() - begun_s
    moment = random.Random(seed)
    for number in range(moments):
        after_s = moment.uniform(0.0, lasts_s)
        how = (signal.SIGKILL, signal.SIGTERM)[number % 2]
        dead = place(work, f"{number}", command, source)
        wrong = die(dead, after_s, how)
        came, more = go_on(dead, whole, command)
        line = f"{command} {number}: {how.name} after {after_s:.2f} of {lasts_s:.2f} s, {came}"
        yield line, [*filter(None, [wrong]), *more]


def main() -> None:
    """Print a line for each moment, and count what was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=get_args(Command))
    parser.add_argument("moments", type=int)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    good = 0
    with tempfile.TemporaryDirectory() as work:
        for line, wrong in campaign(arguments.command, arguments.moments, arguments.seed, Path(work)):
            print(f"{line}: {'; '.join(wrong) or 'good'}", flush=True)
            good += not wrong
    print(f"{arguments.command}: {good} of {arguments.moments} moments are good")
    sys.exit(good != arguments.moments)


if __name__ == "__main__":
    main()
