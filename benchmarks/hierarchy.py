"""How long one iteration of 1,024 workers takes to simulate, layer by layer over hosts and sites.

    python -m benchmarks.hierarchy [--sites 4 --hosts 32 --gpus 8]

Workers are GPUs; every layer's gradient is all-reduced by the hierarchy while the backward pass goes on.
"""

from __future__ import annotations

import argparse
import time
from typing import Final

from paceline.sim.experiments.prepare import prepare
from paceline.sim.experiments.simulate import simulate_job
from paceline.sim.scenario.schema import parse

SCENARIO: Final = """\
name: hierarchy
workload: {{timing_only: true, layer_profile: llama-2-7b, batch_size: 4}}
cluster:
  compute: {{speed: 400 Tflop/s}}
  network:
    sites: {{{sites}}}
    within: {{latency: 0.02 ms, bandwidth: 400 Gbit/s}}
    between: {{latency: 30 ms, bandwidth: 100 Gbit/s}}
    host: {{gpus: {gpus}, latency: 0.005 ms, bandwidth: 450 GB/s}}
    transport: {transport}
collectives: {{all_reduce: hierarchical}}
schemes: [{{all_reduce: {{overlap: true}}}}]
events: none
stop: {{max_iterations: 1}}
"""


def timed(sites: int, hosts: int, gpus: int, transport: str) -> tuple[float, float]:
    """Seconds of an iteration on the simulation's clock, and of its simulation here."""
    counts = ", ".join(f"s{number}: {hosts * gpus}" for number in range(sites))
    scenario = parse(SCENARIO.format(sites=counts, gpus=gpus, transport=transport))
    begin_s = time.perf_counter()
    run = simulate_job(prepare(scenario, scenario.schemes[0], scenario.seed), engine="event")
    return run.wall_clock_s, time.perf_counter() - begin_s


def main() -> None:
    """Time the iteration over both transports that post receives ahead."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--sites", type=int, default=4)
    parser.add_argument("--hosts", type=int, default=32, help="of a site")
    parser.add_argument("--gpus", type=int, default=8, help="of a host")
    wanted = parser.parse_args()
    for transport in ("ideal", "nccl"):
        simulated_s, here_s = timed(wanted.sites, wanted.hosts, wanted.gpus, transport)
        workers = wanted.sites * wanted.hosts * wanted.gpus
        print(f"{workers:,} workers, {transport}: an iteration of {simulated_s:.3f} s in {here_s:.2f} s")


if __name__ == "__main__":
    main()
