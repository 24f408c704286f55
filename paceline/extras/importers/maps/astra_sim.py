"""Network of ASTRA-sim's analytical backend: dimensions of rings, switches and full meshes.

Bandwidths are in GB/s of 2**30 bytes: ``bw_GBps_to_Bpns`` in ASTRA-sim 2's network backend.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from paceline.extras.importers.readings import ForeignFile, LinkReading, Readings
from paceline.sim.config import yaml_file
from paceline.sim.config.limits import MAX_GRAPH_HOSTS
from paceline.sim.config.settings import Settings


class _Dimensions(Settings):
    """The keys that are read, with a value for each dimension."""

    topology: tuple[Literal["Ring", "Switch", "FullyConnected"], ...] = Field(min_length=1)
    npus_count: tuple[Annotated[int, Field(ge=2, le=MAX_GRAPH_HOSTS)], ...]
    bandwidth: tuple[Annotated[float, Field(ge=1e-6, le=1e6)], ...]
    latency: tuple[Annotated[float, Field(ge=0, le=1e12)], ...]


def read(source: ForeignFile) -> Readings:
    """A graph of NPUs, each a host; ``InputError``: the dimensions do not fit together."""
    document = yaml_file.parse(source.text, source.name)
    data = document.value if isinstance(document.value, dict) else {}
    unread = sorted(data.keys() - _Dimensions.model_fields)
    known = {key: data[key] for key in data.keys() - unread}
    columns = dict(yaml_file.validate_document(_Dimensions, known, source.name, document.place))
    shapes, counts, gb_per_s, ns = columns.values()
    if uneven := [key for key, values in columns.items() if len(values) != len(shapes)]:
        line = document.place((uneven[0],)).line
        raise source.refuse(f"needs {uneven[0]}: [...], with a value for each dimension", line)
    if math.prod(counts) > MAX_GRAPH_HOSTS:
        raise source.refuse(f"has {math.prod(counts)} NPUs; at most {MAX_GRAPH_HOSTS} can be read")
    links = []
    for axis, shape in enumerate(shapes):
        others = [range(1 if n == axis else count) for n, count in enumerate(counts)]
        for place in itertools.product(*others):
            npus = [_name((*place[:axis], n, *place[axis + 1 :]), counts) for n in range(counts[axis])]
            pairs = _pairs(shape, npus, f"switch{axis + 1}-{_name(place, counts)}")
            links += [LinkReading(a, b, ns[axis] / 1e9, gb_per_s[axis] * 2**30) for a, b in pairs]
    notes = (
        "latency: of each link, in ns; two NPUs are two links apart at a switch",
        "bandwidth: of each link and direction, in GB/s of 2**30 bytes, as ASTRA-sim takes them",
        *([f"not used: {', '.join(unread)}"] if unread else []),
    )
    hosts = tuple(f"npu{n}" for n in range(math.prod(counts)))
    return Readings(hosts=hosts, links=tuple(links), notes=notes)


def _name(place: tuple[int, ...], counts: tuple[int, ...]) -> str:
    """NPUs count along the first dimension first."""
    return f"npu{sum(n * math.prod(counts[:axis]) for axis, n in enumerate(place))}"


def _pairs(shape: str, npus: list[str], switch: str) -> Iterator[tuple[str, str]]:
    if shape == "Switch":
        return ((npu, switch) for npu in npus)
    if shape == "FullyConnected" or len(npus) == 2:
        return itertools.combinations(npus, 2)
    return itertools.pairwise([*npus, npus[0]])
