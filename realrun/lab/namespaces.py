"""The hosts of a lab: a network namespace with one TUN device each, and its TCP settings."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.sim.errors import InputError
from paceline.sim.network.network_settings import TcpSettings

from . import kernel
from .queues import MTU_BYTES

INTERFACE = "pace0"
_NETWORK, _PREFIX = "10.0.0.0", 8
_WINDOW_SEGMENTS = 12_000  # 17 MB: a round trip of 100 ms at 1 Gbit/s takes 12.5 MB
_QUEUE_PACKETS = _WINDOW_SEGMENTS

_TUNED_SYSCTLS = {
    "net.ipv4.tcp_congestion_control": "reno",
    "net.ipv4.tcp_slow_start_after_idle": "0",
    "net.ipv4.tcp_rmem": "4096 33554432 33554432",
    "net.ipv4.tcp_wmem": "4096 33554432 33554432",
    "net.ipv4.tcp_no_metrics_save": "1",
    # No probes for lost tails: nothing is lost, and an acknowledgement may be late behind bulk data.
    "net.ipv4.tcp_early_retrans": "0",
}
_TUNED_METRICS = {"initcwnd": _WINDOW_SEGMENTS, "initrwnd": _WINDOW_SEGMENTS, "rto_min_ms": 10_000}
_ALWAYS = {"net.ipv6.conf.all.disable_ipv6": "1", "net.ipv6.conf.default.disable_ipv6": "1"}


@dataclass(frozen=True, slots=True)
class Host:
    """One host: its network namespace and TUN device, as open file descriptors, and its settings."""

    namespace: int
    tun: int
    settings: Mapping[str, str]


def address(host: int) -> str:
    """IPv4 address of a host; every lab uses the same ones, in namespaces of its own."""
    return f"10.0.{host // 250}.{host % 250 + 1}"


def sysctls(tcp: TcpSettings) -> dict[str, str]:
    """Kernel settings of stock hosts; their congestion control is a metric of the route."""
    return {
        "net.ipv4.tcp_slow_start_after_idle": str(int(tcp.slow_start_after_idle)),
        "net.ipv4.tcp_rmem": f"4096 {min(131_072, int(tcp.receive_buffer))} {int(tcp.receive_buffer)}",
        "net.ipv4.tcp_wmem": f"4096 {min(16_384, int(tcp.send_buffer))} {int(tcp.send_buffer)}",
    }


def _set(wanted: Mapping[str, str]) -> None:
    for name, value in wanted.items():
        try:
            kernel.sysctl_path(name).write_text(value)
        except OSError as error:
            raise InputError(
                f"the lab cannot set {name} = {value} for its hosts: {error}; "
                "it needs a writable /proc/sys/net and, for TCP, a congestion control that the kernel has"
            ) from error


def make_host(host: int, tcp: TcpSettings | None) -> Host:
    """Move this process into a new network namespace and set it up as ``host``.

    ``tcp``: of stock hosts; None: they are tuned. ``InputError``: the kernel refuses or drops a setting.
    """
    kernel.unshare(kernel.CLONE_NEWNET)
    namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if kernel.sysctl_path("net.ipv6").exists():
        for name, value in _ALWAYS.items():
            kernel.sysctl_path(name).write_text(value)
    wanted = _TUNED_SYSCTLS if tcp is None else sysctls(tcp)
    metrics = _TUNED_METRICS if tcp is None else {}
    if tcp is not None and tcp.initial_window != TcpSettings().initial_window:
        metrics = {"initcwnd": tcp.initial_window}
    _set(wanted)
    kernel.bring_up("lo")
    tun = kernel.open_tun(INTERFACE)
    kernel.add_address(INTERFACE, address(host))
    kernel.bring_up(INTERFACE, mtu_bytes=MTU_BYTES, queue_packets=_QUEUE_PACKETS)
    congestion = None if tcp is None else tcp.congestion
    kernel.add_route(INTERFACE, _NETWORK, _PREFIX, metrics, congestion)

    settings = {name: " ".join(kernel.sysctl_path(name).read_text().split()) for name in _TUNED_SYSCTLS}
    read_metrics, read_congestion = kernel.route_metrics(address(host + 1))
    for name, value in wanted.items():
        if settings[name] != value:
            raise InputError(f"the kernel did not keep {name} = {value} but has {settings[name]}")
    if read_metrics != metrics:
        raise InputError(f"the kernel did not keep the route's metrics {metrics} but has {read_metrics}")
    if congestion is not None:
        if read_congestion != congestion:
            raise InputError(f"the kernel has no congestion control {congestion} (modprobe tcp_{congestion})")
        settings["net.ipv4.tcp_congestion_control"] = congestion
    settings |= {name: str(read_metrics.get(name, "default")) for name in _TUNED_METRICS}
    settings |= {"mtu": str(kernel.mtu(INTERFACE)), "kernel": platform.release()}
    return Host(namespace, tun, settings)
