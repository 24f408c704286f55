"""Measurements of the lab's latency, bandwidth and sharing on this machine, beside nominal ones."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from itertools import permutations
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table

from paceline.sim.network.build import build_network
from paceline.sim.network.network import Network, rate_of
from paceline.sim.network.network_settings import NetworkSettings

from .lab import Lab, python_environment
from .probe import ProbeFlow
from .protocol import Discipline, Statistics

BANDWIDTH_TOLERANCE = 0.03
"""Largest relative error of a bandwidth that counts as emulated."""

_MBIT = 125_000.0  # Mbit/s in bytes/s
_LATENCIES_S = (0.002, 0.02, 0.05)
_BANDWIDTHS = (100 * _MBIT, 400 * _MBIT, 1000 * _MBIT, math.inf)
_BUSY, _BESIDE_S = 100 * _MBIT, 0.02
"""Bandwidth of a link that bulk data fills, and latency where there is more than one flow."""
_BUSY_QUEUES: Final[tuple[Discipline, ...]] = ("fair", "fifo")
_BULK_S, _LARGEST_BYTES, _SMALLEST_BYTES = 0.12, 15_000_000, 200_000
"""Desired duration of a bulk message, and the bounds of its size."""
_SETTLE_S = 0.05
"""Time for a probe to connect, beside five latencies."""
_Times = list[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class RouteCheck:
    """One way between two hosts, alone on the network.

    Attributes:
        latency_s, bandwidth_bytes_per_s: nominal; ``inf`` where nothing limits it.
        measured_latency_s, worst_latency_s: of small messages, one way, median and worst.
        measured_bytes_per_s: payload of one TCP connection over the time from sending to the last byte read,
            less the nominal latency.
    """

    source: int
    destination: int
    latency_s: float
    measured_latency_s: float
    worst_latency_s: float
    bandwidth_bytes_per_s: float
    measured_bytes_per_s: float

    @property
    def bandwidth_error(self) -> float:
        """Measured over nominal bandwidth, less one; 0 where nothing limits it."""
        if math.isinf(self.bandwidth_bytes_per_s):
            return 0.0
        return self.measured_bytes_per_s / self.bandwidth_bytes_per_s - 1


@dataclass(frozen=True, slots=True)
class SharingCheck:
    """Simultaneous connections from two hosts to a third over a shared link.

    Measured is the payload of each over the time from the start of the first to its own end, less the
    latency. One that had a head start shows more than half.
    """

    nominal_bytes_per_s: float
    measured_bytes_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class BusyCheck:
    """Small messages while bulk data fills the same way."""

    queue: Discipline
    latency_s: float
    measured_latency_s: float
    worst_latency_s: float


@dataclass(frozen=True, slots=True)
class LabCheck:
    """The result of ``check``.

    Attributes:
        sharing, busy: empty when a given network was checked.
        switch: its statistics, one for every setting of ``routes``.
        settings: of host 0, as read back.
        load: runnable processes in the last minute before the check.
    """

    routes: tuple[RouteCheck, ...]
    sharing: tuple[SharingCheck, ...]
    busy: tuple[BusyCheck, ...]
    switch: tuple[Statistics, ...]
    settings: Mapping[str, str]
    cores: int
    load: float

    @property
    def added_latency_s(self) -> float:
        """Median excess of a small message's latency over the nominal one."""
        return statistics.median(r.measured_latency_s - r.latency_s for r in self.routes)

    @property
    def fastest_bytes_per_s(self) -> float:
        """Largest nominal bandwidth met within ``BANDWIDTH_TOLERANCE``; 0 if none was."""
        met = [r.bandwidth_bytes_per_s for r in self.routes if abs(r.bandwidth_error) <= BANDWIDTH_TOLERANCE]
        return max((b for b in met if math.isfinite(b)), default=0.0)


def check(network: Network | None = None) -> LabCheck:
    """Measure a lab, half a minute: one way of each kind in ``network``, or a series of standard settings.

    Use an idle machine: hosts share its cores. ``InputError``: this machine cannot run a lab.
    """
    load = os.getloadavg()[0]
    first = network or _star(_BANDWIDTHS[0], _LATENCIES_S[0])
    with Lab(first) as lab, ExitStack() as stack:
        probes = [stack.enter_context(closing(ProbeProcess(lab, host))) for host in range(first.num_hosts)]
        switch, sharing, busy = [], [], []
        if network:
            routes = [_check_route(lab, probes, network, a, b) for a, b in _kinds_of_routes(network)]
            switch.append(lab.statistics())
        else:
            routes = []
            for bandwidth in _BANDWIDTHS:
                for latency_s in _LATENCIES_S:
                    setting = _star(bandwidth, latency_s)
                    lab.reconfigure(setting)
                    routes.append(_check_route(lab, probes, setting, 0, 1))
                    switch.append(lab.statistics())
            for bandwidth in _BANDWIDTHS[:-1]:
                lab.reconfigure(_star(bandwidth, _BESIDE_S))
                sharing.append(_check_sharing(lab, probes, bandwidth))
            for queue in _BUSY_QUEUES:
                lab.reconfigure(_star(_BUSY, _BESIDE_S), queue=queue)
                busy.append(_check_busy(lab, probes[0], queue))
        return LabCheck(
            routes=tuple(routes),
            sharing=tuple(sharing),
            busy=tuple(busy),
            switch=tuple(switch),
            settings=lab.settings[0],
            cores=len(os.sched_getaffinity(0)),
            load=load,
        )


def render(measured: LabCheck) -> RenderableType:
    """Tables and a verdict for a terminal."""
    routes = Table(
        "way", "latency", "measured", "worst", "bandwidth", "measured", "error", title="one way, alone"
    )
    for route in measured.routes:
        routes.add_row(
            f"{route.source} -> {route.destination}",
            *(_ms(t) for t in (route.latency_s, route.measured_latency_s, route.worst_latency_s)),
            *(_mbit(b) for b in (route.bandwidth_bytes_per_s, route.measured_bytes_per_s)),
            f"{route.bandwidth_error:+.1%}" if math.isfinite(route.bandwidth_bytes_per_s) else "",
        )
    parts: list[RenderableType] = [routes]
    if measured.sharing:
        shares = Table("shared link", "each should get", "measured", title="two connections at the same time")
        for share in measured.sharing:
            each = ", ".join(_mbit(b) for b in share.measured_bytes_per_s)
            shares.add_row(_mbit(share.nominal_bytes_per_s), _mbit(share.nominal_bytes_per_s / 2), each)
        parts.append(shares)
    if measured.busy:
        busy = Table(
            "queue", "latency", "measured", "worst", title="small messages beside bulk data, 100 Mbit/s"
        )
        for row in measured.busy:
            busy.add_row(
                row.queue, *(_ms(t) for t in (row.latency_s, row.measured_latency_s, row.worst_latency_s))
            )
        parts.append(busy)
    worst = max(measured.switch, key=lambda s: s.worst_lateness_s)
    parts.append(
        f"{measured.cores} cores, load {measured.load:.1f} before the check; the switch "
        f"{'runs' if worst.real_time else 'does NOT run'} ahead of other processes, released packets up to "
        f"{_ms(worst.worst_lateness_s)} late ({_ms(worst.mean_lateness_s)} on average there) and dropped "
        f"{sum(s.drops for s in measured.switch)}.\n"
        f"This machine emulates bandwidths up to {_mbit(measured.fastest_bytes_per_s)} to "
        f"{BANDWIDTH_TOLERANCE:.0%}; a small message takes {_ms(measured.added_latency_s)} more than the "
        f"nominal latency."
    )
    return Group(*parts)


class ProbeProcess:
    """A process inside a host that sends messages to others and times them."""

    def __init__(self, lab: Lab, host: int) -> None:
        command = [sys.executable, "-m", "paceline.realrun.lab.probe"]
        self._process = lab.popen(
            host, command, env=python_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._orders, self._answers = self._process.stdin, self._process.stdout
        self.finish()

    def start(self, *flows: ProbeFlow) -> None:
        """Order flows, which begin together."""
        self._orders.write(json.dumps([asdict(flow) for flow in flows]).encode() + b"\n")
        self._orders.flush()

    def finish(self) -> list[_Times]:
        """Wait for the ordered flows; returns (start, arrival) of each of their messages."""
        times: list[_Times] = json.loads(self._answers.readline())
        return times

    def run(self, *flows: ProbeFlow) -> list[_Times]:
        """Order flows and wait for them."""
        self.start(*flows)
        return self.finish()

    def close(self) -> None:
        """End the process."""
        self._orders.close()
        self._answers.close()
        self._process.wait()


def _check_route(lab: Lab, probes: Sequence[ProbeProcess], network: Network, a: int, b: int) -> RouteCheck:
    route = network.route(a, b)
    latency_s, bandwidth = route.latency_s, rate_of(network, route)
    to = lab.address(b)
    (small_times,) = probes[a].run(ProbeFlow(to, 64, 15, _soon_s(latency_s), 0.003))
    small = [end - start for start, end in small_times]
    size = int(max(_SMALLEST_BYTES, min(_LARGEST_BYTES, bandwidth * _BULK_S)))
    (bulk_times,) = probes[a].run(ProbeFlow(to, size, 3, _soon_s(latency_s), 0.02))
    bulk = [end - start - latency_s for start, end in bulk_times]
    return RouteCheck(
        source=a,
        destination=b,
        latency_s=latency_s,
        measured_latency_s=statistics.median(small),
        worst_latency_s=max(small),
        bandwidth_bytes_per_s=bandwidth,
        measured_bytes_per_s=size / statistics.median(bulk),
    )


def _check_sharing(lab: Lab, probes: Sequence[ProbeProcess], bandwidth: float) -> SharingCheck:
    size = int(min(_LARGEST_BYTES, bandwidth * 2 * _BULK_S))
    flow = ProbeFlow(lab.address(2), size, 1, _soon_s(_BESIDE_S))
    for probe in probes[:2]:
        probe.start(flow)
    times = [probe.finish()[0][0] for probe in probes[:2]]
    first_s = min(start for start, _ in times)
    return SharingCheck(bandwidth, tuple(size / (end - first_s - _BESIDE_S) for _, end in times))


def _check_busy(lab: Lab, probe: ProbeProcess, queue: Discipline) -> BusyCheck:
    soon_s = _soon_s(_BESIDE_S)
    bulk = ProbeFlow(lab.address(1), int(_BUSY * 0.5), 1, soon_s)
    small = ProbeFlow(lab.address(1), 64, 10, soon_s + 0.02, 0.003)
    (whole,), parts = probe.run(bulk, small)
    times = [end - start for start, end in parts if start < whole[1] - _BESIDE_S]
    return BusyCheck(queue, _BESIDE_S, statistics.median(times), max(times))


def _soon_s(latency_s: float) -> float:
    """Earliest start of probes ordered now, on the monotonic clock."""
    return time.monotonic() + _SETTLE_S + 5 * latency_s


def _kinds_of_routes(network: Network) -> list[tuple[int, int]]:
    """One pair of hosts for every distinct combination of latency and bandwidth."""
    kinds: dict[tuple[float, float], tuple[int, int]] = {}
    for a, b in permutations(range(network.num_hosts), 2):
        route = network.route(a, b)
        kinds.setdefault((route.latency_s, rate_of(network, route)), (a, b))
    return list(kinds.values())


def _star(bandwidth: float, latency_s: float) -> Network:
    """Three hosts on a non-blocking switch, each with an access link of ``bandwidth``."""
    limit = {"bandwidth": f"{8 * bandwidth} bit/s"} if math.isfinite(bandwidth) else {}
    return build_network(NetworkSettings.model_validate({"latency": f"{latency_s} s", **limit}), 3)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _mbit(bytes_per_s: float) -> str:
    return f"{bytes_per_s / _MBIT:.1f} Mbit/s" if math.isfinite(bytes_per_s) else "unlimited"
