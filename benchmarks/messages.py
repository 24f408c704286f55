"""Messages a second of the event driver, 1,024 gossiping workers, no gradients.

    python benchmarks/messages.py

Whole simulation time, coroutines and accounts included; median of several runs per pattern.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from paceline.sim.drivers.event import EventDriver
from tests.support.factory import make_job

WORKERS, RUNS = 1024, 5
SECOND = {"latency_s": 0.01, "bytes_per_parameter": 4e6, "bandwidth_bytes_per_s": 8e6}
CASES: list[tuple[str, str, int, dict[str, Any], int]] = [
    ("ring, links not shared", "ring", 40, {**SECOND, "sharing": "none"}, 60_000),
    (
        "one-peer exponential, links not shared",
        "one_peer_exponential",
        40,
        {**SECOND, "sharing": "none"},
        60_000,
    ),
    ("ring, access links shared, constant compute", "ring", 20, SECOND, 15_000),
    ("ring, access links shared, cv 0.3", "ring", 20, {**SECOND, "cv": 0.3}, 5_000),
]
"""Name, topology, steps, settings, and the rate to reach. Transfers last about as long as computation."""


def main() -> None:
    """Measure and print."""
    for name, topology, steps, settings, bar in CASES:
        rates = []
        for _ in range(RUNS):
            job = make_job(
                "gossip",
                {"topology": topology},
                workers=WORKERS,
                max_iterations=steps,
                record_events=False,
                **settings,
            )
            driver = EventDriver(job, [job.program(r) for r in range(WORKERS)], job.scorer())
            begin = time.perf_counter()
            driver.run()
            rates.append(driver.messages / (time.perf_counter() - begin))
        print(f"{name:>45}: {statistics.median(rates):9,.0f} messages/s (bar: {bar:,})")


if __name__ == "__main__":
    main()
