"""The demo with two jobs beside the demo with one: needs two idle cores.

python -m benchmarks.cores
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Final

from benchmarks.bars import Part, at_most, print_bars

DEMO: Final = "scenarios/four-regions.yaml"
ROUNDS: Final = 2
JOBS: Final = (1, 2)


def main() -> None:
    """Measure and print."""
    print_bars(measure().bars)


def measure() -> Part:
    """One bar: medians of rounds in turns."""
    times_s: Mapping[int, list[float]] = {jobs: [] for jobs in JOBS}
    for _ in range(ROUNDS):
        for jobs, each in times_s.items():
            with tempfile.TemporaryDirectory() as folder:
                command = [sys.executable, "-m", "paceline", "simulate", DEMO, "--jobs", str(jobs)]
                begin_s = time.perf_counter()
                subprocess.run([*command, "--out", f"{folder}/out"], check=True, capture_output=True)
                each.append(time.perf_counter() - begin_s)
    ratio = statistics.median(two / one for one, two in zip(times_s[1], times_s[2], strict=True))
    seconds = ", ".join(f"{jobs}: {statistics.median(each):.1f} s" for jobs, each in times_s.items())
    detail = f"seconds by jobs {seconds}; load {os.getloadavg()[0]:.1f}"
    return Part((at_most("the demo with `--jobs 2` beside `--jobs 1`", 0.6, ratio, "times", detail),))


if __name__ == "__main__":
    main()
