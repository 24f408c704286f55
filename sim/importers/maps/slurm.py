"""Slurm's topology.conf and topology.yaml: a tree of switches over nodes, without latencies or bandwidths."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from ...config import yaml_file
from ...config.limits import MAX_GRAPH_HOSTS
from ...errors import quote
from ..readings import ForeignFile, LinkReading, Readings

_KEYS: Final = ("switchname", "nodes", "switches", "linkspeed")


class _Switch(NamedTuple):
    """A switch, with the nodes and switches right below it."""

    line: int
    name: str
    nodes: list[str]
    switches: list[str]


def read(source: ForeignFile) -> Readings:
    """A graph of nodes and switches; ``InputError``: no tree, or no latency and bandwidth of its links."""
    yaml = re.search(r"(?m)^\s*-?\s*topology\s*:", source.text)
    listed = list(_from_yaml(source) if yaml else _from_conf(source))
    switches = {switch.name: switch for switch in listed}
    above: dict[str, str] = {}
    for switch in listed:
        if switches[switch.name] is not switch:
            raise source.refuse(f"has two switches {quote(switch.name)}", switch.line)
        for below in [*switch.nodes, *switch.switches]:
            if below in above:
                raise source.refuse(f"{quote(below)} is below {above[below]} and {switch.name}", switch.line)
            above[below] = switch.name
        for name in switch.switches:
            if name not in switches:
                raise source.refuse(f"has no switch {quote(name)}, which {switch.name} names", switch.line)
        if both := switches.keys() & switch.nodes:
            raise source.refuse(f"{quote(min(both))} is a switch and a node", switch.line)
    tops = [name for name in switches if name not in above]
    reached = tops[:1]
    for name in reached:
        reached += switches[name].switches
    if len(reached) < len(switches) or not above:
        raise source.refuse(
            "is no tree of switches: " + ("it has several tops" if len(tops) > 1 else "it has no top")
        )
    hosts = [node for switch in listed for node in switch.nodes]
    if not 2 <= len(hosts) <= MAX_GRAPH_HOSTS:
        raise source.refuse(f"has {len(hosts)} nodes; 2 to {MAX_GRAPH_HOSTS} can be read")
    latency_s, rate = source.answers.latency_s, source.answers.bandwidth_bytes_per_s
    if latency_s is None or rate is None:
        raise source.refuse(
            "says nothing of its links' speed: add --latency 5us --bandwidth 100Gbit/s, of each"
        )
    links = [LinkReading(below, switch, latency_s, rate) for below, switch in above.items()]
    notes = ("latency, bandwidth: of each link, as you say; LinkSpeed is not used",)
    return Readings(hosts=tuple(hosts), links=tuple(links), notes=notes)


def _from_conf(source: ForeignFile) -> Iterator[_Switch]:
    lines = source.text.splitlines()
    number = 0
    while number < len(lines):
        first, text = number + 1, ""
        while True:
            part = lines[number].split("#")[0].rstrip()
            number += 1
            text += part.removesuffix("\\") + " "
            if not part.endswith("\\") or number == len(lines):
                break
        if text.split()[:1] and text.split()[0].lower() == "include":
            raise source.refuse("includes another file; put its lines in its place", first)
        words = re.findall(r"([A-Za-z]+)\s*=\s*(\S*)", text)
        keys = {key.lower(): value for key, value in words}
        if (
            re.sub(r"[A-Za-z]+\s*=\s*\S*", "", text).strip()
            or not set(keys) <= set(_KEYS)
            or len(keys) < len(words)
        ):
            raise source.refuse("is no line of SwitchName=..., with Nodes=... or Switches=...", first)
        if keys:
            yield _switch(source, first, keys.get("switchname"), keys.get("nodes"), keys.get("switches"))


def _from_yaml(source: ForeignFile) -> Iterator[_Switch]:
    document = yaml_file.parse(source.text, source.name)
    entries = document.value if isinstance(document.value, tuple) else ()
    trees = [
        n for n, each in enumerate(entries) if isinstance(each, dict) and isinstance(each.get("tree"), dict)
    ]
    default = [n for n in trees if entries[n].get("cluster_default") is True] or trees
    if len(default) != 1:
        raise source.refuse(
            "has no tree" if not trees else "has several trees, and no cluster_default among them"
        )
    switches = entries[default[0]]["tree"].get("switches")
    for n, each in enumerate(switches if isinstance(switches, tuple) else ()):
        line = document.place((default[0], "tree", "switches", n)).line
        keys = each if isinstance(each, dict) else {}
        yield _switch(source, line, keys.get("switch"), keys.get("nodes"), keys.get("children"))


def _switch(source: ForeignFile, line: int, name: object, nodes: object, switches: object) -> _Switch:
    below = nodes if switches is None else switches
    if not isinstance(name, str) or not name or not isinstance(below, str) or None not in (nodes, switches):
        raise source.refuse("needs the name of a switch, and either the nodes or the switches below it", line)
    names = _expand(source, line, below)
    return _Switch(line, name, [] if nodes is None else names, [] if switches is None else names)


def _expand(source: ForeignFile, line: int, text: str) -> list[str]:
    """Names in a list such as ``n[1-4,07],login``."""
    names: list[str] = []
    for each in re.split(r",(?![^\[]*\])", text):
        parts = [
            _numbers(part[1:-1]) if part.startswith("[") else [part]
            for part in re.findall(r"\[.*?\]|[^\[]+", each)
        ]
        if (
            not each
            or "]" in re.sub(r"\[[^\[\]]*\]", "", each)
            or not all(parts)
            or math.prod(map(len, parts)) > MAX_GRAPH_HOSTS
        ):
            raise source.refuse(f"{quote(each)} is no list of names such as n[1-4,7]", line)
        names += map("".join, itertools.product(*parts))
    return names


def _numbers(text: str) -> list[str]:
    """Numbers of ranges such as ``1-4,07``, as wide as the first of each; [] for something else."""
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip())
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or not 0 <= last - first < MAX_GRAPH_HOSTS:
            return []
        numbers += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return numbers
