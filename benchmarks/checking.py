"""How long `paceline check` of 1,000 workers takes, start-up included.

    python -m benchmarks.checking             the schemes that take longest, and all-reduce
    python -m benchmarks.checking SCHEME...   others

Seconds of the processor, and of the wall clock, of the whole command.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from benchmarks.bars import Bar, Part, at_most, print_bars

LIMIT_S: Final = 10.0
SCHEMES: Final = ("all_reduce", "gossip", "adaptive_local_sgd", "ad_psgd")
OPTIONS: Final = {"gossip": "{gossip: {topology: one_peer_exponential}}"}
"""Of schemes that need some."""
SCENARIO: Final = """\
name: check-many
workload: {{task: digits-mlp, batch_size: 32, optimizer: {{lr: 0.1}}}}
cluster:
  workers: 1000
  compute: {{time: 50 ms, jitter: {{lognormal: {{cv: 0.1}}}}}}
  network: {{latency: 1 ms, bandwidth: 1 Gbit/s}}
schemes: [{scheme}]
stop: {{max_iterations: 100}}
"""


def main() -> None:
    """Measure and print."""
    print_bars(measure_bars(sys.argv[1:] or SCHEMES))


def measure() -> Part:
    """The schemes that take longest, for the page."""
    return Part(tuple(measure_bars(SCHEMES)))


def measure_bars(schemes: Sequence[str]) -> Iterator[Bar]:
    """A bar for each scheme."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "check-many.yaml"
        command = [sys.executable, "-m", "paceline", "check", str(path), "--json"]
        for scheme in schemes:
            path.write_text(SCENARIO.format(scheme=OPTIONS.get(scheme, scheme)), encoding="utf-8")
            before_s, begin_s = processor_s(), time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            taken_s = time.perf_counter() - begin_s
            detail = f"processor {processor_s() - before_s:.1f} s"
            yield at_most(f"`paceline check`, 1,000 workers, {scheme}", LIMIT_S, taken_s, "s", detail)


def processor_s() -> float:
    """Seconds of a processor of all commands so far."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
