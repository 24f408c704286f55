"""Ten thousand draws of a synchronous scenario, by the command: seconds, on all cores, and of processors.

    python -m benchmarks.many_draws [NUMBER]

16 workers, links not shared, latency, bandwidth and time of a gradient as ranges: ``paceline sweep --sample``
with two schemes to a target on the digits.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import grid
from benchmarks.bars import Bar, at_most, print_bars

DRAWS: Final = 10_000
SCENARIO: Final[dict[str, Any]] = {
    **grid.SCENARIO,
    "name": "draws",
    "cluster": {
        "workers": 16,
        "compute": {"time": "20 ms to 100 ms", "jitter": {"lognormal": {"cv": 0.1}}},
        "network": {"latency": "0.1 ms to 50 ms", "bandwidth": "0.5 Gbit/s to 20 Gbit/s", "sharing": "none"},
    },
    "collectives": {"all_reduce": "ring"},
    "schemes": ["all_reduce", {"local_sgd": {"period": 8}}],
    "evaluate": {"every": "10 steps"},
    "stop": {"target": {"metric": "test_accuracy", "value": 0.93}, "max_iterations": 200},
}


def main() -> None:
    """Run the command once, and print the bar."""
    print_bars([measure(int(sys.argv[1]) if len(sys.argv) > 1 else DRAWS)])


def measure(draws: int) -> Bar:
    """Seconds of the whole command."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "draws.yaml"
        path.write_text(json.dumps(SCENARIO))
        command = [sys.executable, "-m", "paceline", "sweep", str(path), "--sample", str(draws)]
        begin_s = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True)
        taken_s = time.perf_counter() - begin_s
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    detail = f"{used.ru_utime + used.ru_stime:.0f} s of processors"
    name = f"{draws:,} draws of {len(SCENARIO['schemes'])} schemes, 16 workers"
    return at_most(name, 60.0, taken_s, "s", detail)


if __name__ == "__main__":
    main()
