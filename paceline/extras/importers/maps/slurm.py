"""Slurm's topology.conf: a tree of switches over nodes, without latencies or bandwidths."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator

from paceline.extras.importers.readings import ForeignFile, LinkReading, Readings
from paceline.sim.config.limits import MAX_GRAPH_HOSTS
from paceline.sim.errors import quote


def read(source: ForeignFile) -> Readings:
    """A graph of nodes and switches; ``InputError``: no tree, or no latency and bandwidth of its links."""
    hosts: list[str] = []
    below: dict[str, list[str]] = {}
    above: dict[str, str] = {}
    for line, keys in _switches(source):
        name, nodes, switches = (keys.get(key) for key in ("switchname", "nodes", "switches"))
        names = nodes or switches
        if not name or not names or (nodes and switches) or name in below:
            raise source.refuse("needs a switch, once, and either the nodes or the switches below it", line)
        below[name] = _expand(source, line, names)
        hosts += below[name] if nodes else []
        for each in below[name]:
            if each in above:
                raise source.refuse(f"{quote(each)} is below {above[each]} already", line)
            above[each] = name
    reached = [name for name in below if name not in above][:1]
    for name in reached:
        reached += below.get(name, ())
    unclear = (set(below) | set(above)) - set(reached) or (set(above) - set(hosts)) ^ (
        set(below) - set(reached[:1])
    )
    if unclear or not above:
        raise source.refuse(
            f"is no tree of switches: {quote(min(unclear, default=''))} is not below its top, or no switch"
        )
    if not 2 <= len(hosts) <= MAX_GRAPH_HOSTS:
        raise source.refuse(f"has {len(hosts)} nodes; 2 to {MAX_GRAPH_HOSTS} can be read")
    latency_s, rate = source.answers.latency_s, source.answers.bandwidth_bytes_per_s
    if latency_s is None or rate is None:
        raise source.refuse("does not rate its links: add --latency '5 us' --bandwidth '100 Gbit/s', of each")
    links = tuple(LinkReading(name, switch, latency_s, rate) for name, switch in above.items())
    notes = ("latency, bandwidth: of each link, as you say; LinkSpeed is not used",)
    return Readings(hosts=tuple(hosts), links=links, notes=notes)


def _switches(source: ForeignFile) -> Iterator[tuple[int, dict[str, str]]]:
    """Line and values of each switch, by keys in small letters."""
    text = re.sub(r"(?m)#.*$", "", source.text)
    for match in re.finditer(r"(?:.*\\[ \t\r]*\n)*.+", text):  # a backslash continues a line
        line, words = text.count("\n", 0, match.start()) + 1, match[0].replace("\\", " ").split()
        keys = {key.lower(): value for key, _, value in (word.partition("=") for word in words)}
        if not keys.keys() <= {"switchname", "nodes", "switches", "linkspeed"} or len(keys) < len(words):
            raise source.refuse("is no line of SwitchName=... with Nodes=... or Switches=...", line)
        if keys:
            yield line, keys


def _expand(source: ForeignFile, line: int, text: str) -> list[str]:
    """Names in a list such as ``n[1-4,07],login``."""
    names: list[str] = []
    for each in re.split(r",(?![^\[]*\])", text):
        parts = [
            _numbers(part[1:-1]) if part[0] == "[" else [part] for part in re.findall(r"\[.*?\]|[^\[]+", each)
        ]
        whole = re.fullmatch(r"([^\[\],]|\[[\d,-]+\])+", each)
        if not whole or not 0 < math.prod(map(len, parts)) <= MAX_GRAPH_HOSTS:
            raise source.refuse(f"{quote(each)} is no list of names such as n[1-4,7]", line)
        names += map("".join, itertools.product(*parts))
    return names


def _numbers(text: str) -> list[str]:
    """Numbers of ranges such as ``1-4,07``, as wide as the first of each; [] for something else."""
    numbers: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if match is None or not 0 <= last - first < MAX_GRAPH_HOSTS:
            return []
        numbers += [f"{number:0{len(match[1])}d}" for number in range(first, last + 1)]
    return numbers
