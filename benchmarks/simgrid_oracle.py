"""Shared links against SimGrid: the end of every flow on drawn platforms.

``python -m benchmarks.simgrid_oracle [--platforms 50]``

Flows of random sizes begin at random times between random hosts of a random graph. SimGrid's model CM02
without bounds by windows or cross-traffic shares a link in inverse proportion to the latency of a flow's
path, and bytes leave one latency after a start. Where all paths have one latency, that is max-min fairness
(``sharing: max_min``), else ``sharing: rtt``. Needs Debian's ``python3-simgrid``, run by the system's Python.

Source: Velho, Schnorr, Casanova and Legrand, On the validity of flow-level TCP network models for grid and
cloud simulations, ACM Transactions on Modeling and Computer Simulation 23(4), 2013.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from paceline.sim.network.build import build_network
from paceline.sim.network.network import Network
from paceline.sim.network.network_settings import NetworkSettings
from paceline.sim.network.transport import TransferModel
from paceline.sim.traffic.clock import Clock
from paceline.sim.traffic.transfers import Transfers

SYSTEM_PYTHON = "/usr/bin/python3"
UNLIMITED_BYTES_PER_S = 1e18
Sharing = Literal["max_min", "rtt"]


@dataclass(frozen=True)
class Flow:
    """Bytes from one host to another."""

    start_s: float
    source: int
    destination: int
    num_bytes: int


@dataclass(frozen=True)
class Platform:
    """A network, and flows on it."""

    network: Network
    flows: tuple[Flow, ...]


def draw(seed: int, sharing: Sharing) -> Platform:
    """A graph of switches with hosts, and flows; with ``max_min`` all paths have one latency."""
    rng = np.random.default_rng(seed)
    hosts, switches = int(rng.integers(3, 11)), int(rng.integers(1, 6))
    alike = sharing == "max_min"

    def link(source: str, target: str, latency_ms: float) -> dict[str, Any]:
        rate = float(np.exp(rng.uniform(np.log(10), np.log(1000))))
        return {
            "source": source,
            "target": target,
            "latency": f"{latency_ms!r} ms",
            "bandwidth": f"{rate!r} Mbit/s",
        }

    links = [
        link(f"h{host}", f"s{rng.integers(switches)}", 10.0 if alike else rng.uniform(0.5, 50))
        for host in range(hosts)
    ]
    links += [
        link(f"s{rng.integers(switch)}", f"s{switch}", 0.0 if alike else rng.uniform(0.5, 50))
        for switch in range(1, switches)
    ]
    graph = {"hosts": [f"h{host}" for host in range(hosts)], "links": links}
    flows = []
    for _ in range(int(rng.integers(4, 40))):
        source, destination = (int(each) for each in rng.choice(hosts, 2, replace=False))
        num_bytes = int(np.exp(rng.uniform(np.log(1e5), np.log(1e8))))
        flows.append(Flow(float(rng.uniform(0, 1)), source, destination, num_bytes))
    return Platform(build_network(NetworkSettings.model_validate({"graph": graph}), hosts), tuple(flows))


class _Ended:
    """Both sides of a transfer; notes when its last byte has left."""

    def __init__(self) -> None:
        self.left_s = 0.0

    def sent(self, time_s: float, peer_s: float) -> None:
        self.left_s = time_s

    def received(self, slot: int, sender: object, source: int, time_s: float, peer_s: float) -> None:
        pass


def ours_s(platform: Platform, sharing: Sharing) -> list[float]:
    """End of each flow by ``Transfers``: when its last byte has left, having begun a latency late."""
    clock = Clock()
    transfers = Transfers(clock, TransferModel(platform.network, sharing=sharing))
    sides = [_Ended() for _ in platform.flows]

    def begin(number: int) -> None:
        flow, side, tag = platform.flows[number], sides[number], ("flow", number, 0)
        transfers.receive(flow.source, flow.destination, tag, side, 0)
        transfers.send(flow.source, flow.destination, tag, flow.num_bytes, side)

    for number, flow in enumerate(platform.flows):
        latency_s = platform.network.route(flow.source, flow.destination).latency_s
        clock.at(flow.start_s + latency_s, begin, number)
    while not all(side.left_s for side in sides):
        clock.step()
    return [side.left_s for side in sides]


def simgrid_s(platforms: Sequence[Platform]) -> list[list[float]]:
    """End of each flow by SimGrid, in a process of its own; each has a link of its own for its latency."""
    written = []
    for platform in platforms:
        links = [[link.bandwidth_bytes_per_s, 0.0] for link in platform.network.links]
        flows = []
        for flow in platform.flows:
            route = platform.network.route(flow.source, flow.destination)
            flows.append([flow.start_s, flow.num_bytes, [*route.links, len(links)]])
            links.append([UNLIMITED_BYTES_PER_S, route.latency_s])
        written.append({"links": links, "flows": flows})
    script = str(Path(__file__).with_name("simgrid_process.py"))
    done = subprocess.run(
        [SYSTEM_PYTHON, script], input=json.dumps(written).encode(), capture_output=True, check=True
    )
    ends_s: list[list[float]] = json.loads(done.stdout)
    return ends_s


def is_installed() -> bool:
    """Whether the system's Python has SimGrid."""
    run = partial(subprocess.run, capture_output=True, check=False)
    return Path(SYSTEM_PYTHON).exists() and run([SYSTEM_PYTHON, "-c", "import simgrid"]).returncode == 0


def differences(sharing: Sharing, seeds: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Relative differences of the times that flows take, flow by flow of all platforms."""
    platforms = [draw(seed, sharing) for seed in seeds]
    out = []
    for platform, theirs in zip(platforms, simgrid_s(platforms), strict=True):
        for flow, a, b in zip(platform.flows, ours_s(platform, sharing), theirs, strict=True):
            out.append((a - b) / (b - flow.start_s))
    return np.array(out)


def main() -> None:
    """Print the differences of both kinds of sharing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--platforms", type=int, default=50)
    seeds = range(parser.parse_args().platforms)
    for sharing in ("max_min", "rtt"):
        off = np.abs(differences(sharing, seeds))
        print(
            f"sharing: {sharing}: {len(off)} flows on {len(seeds)} platforms, end times off by "
            f"{np.median(off):.1e} in the median, {off.max():.1e} at most"
        )


if __name__ == "__main__":
    main()
