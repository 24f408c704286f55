"""Network of ASTRA-sim's analytical backend: dimensions of rings, switches and full meshes.

Bandwidths are per link and direction, in GB/s of 2**30 bytes; latencies per link, in ns. Source: ASTRA-sim 2.0,
``bw_GBps_to_Bpns`` of its network backend.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Final

from ...config import yaml_file
from ...config.limits import MAX_GRAPH_HOSTS
from ...errors import InputError, did_you_mean, quote
from ..readings import ForeignFile, LinkReading, Readings

_SHAPES: Final = ("Ring", "Switch", "FullyConnected")
_BOUNDS: Final = {"npus_count": (2, MAX_GRAPH_HOSTS), "bandwidth": (1e-6, 1e6), "latency": (0, 1e12)}


def read(source: ForeignFile) -> Readings:
    """A graph of NPUs, each a host; ``InputError``: the dimensions do not fit together."""
    document = yaml_file.parse(source.text, source.name)
    data = document.value if isinstance(document.value, dict) else {}
    lists = {key: data.get(key) for key in ("topology", *_BOUNDS)}
    for key, values in lists.items():
        if not isinstance(values, tuple) or not values or len(values) != len(lists["topology"] or ()):
            line = document.place((key,)).line
            raise source.refuse(f"needs {key}, a list with an entry for each dimension of the topology", line)
        for value in values:
            _check(source, key, value, document.place((key,)).line)
    counts = lists["npus_count"]
    if math.prod(counts) > MAX_GRAPH_HOSTS:
        raise source.refuse(f"has {math.prod(counts)} NPUs; at most {MAX_GRAPH_HOSTS} can be read")
    links = []
    for axis, (shape, gb_per_s, ns) in enumerate(
        zip(lists["topology"], lists["bandwidth"], lists["latency"], strict=True)
    ):
        for line in itertools.product(*(range(1 if n == axis else count) for n, count in enumerate(counts))):
            npus = [_name((*line[:axis], n, *line[axis + 1 :]), counts) for n in range(counts[axis])]
            switch = f"switch{axis + 1}-{'-'.join(map(str, line))}"
            links += [LinkReading(a, b, ns / 1e9, gb_per_s * 2**30) for a, b in _pairs(shape, npus, switch)]
    hosts = [
        _name(place[::-1], counts) for place in itertools.product(*(range(count) for count in counts[::-1]))
    ]
    unread = sorted(set(data) - set(lists))
    return Readings(
        hosts=tuple(hosts),
        links=tuple(links),
        notes=(
            "latency: of each link, in ns; a switch is two links away",
            "bandwidth: of each link and direction, in GB/s of 2**30 bytes as ASTRA-sim takes them",
            *([f"not used: {', '.join(unread)}"] if unread else []),
        ),
    )


def _check(source: ForeignFile, key: str, value: Any, line: int) -> None:
    if key == "topology":
        if value not in _SHAPES:
            raise source.refuse(
                f"topology: {quote(value)} is not read; {did_you_mean(str(value), _SHAPES)}", line
            )
        return
    least, most = _BOUNDS[key]
    whole = isinstance(value, int) if key == "npus_count" else isinstance(value, int | float)
    if isinstance(value, bool) or not whole or not least <= value <= most:
        raise source.refuse(f"{key}: {quote(value)} is no number from {least:g} to {most:g}", line)


def _name(place: tuple[int, ...], counts: tuple[int, ...]) -> str:
    """NPUs count along the first dimension first."""
    strides = itertools.accumulate(counts[:-1], lambda a, b: a * b, initial=1)
    return f"npu{sum(n * stride for n, stride in zip(place, strides, strict=True))}"


def _pairs(shape: str, npus: list[str], switch: str) -> Iterator[tuple[str, str]]:
    if shape == "Switch":
        return ((npu, switch) for npu in npus)
    if shape == "FullyConnected" or len(npus) < 3:
        return itertools.combinations(npus, 2)
    return zip(npus, [*npus[1:], npus[0]], strict=True)
