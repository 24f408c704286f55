"""A replica of torchft is killed or stopped over gloo: seconds until the other commits, and it does.

    pip install torchft        (0.2.0 was measured)
    python -m benchmarks.torchft_storm

Two replica groups of one process each on loopback, with torchft's lighthouse and defaults. A step computes
for 50 ms (asleep) and averages 4 MB; the victim starts again 2 s after a kill, and continues 3 or 15 s after
a stop. Writes a section of docs/checks.md; without torchft it says so, and ends with status 2.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import torch

from benchmarks.papers import ROOT
from docs.make.page import renewed
from paceline.sim.config.files import write_atomically

PAGE: Final = ROOT / "docs" / "checks.md"
MARK: Final = "<!-- Below: python -m benchmarks.torchft_storm -->\n"
REPEATS: Final = 5
COMPUTE_S: Final = 0.05
ELEMENTS: Final = 1_000_000
SETTLE_S: Final = 3.0
LIMIT_S: Final = 120.0


@dataclass(frozen=True)
class Case:
    """A kind of fault; ``back_after_s``: from the signal to the victim's start or continuation."""

    name: str
    sign: signal.Signals
    back_after_s: float


CASES: Final = (
    Case("killed, started again after 2 s", signal.SIGKILL, 2.0),
    Case("stopped for 3 s", signal.SIGSTOP, 3.0),
    Case("stopped for 15 s", signal.SIGSTOP, 15.0),
)


@dataclass(frozen=True)
class Recovery:
    """Seconds from the fault until the survivor's next commit, and until the victim's."""

    survivor_s: float
    victim_s: float


def replica(number: int, lighthouse: str, log: Path) -> None:
    """Train until killed; each commit is a line of ``log``: time, step, members."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]
    from torchft import Manager, ProcessGroupGloo

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    model = torch.zeros(ELEMENTS)
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=60)),
        load_state_dict=model.copy_,
        state_dict=lambda: model,
        min_replica_size=1,
        use_async_quorum=False,
        replica_id=f"replica_{number}",
        store_addr="127.0.0.1",
        store_port=store.port,
        lighthouse_addr=lighthouse,
        hostname="127.0.0.1",
        rank=0,
        world_size=1,
    )
    with log.open("a", buffering=1) as lines:
        while True:
            manager.start_quorum()
            time.sleep(COMPUTE_S)
            update = torch.ones(ELEMENTS)
            manager.allreduce(update).wait()
            if manager.should_commit():
                model += update
                commit = (time.time(), manager.current_step(), manager.num_participants())
                lines.write(json.dumps(commit) + "\n")


def measure(case: Case) -> list[Recovery]:
    """The recoveries from faults of one kind, one after the other."""
    from torchft.coordination import LighthouseServer

    os.environ.setdefault("RUST_LOG", "error")
    server = LighthouseServer(bind="127.0.0.1:0", min_replicas=1)
    with tempfile.TemporaryDirectory() as folder:
        logs = [Path(folder, f"{number}.jsonl") for number in (0, 1)]
        processes = [_start(number, server.address(), logs[number]) for number in (0, 1)]
        try:
            return [_strike(case, processes, server.address(), logs) for _ in range(REPEATS)]
        finally:
            for process in processes:
                process.kill()
                process.wait()
            server.shutdown()


def _strike(case: Case, processes: list[Any], lighthouse: str, logs: Sequence[Path]) -> Recovery:
    _await(lambda: all(commit[2] == 2 for log in logs for commit in _commits(log)[-1:] or [(0, 0, 0)]))
    time.sleep(SETTLE_S)
    struck_s = time.time()
    processes[1].send_signal(case.sign)
    time.sleep(case.back_after_s)
    if case.sign == signal.SIGKILL:
        processes[1].wait()
        processes[1] = _start(1, lighthouse, logs[1])
    else:
        processes[1].send_signal(signal.SIGCONT)
    return Recovery(*(_first_after(struck_s, log) - struck_s for log in logs))


def _first_after(moment_s: float, log: Path) -> float:
    _await(lambda: any(commit[0] > moment_s for commit in _commits(log)))
    return next(float(commit[0]) for commit in _commits(log) if commit[0] > moment_s)


def _await(true: Any) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not true():
        if time.monotonic() > until_s:
            raise TimeoutError(f"no commit within {LIMIT_S:g} s")
        time.sleep(0.05)


def _commits(log: Path) -> list[tuple[float, int, int]]:
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text("utf-8").splitlines() if line.endswith("]")]


def _start(number: int, lighthouse: str, log: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "benchmarks.torchft_storm", str(number), lighthouse, str(log)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, **quiet)  # type: ignore[call-overload,no-any-return]


def section(results: Sequence[tuple[Case, Sequence[Recovery]]]) -> str:
    """The table, in Markdown."""
    rows = "\n".join(
        f"| {case.name} | {_median_and_range([each.survivor_s for each in recoveries])} "
        f"| {_median_and_range([each.victim_s for each in recoveries])} |"
        for case, recoveries in results
    )
    return (
        f"\ntorchft {version('torchft')}, {REPEATS} faults of each kind, median (least to most):\n\n"
        f"| the victim is | survivor commits after | victim commits after |\n| --- | ---: | ---: |\n{rows}\n"
    )


def _median_and_range(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.1f} s ({min(values):.1f} to {max(values):.1f})"


def main() -> int:
    """Measure and renew the page; or be a replica."""
    if importlib.util.find_spec("torchft") is None:
        sys.stderr.write("benchmarks.torchft_storm: needs torchft: pip install torchft\n")
        return 2
    if len(sys.argv) > 1:
        replica(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
    results = [(case, measure(case)) for case in CASES]
    for case, recoveries in results:
        sys.stderr.write(f"{case.name}: {recoveries}\n")
    write_atomically(PAGE, renewed(PAGE.read_text(encoding="utf-8"), MARK, section(results)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
