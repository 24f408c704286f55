"""What `paceline simulate` of one step takes, against `import torch` alone: medians of interleaved runs.

python -m benchmarks.startup
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.bars import Part, at_most, print_bars

ROUNDS: Final = 7
SCENARIO: Final = """\
name: one-step
workload: {task: digits-mlp, batch_size: 32, optimizer: {lr: 0.1}}
cluster:
  workers: 4
  compute: {time: 10 ms}
  network: {latency: 1 ms, bandwidth: 1 Gbit/s}
schemes: [all_reduce]
stop: {max_iterations: 1}
"""
WAYS: Final = {
    "import torch": ["-c", "import torch"],
    "import paceline": ["-c", "import paceline"],
    "paceline simulate": ["-m", "paceline", "simulate"],
}


def main() -> None:
    """Measure and print."""
    print_bars(measure().bars)


def measure() -> Part:
    """One bar, with the seconds of each way."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = Path(folder) / "one-step.yaml"
        scenario.write_text(SCENARIO, encoding="utf-8")
        ways = {**WAYS, "paceline simulate": [*WAYS["paceline simulate"], str(scenario)]}
        times: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS + 1):
            for name, arguments in ways.items():
                begin_s = time.perf_counter()
                subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
                times[name].append(time.perf_counter() - begin_s)
    # The first round fills the page cache.
    pairs = zip(times["paceline simulate"][1:], times["import torch"][1:], strict=True)
    ratio = statistics.median(simulating / importing for simulating, importing in pairs)
    detail = ", ".join(f"`{name}` {statistics.median(each[1:]):.2f} s" for name, each in times.items())
    return Part(
        (at_most("`paceline simulate` of one step beside `import torch`", 1.6, ratio, "times", detail),)
    )


if __name__ == "__main__":
    main()
