"""Network profile of diloco-measured (``network_profile.v1.json``): iperf3 between all pairs of nodes."""

from __future__ import annotations

from typing import Any

from ...config.files import parse_json
from ...errors import quote
from ..readings import ForeignFile, PathReading, Readings


def read(source: ForeignFile) -> Readings:
    """Bandwidth of each ordered pair; ``InputError``: no such profile, or a pair twice with other rates."""
    try:
        data = parse_json(source.text)
    except ValueError as error:
        raise source.refuse(f"is no whole JSON: {error}") from None
    pairs = data.get("iperf_pairs") if isinstance(data, dict) else None
    if not isinstance(pairs, list) or not pairs:
        raise source.refuse("is no network profile: it has no iperf_pairs")
    rates: dict[tuple[str, str], float] = {}
    for number, pair in enumerate(pairs):
        ends, rate = _pair(source, f"iperf_pairs[{number}]", pair)
        if rates.setdefault(ends, rate) != rate:
            raise source.refuse(
                f"iperf_pairs[{number}]: {' to '.join(ends)} is there twice, with other rates"
            )
    paths = [PathReading(a, b, bandwidth_bytes_per_s=rate, both_ways=False) for (a, b), rate in rates.items()]
    notes = [
        "bandwidth: gbit_s of each ordered pair",
        "not used: nccl_curve, shaping_fidelity, burst_decay_curve",
    ]
    if data.get("burst_decay_detected"):
        notes += ["burst_decay_detected: the rates fell in a long transfer; these are those of the short one"]
    return Readings(paths=tuple(paths), notes=tuple(notes))


def _pair(source: ForeignFile, where: str, pair: Any) -> tuple[tuple[str, str], float]:
    """Sender and receiver, and bytes per second."""
    pair = pair if isinstance(pair, dict) else {}
    names, rate, way = (
        [pair.get(key) for key in ("from_node", "to_node")],
        pair.get("gbit_s"),
        pair.get("direction"),
    )
    if not all(isinstance(name, str) and name for name in names) or names[0] == names[1]:
        raise source.refuse(f"{where}: needs from_node and to_node, two names")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 < rate < 1e9:
        raise source.refuse(f"{where}: gbit_s {quote(rate)} is no rate")
    if way not in ("send", "receive", "recv", "reverse"):
        raise source.refuse(f"{where}: direction {quote(way)} is neither 'send' nor 'receive'")
    a, b = names if way == "send" else names[::-1]
    return (a, b), rate * 1e9 / 8
