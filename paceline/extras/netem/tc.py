"""``tc`` commands that make hosts of one site emulate a scenario's network, and commands to undo them.

Each host shapes its traffic: one HTB class per link of the scenario that its messages cross, nested as the
routes from it branch out, and below them one leaf per destination that delays packets by the route's latency
(netem). A link whose messages all go to one host is shaped there, on arrival, behind an IFB device. That is
exact for every link with a single sender or a single receiver. Hosts do not coordinate: a link with several
of both, such as a pipe between two sites, is capped on each host separately, so that together they may exceed
it; ``Script.inexact`` names these. The latencies come on top of the cluster's own.

References:
    tc-htb(8), tc-netem(8), tc-u32(8) and the kernel's documentation of ifb.
"""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Final

from paceline.sim.errors import InputError, quote
from paceline.sim.network.network import Network

IFB: Final = "ifb-paceline"
_UNLIMITED_BYTES_PER_S: Final = 12.5e9
"""HTB needs a rate: 100 Gbit/s for unlimited links."""
_MAX_DEPTH: Final = 6
"""HTB takes eight levels; one is the root's, one the leaves'."""
_MTU_BYTES: Final = 1500
_QUANTUM_BYTES: Final = 10 * _MTU_BYTES
_QUIET: Final = "2>/dev/null || true"
_FIRST_LINK: Final = 0x10
_FIRST_LEAF: Final = 0x1000


@dataclass(frozen=True)
class Script:
    """Commands for one host (its number is the worker's rank), to be run as root.

    ``inexact`` names links shared with other hosts and capped on each separately.
    """

    host: int
    play: tuple[str, ...]
    undo: tuple[str, ...]
    inexact: tuple[str, ...]


@dataclass(frozen=True)
class _Class:
    """A bandwidth limit shared by some peers.

    Attributes:
        assured_bytes_per_s: their joint rate under full load by everybody.
        minor: of the class's number in HTB.
        parent: number of the enclosing class; 0 is the root.
        depth: nesting depth, itself included.
    """

    peers: frozenset[int]
    bytes_per_s: float
    assured_bytes_per_s: float
    minor: int
    parent: int = 0
    depth: int = 0

    def inside(self, peers: frozenset[int], bytes_per_s: float, minor: int) -> _Class:
        """A nested class; at one level all peers are assured the same, and no more than there is."""
        limit = min(bytes_per_s, self.bytes_per_s)
        share = self.assured_bytes_per_s * len(peers) / len(self.peers)
        return _Class(peers, limit, min(limit, share), minor, self.minor, self.depth + 1)


def scripts(network: Network, addresses: Sequence[str], device: str) -> list[Script]:
    """The commands for every host, by rank; ``addresses`` may be shell variables that will hold them.

    Raises ``InputError`` where ``tc`` cannot emulate the network, or its routes are too long for HTB.
    """
    if network.jitter is not None:
        raise InputError(
            "netem draws a delay for each packet and reorders them, not one for each message; leave "
            "cluster.network.jitter out"
        )
    if any(link.variation is not None for link in network.links):
        raise InputError("tc sets a rate once; leave cluster.network.variation out")
    n = range(network.num_hosts)
    senders: dict[int, set[int]] = {}
    receivers: dict[int, set[int]] = {}
    for a, b in permutations(n, 2):
        for link in network.route(a, b).links:
            senders.setdefault(link, set()).add(a)
            receivers.setdefault(link, set()).add(b)
    on_arrival = {link for link in senders if len(senders[link]) > 1 and len(receivers[link]) == 1}
    shared = {link for link in senders if len(senders[link]) > 1 and len(receivers[link]) > 1}
    return [
        Script(
            host=host,
            play=(
                *_leaving(network, host, addresses, device, on_arrival),
                *_arriving(network, host, addresses, device, on_arrival),
            ),
            undo=(
                f"tc qdisc del dev {device} root {_QUIET}",
                f"tc qdisc del dev {device} ingress {_QUIET}",
                f"ip link del {IFB} {_QUIET}",
            ),
            inexact=tuple(network.links[link].name for link in sorted(shared) if host in senders[link]),
        )
        for host in n
    ]


def validate_addresses(text: str, workers: int) -> list[str]:
    """Split comma-separated addresses; ``InputError`` unless there is one IPv4 address for each worker."""
    addresses = [each.strip() for each in text.split(",")]
    for each in addresses:
        try:
            ipaddress.IPv4Address(each)
        except ValueError:
            raise InputError(f"--hosts: {quote(each)} is no IPv4 address, such as 10.0.0.1") from None
    if len(addresses) != workers or len(set(addresses)) != workers:
        raise InputError(f"--hosts: needs {workers} different addresses, in the order of ranks")
    return addresses


def validate_interface(name: str) -> str:
    """The name of a network device, valid for the kernel and safe in a shell; else ``InputError``."""
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,15}", name):
        raise InputError(f"--interface: {quote(name)} is no name of a network device, such as eth0")
    return name


def _leaving(
    network: Network, host: int, addresses: Sequence[str], device: str, elsewhere: set[int]
) -> list[str]:
    others = [peer for peer in range(network.num_hosts) if peer != host]
    links = {
        peer: [link for link in network.route(host, peer).links if link not in elsewhere] for peer in others
    }
    classes = _nested(network, links)
    commands = _root(device, classes)
    for peer in others:
        route = network.route(host, peer)
        leaf = _leaf(classes, peer, route.per_flow_bytes_per_s)
        commands.append(_add_class(device, leaf))
        if route.latency_s > 0:
            limit = math.ceil(1.5 * leaf.bytes_per_s * route.latency_s / _MTU_BYTES) + 1000
            commands.append(
                f"tc qdisc add dev {device} parent 1:{leaf.minor:x} handle {leaf.minor:x}: "
                f"netem delay {route.latency_s * 1e6:.0f}us limit {limit}"
            )
        commands.append(_filter(device, "dst", addresses[peer], leaf))
    return commands


def _arriving(
    network: Network, host: int, addresses: Sequence[str], device: str, links_there: set[int]
) -> list[str]:
    """Commands that shape incoming traffic of links that lead to this host alone."""
    others = [peer for peer in range(network.num_hosts) if peer != host]
    links = {
        peer: [link for link in network.route(peer, host).links if link in links_there] for peer in others
    }
    if not any(links.values()):
        return []
    commands = [
        f"ip link add {IFB} type ifb",
        f"ip link set {IFB} up",
        f"tc qdisc add dev {device} handle ffff: ingress",
    ]
    classes = _nested(network, links)
    commands += _root(IFB, classes)
    for peer in others:
        leaf = _leaf(classes, peer, math.inf)
        commands.append(_add_class(IFB, leaf))
        commands.append(_filter(IFB, "src", addresses[peer], leaf))
        commands.append(
            f"tc filter add dev {device} parent ffff: protocol ip prio 1 u32 match ip src "
            f"{addresses[peer]}/32 action mirred egress redirect dev {IFB}"
        )
    return commands


def _nested(network: Network, links: Mapping[int, Sequence[int]]) -> list[_Class]:
    """The links of each peer as nested classes, outermost first, without unlimited ones.

    Routes of least latency from one host, or to one, form a tree: the peers behind two links are nested or
    disjoint sets. The first class is the root: all peers, unlimited.
    """
    narrowest: dict[frozenset[int], float] = {}
    for link in {link for each in links.values() for link in each}:
        behind = frozenset(peer for peer, each in links.items() if link in each)
        bandwidth = network.links[link].bandwidth_bytes_per_s
        narrowest[behind] = min(narrowest.get(behind, math.inf), bandwidth)
    classes = [_Class(frozenset(links), _UNLIMITED_BYTES_PER_S, _UNLIMITED_BYTES_PER_S, 0)]
    for those, bandwidth in sorted(narrowest.items(), key=lambda item: (-len(item[0]), sorted(item[0]))):
        around = [each for each in classes if those <= each.peers][-1]
        if around.bytes_per_s <= bandwidth:
            continue
        classes.append(around.inside(those, bandwidth, _FIRST_LINK + len(classes)))
        if classes[-1].depth > _MAX_DEPTH:
            raise InputError("the routes cross more links of different bandwidths than HTB has levels")
    return classes


def _leaf(classes: Sequence[_Class], peer: int, cap_bytes_per_s: float) -> _Class:
    around = [each for each in classes if peer in each.peers][-1]
    return around.inside(frozenset([peer]), cap_bytes_per_s, _FIRST_LEAF + peer)


def _root(device: str, classes: Sequence[_Class]) -> list[str]:
    """HTB with its inner classes; unclassified traffic to elsewhere passes unshaped."""
    commands = [f"tc qdisc add dev {device} root handle 1: htb default 0"]
    return commands + [_add_class(device, each) for each in classes[1:]]


def _add_class(device: str, added: _Class) -> str:
    above = f"1:{added.parent:x}" if added.parent else "1:"
    rate, ceil = (f"{max(8 * each, 8):.0f}bit" for each in (added.assured_bytes_per_s, added.bytes_per_s))
    return (
        f"tc class add dev {device} parent {above} classid 1:{added.minor:x} htb "
        f"rate {rate} ceil {ceil} quantum {_QUANTUM_BYTES}"
    )


def _filter(device: str, way: str, address: str, leaf: _Class) -> str:
    return (
        f"tc filter add dev {device} parent 1: protocol ip prio 1 u32 match ip {way} {address}/32 "
        f"flowid 1:{leaf.minor:x}"
    )


def render(chosen: Sequence[Script], addresses: Sequence[str], undo: bool = False) -> str:
    """The commands of some hosts as one piece of shell, headed by a list of inexact links."""
    shared = list(dict.fromkeys(name for script in chosen for name in script.inexact))
    lines = [
        "# To be run as root. The delays come on top of the cluster's own latency. Needs the kernel modules",
        "# sch_htb, sch_netem and cls_u32, and for links into one host ifb and act_mirred.",
    ]
    if shared:
        lines += [
            "# Not exact: hosts cannot share a link. Each host alone is held to the bandwidth of these, and",
            "# several together may get more:",
            *(f"#   {name}" for name in shared),
        ]
    for script in chosen:
        lines += ["", f"# host {script.host}: {addresses[script.host]}"]
        lines += script.undo if undo else (*script.undo, *script.play)
    if not undo:
        lines += ["", "# to undo it on any host:", *(f"# {command}" for command in chosen[0].undo)]
    return "\n".join(lines) + "\n"
