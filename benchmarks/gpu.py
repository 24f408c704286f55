"""``make gpu``: measure what needs a GPU, in at most ten minutes, and write ``docs/measurements.md``.

    python -m benchmarks.gpu [--out PAGE]

Every part runs in a process of its own, with a limit on its time: what fails or hangs is written down with
its error, and the rest goes on. Without a GPU nothing is written, and the exit status is 2.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu_page import MachineFacts, PagePart, page
from benchmarks.gpu_parts import parts
from paceline.sim.compute.timing import device_name
from paceline.sim.config.files import write_atomically


def run_part(name: str, limit_s: float, command: Sequence[str], environment: Mapping[str, str]) -> PagePart:
    """Run a part in a process group of its own; its last line of output is its figures."""
    begin_s = time.monotonic()
    child = subprocess.Popen(
        command,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    error, figures = "", None
    try:
        out, err = child.communicate(timeout=limit_s)
        lines = [line for line in err.splitlines() if line.strip()]
        if child.returncode == 0:
            figures = json.loads(out.splitlines()[-1])
        else:
            raised = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Refused)\b", line)]
            error = [*lines, *raised][-1] if lines else f"exit status {child.returncode}"
    except subprocess.TimeoutExpired:
        error = f"not done after {limit_s:g} s"
    finally:
        with contextlib.suppress(ProcessLookupError):  # with whatever it has left behind
            os.killpg(child.pid, signal.SIGKILL)
        child.communicate()
    return PagePart(name, figures, error, time.monotonic() - begin_s)


def facts(device: torch.device) -> MachineFacts:
    """The machine, today's date and the versions."""
    return MachineFacts(
        machine=f"{device_name(device)}, {os.cpu_count()} cores, {platform.machine()}",
        date=datetime.now(UTC).date().isoformat(),
        versions=f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}",
    )


def measure(device: torch.device) -> list[PagePart]:
    """Run every part, one after the other."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = []
    for name, (limit_s, _) in parts(device).items():
        sys.stderr.write(f"{name}: at most {limit_s:g} s\n")
        command = [sys.executable, "-m", "benchmarks.gpu", "--part", name, "--device", device.type]
        done.append(run_part(name, limit_s, command, environment))
    return done


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/measurements.md"), help="the page to write")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    device = torch.device(arguments.device)
    if arguments.part is not None:
        torch.set_num_threads(1)
        figures: dict[str, Any] = parts(device)[arguments.part][1]()
        sys.stdout.write(json.dumps(figures) + "\n")
        return 0
    if not torch.cuda.is_available():
        sys.stderr.write("make gpu: this machine has no CUDA device, so there is nothing to measure\n")
        return 2
    done = measure(device)
    write_atomically(arguments.out, page(facts(device), done))
    sys.stderr.write(f"wrote {arguments.out}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
