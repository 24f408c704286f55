"""What `paceline simulate` of one step takes, against `import torch` alone: medians of interleaved runs.

python benchmarks/startup.py
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

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
    for name, each in times.items():  # the first round fills the page cache
        ratios = [a / b for a, b in zip(each[1:], times["import torch"][1:], strict=True)]
        median_s, ratio = statistics.median(each[1:]), statistics.median(ratios)
        print(f"{name:18} {median_s:6.2f} s  {ratio:5.2f} of import torch")


if __name__ == "__main__":
    main()
