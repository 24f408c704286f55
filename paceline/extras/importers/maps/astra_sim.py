"""Network of ASTRA-sim's analytical backend: dimensions of rings, switches and full meshes.

Bandwidths are in GB/s of 2**30 bytes: ``bw_GBps_to_Bpns`` in ASTRA-sim 2's network backend.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

from paceline.extras.importers.readings import ForeignFile, LinkReading, Readings
from paceline.sim.config import yaml_file
from paceline.sim.config.limits import MAX_GRAPH_HOSTS
from paceline.sim.errors import quote

_SHAPES: Final = ("Ring", "Switch", "FullyConnected")
_BOUNDS: Final = {"npus_count": (2, MAX_GRAPH_HOSTS), "bandwidth": (1e-6, 1e6), "latency": (0, 1e12)}


def read(source: ForeignFile) -> Readings:
    """A graph of NPUs, each a host; ``InputError``: the dimensions do not fit together."""
    document = yaml_file.parse(source.text, source.name)
    data = document.value if isinstance(document.value, dict) else {}
    columns: list[tuple[Any, ...]] = []
    for key in ("topology", *_BOUNDS):
        values, line = data.get(key), document.place((key,)).line
        if not isinstance(values, tuple) or not values or len(values) != len((columns or [values])[0]):
            raise source.refuse(f"needs {key}: [...], with a value for each dimension of the topology", line)
        if wrong := [value for value in values if not _fits(key, value)]:
            least, most = _BOUNDS.get(key, (0, 0))
            number = "whole number" if key == "npus_count" else "number"
            valid = f"a {number} from {least:g} to {most:g}" if most else f"one of {', '.join(_SHAPES)}"
            raise source.refuse(f"{key}: {quote(wrong[0])} is not {valid}", line)
        columns.append(values)
    shapes, counts, gb_per_s, ns = columns
    if math.prod(counts) > MAX_GRAPH_HOSTS:
        raise source.refuse(f"has {math.prod(counts)} NPUs; at most {MAX_GRAPH_HOSTS} can be read")
    links = []
    for axis, shape in enumerate(shapes):
        others = [range(1 if n == axis else count) for n, count in enumerate(counts)]
        for place in itertools.product(*others):
            npus = [_name((*place[:axis], n, *place[axis + 1 :]), counts) for n in range(counts[axis])]
            pairs = _pairs(shape, npus, f"switch{axis + 1}-{_name(place, counts)}")
            links += [LinkReading(a, b, ns[axis] / 1e9, gb_per_s[axis] * 2**30) for a, b in pairs]
    unread = sorted(set(data) - {"topology", *_BOUNDS})
    notes = (
        "latency: of each link, in ns; two NPUs are two links apart at a switch",
        "bandwidth: of each link and direction, in GB/s of 2**30 bytes, as ASTRA-sim takes them",
        *([f"not used: {', '.join(unread)}"] if unread else []),
    )
    hosts = tuple(f"npu{n}" for n in range(math.prod(counts)))
    return Readings(hosts=hosts, links=tuple(links), notes=notes)


def _fits(key: str, value: object) -> bool:
    if key == "topology":
        return value in _SHAPES
    number = isinstance(value, int if key == "npus_count" else int | float) and not isinstance(value, bool)
    return number and _BOUNDS[key][0] <= float(str(value)) <= _BOUNDS[key][1]


def _name(place: tuple[int, ...], counts: tuple[int, ...]) -> str:
    """NPUs count along the first dimension first."""
    return f"npu{sum(n * math.prod(counts[:axis]) for axis, n in enumerate(place))}"


def _pairs(shape: str, npus: list[str], switch: str) -> Iterator[tuple[str, str]]:
    if shape == "Switch":
        return ((npu, switch) for npu in npus)
    if shape == "FullyConnected" or len(npus) == 2:
        return itertools.combinations(npus, 2)
    return itertools.pairwise([*npus, npus[0]])
