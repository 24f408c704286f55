"""Linux interfaces of the lab: namespaces, TUN devices, addresses, routes and settings; and a host of them.

A host is a network namespace with one TUN device and its TCP settings. Token buckets need ``tc``; the rest
needs only the standard library.

References:
    ``man 7 network_namespaces``, ``man 7 netdevice``, ``man 7 rtnetlink``;
    ``Documentation/networking/tuntap.rst`` and ``include/uapi/linux/{if_tun,rtnetlink}.h`` of the kernel.
"""

from __future__ import annotations

import ctypes
import fcntl
import math
import os
import platform
import socket
import struct
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.sim.errors import InputError
from paceline.sim.network.network_settings import TcpSettings

from .queues import MTU_BYTES

CLONE_NEWUSER = 0x1000_0000
CLONE_NEWNET = 0x4000_0000
PR_SET_PDEATHSIG = 1
PR_SET_TIMERSLACK = 29

_TUNSETIFF, _TUNSETOFFLOAD = 0x4004_54CA, 0x4004_54D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4, _TUN_F_TSO_ECN = 0x01, 0x02, 0x08
_SIOCGIFMTU = 0x8921

_RTM_SETLINK, _RTM_NEWADDR, _IFF_UP = 19, 20, 0x1
_IFLA_MTU, _IFLA_TXQLEN, _IFA_ADDRESS, _IFA_LOCAL = 4, 13, 1, 2
_RTM_NEWROUTE, _RTM_GETROUTE, _NLMSG_ERROR = 24, 26, 2
_NLM_F_REQUEST, _NLM_F_ACK, _NLM_F_EXCL, _NLM_F_CREATE = 0x1, 0x4, 0x200, 0x400
_RTA_DST, _RTA_OIF, _RTA_METRICS = 1, 4, 8
_RT_TABLE_MAIN, _RTPROT_STATIC, _RT_SCOPE_LINK, _RTN_UNICAST = 254, 4, 253, 1
_RTAX_LOCK, _RTAX_CONGESTION = 1, 16
ROUTE_METRICS = {"initcwnd": 11, "rto_min_ms": 13, "initrwnd": 14}
"""Numbers of the route metrics set by the lab, by name."""

_AWAKE_DEVICE = Path("/dev/cpu_dma_latency")
_LATENCY_US = struct.Struct("i")

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces (``CLONE_NEW*``)."""
    _check(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(namespace: int, kind: int) -> None:
    """Move this thread into the open ``namespace`` of kind ``CLONE_NEW*``."""
    _check(_libc.setns(ctypes.c_int(namespace), ctypes.c_int(kind)), "setns")


def prctl(option: int, value: int) -> None:
    """Set one property (``PR_*``) of this process."""
    zero = ctypes.c_ulong(0)
    _check(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero), "prctl")


def enter_user_namespace() -> None:
    """Move this process into a new user namespace with all capabilities, as its current user."""
    user, group = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{group} {group} 1")


def open_tun(name: str) -> int:
    """Open a TUN device in this network namespace; it lives as long as the returned file descriptor.

    Packets have a ``virtio_net_hdr`` of 10 bytes, and neither segmentation nor checksums: up to 64 KB each.
    """
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
    try:
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", name.encode(), flags))
        fcntl.ioctl(tun, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4 | _TUN_F_TSO_ECN)
    except OSError as error:
        os.close(tun)
        raise OSError(error.errno, f"/dev/net/tun: {error.strerror}") from error
    return tun


def bring_up(device: str, *, mtu_bytes: int | None = None, queue_packets: int | None = None) -> None:
    """Start ``device``, with a given MTU and length of the transmit queue."""
    attributes = b""
    for kind, value in ((_IFLA_MTU, mtu_bytes), (_IFLA_TXQLEN, queue_packets)):
        if value is not None:
            attributes += _attribute(kind, struct.pack("I", value))
    index = socket.if_nametoindex(device)
    body = struct.pack("BxHiII", socket.AF_UNSPEC, 0, index, _IFF_UP, _IFF_UP) + attributes
    _netlink(_RTM_SETLINK, _NLM_F_ACK, body)


def add_address(device: str, address: str) -> None:
    """Give ``device`` an IPv4 address of its own (/32)."""
    raw = socket.inet_aton(address)
    body = struct.pack("4Bi", socket.AF_INET, 32, 0, 0, socket.if_nametoindex(device))
    body += _attribute(_IFA_LOCAL, raw) + _attribute(_IFA_ADDRESS, raw)
    _netlink(_RTM_NEWADDR, _NLM_F_ACK | _NLM_F_CREATE | _NLM_F_EXCL, body)


def mtu(device: str) -> int:
    """Read the MTU of ``device``, in bytes."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, _SIOCGIFMTU, struct.pack("16s24x", device.encode()))
    return int(struct.unpack_from("16xi", answer)[0])


def add_route(
    device: str, network: str, prefix: int, metrics: Mapping[str, int], congestion: str | None = None
) -> None:
    """Route ``network/prefix`` to ``device``, with locked ``metrics`` of ``ROUTE_METRICS`` (for
    ``rto_min_ms``).

    ``congestion``: control of this route's connections, also one not allowed as the namespace's default.
    """
    pairs = {ROUTE_METRICS[name]: value for name, value in metrics.items()}
    if pairs:
        pairs[_RTAX_LOCK] = sum(1 << number for number in pairs)
    nested = b"".join(_attribute(number, struct.pack("I", value)) for number, value in sorted(pairs.items()))
    if congestion is not None:
        nested += _attribute(_RTAX_CONGESTION, congestion.encode() + b"\0")
    kind = (_RT_TABLE_MAIN, _RTPROT_STATIC, _RT_SCOPE_LINK, _RTN_UNICAST)
    body = struct.pack("8BI", socket.AF_INET, prefix, 0, 0, *kind, 0)
    body += _attribute(_RTA_DST, socket.inet_aton(network))
    body += _attribute(_RTA_OIF, struct.pack("i", socket.if_nametoindex(device)))
    body += _attribute(_RTA_METRICS, nested)
    _netlink(_RTM_NEWROUTE, _NLM_F_ACK | _NLM_F_CREATE | _NLM_F_EXCL, body)


def route_metrics(address: str) -> tuple[dict[str, int], str]:
    """Read the metrics and the congestion control, if any, of the route to ``address``."""
    body = struct.pack("8BI", socket.AF_INET, 32, *([0] * 7))
    body += _attribute(_RTA_DST, socket.inet_aton(address))
    answer = _netlink(_RTM_GETROUTE, 0, body)
    values = _attributes(_attributes(answer[12:]).get(_RTA_METRICS, b""))
    congestion = values.get(_RTAX_CONGESTION, b"").rstrip(b"\0").decode()
    return {
        name: int(struct.unpack("I", values[number])[0])
        for name, number in ROUTE_METRICS.items()
        if number in values
    }, congestion


def _attribute(kind: int, value: bytes) -> bytes:
    return struct.pack("HH", 4 + len(value), kind) + value + bytes(-len(value) % 4)


def _attributes(data: bytes) -> dict[int, bytes]:
    values = {}
    while len(data) >= 4:
        length, kind = struct.unpack_from("HH", data)
        values[kind] = data[4:length]
        data = data[length + -length % 4 :]
    return values


def _netlink(kind: int, flags: int, body: bytes) -> bytes:
    """Send one rtnetlink request; return the body of its answer (of an acknowledgement: nothing)."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as link:
        link.send(struct.pack("IHHII", 16 + len(body), kind, flags | _NLM_F_REQUEST, 1, 0) + body)
        answer = link.recv(65536)
    length, answered = struct.unpack_from("IH", answer)
    if answered == _NLMSG_ERROR:
        (error,) = struct.unpack_from("i", answer, 16)
        if error:
            raise OSError(-error, f"rtnetlink: {os.strerror(-error)}")
        return b""
    return bytes(answer[16:length])


def sysctl_path(name: str) -> Path:
    """Path of a setting (``net.ipv4...``) of this network namespace."""
    return Path("/proc/sys", *name.split("."))


_SEND_BUFFER = "net.ipv4.tcp_wmem"


def send_buffer_setting() -> dict[str, str]:
    """The sizes of a socket's send buffer in this network namespace by the setting's name, if it is there."""
    path = sysctl_path(_SEND_BUFFER)
    return {_SEND_BUFFER: " ".join(path.read_text().split())} if path.exists() else {}


def dropped_packets(device: str) -> int:
    """Packets dropped by the kernel at ``device`` of this network namespace, in and out."""
    for line in Path("/proc/thread-self/net/dev").read_text().splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == device:
            fields = counters.split()
            return int(fields[3]) + int(fields[11])
    return 0


def shape(device: str, bytes_per_s: float) -> None:
    """Put a token bucket on ``device`` of this network namespace in place of another; ``inf``: none."""
    subprocess.run(["tc", "qdisc", "del", "dev", device, "root"], stderr=subprocess.DEVNULL, check=False)
    if bytes_per_s < math.inf:
        bucket = f"tbf rate {8 * bytes_per_s:.0f}bit burst 32768 latency 50ms"
        subprocess.run(["tc", "qdisc", "add", "dev", device, "root", *bucket.split()], check=True)


def keep_awake(device: Path = _AWAKE_DEVICE) -> int:
    """Keep processors awake until the returned file descriptor is closed; -1 where that is not possible.

    Waking up an idle processor takes tens of microseconds on hardware and up to milliseconds on a virtual
    machine, at random, beside a lab's latencies. By Linux's power management quality of service.
    """
    held = -1
    try:
        held = os.open(device, os.O_RDWR)
        os.write(held, _LATENCY_US.pack(0))
    except OSError:
        if held >= 0:
            os.close(held)
        return -1
    return held


def wake_latency(held: int) -> str:
    """Read back the current limit of wake-up latency; ``default`` where nothing is held."""
    if held < 0:
        return "default"
    return f"{_LATENCY_US.unpack(os.pread(held, _LATENCY_US.size, 0))[0]} us"


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
            sysctl_path(name).write_text(value)
        except OSError as error:
            raise InputError(
                f"the lab cannot set {name} = {value} for its hosts: {error}; "
                "it needs a writable /proc/sys/net and, for TCP, a congestion control that the kernel has"
            ) from error


def make_host(host: int, tcp: TcpSettings | None) -> Host:
    """Move this process into a new network namespace and set it up as ``host``.

    ``tcp``: of stock hosts; None: they are tuned. ``InputError``: the kernel refuses or drops a setting.
    """
    unshare(CLONE_NEWNET)
    namespace = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    if sysctl_path("net.ipv6").exists():
        for name, value in _ALWAYS.items():
            sysctl_path(name).write_text(value)
    wanted = _TUNED_SYSCTLS if tcp is None else sysctls(tcp)
    metrics = _TUNED_METRICS if tcp is None else {}
    if tcp is not None and tcp.initial_window != TcpSettings().initial_window:
        metrics = {"initcwnd": tcp.initial_window}
    _set(wanted)
    bring_up("lo")
    tun = open_tun(INTERFACE)
    add_address(INTERFACE, address(host))
    bring_up(INTERFACE, mtu_bytes=MTU_BYTES, queue_packets=_QUEUE_PACKETS)
    congestion = None if tcp is None else tcp.congestion
    add_route(INTERFACE, _NETWORK, _PREFIX, metrics, congestion)

    settings = {name: " ".join(sysctl_path(name).read_text().split()) for name in _TUNED_SYSCTLS}
    read_metrics, read_congestion = route_metrics(address(host + 1))
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
    settings |= {"mtu": str(mtu(INTERFACE)), "kernel": platform.release()}
    return Host(namespace, tun, settings)
