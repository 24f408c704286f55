"""Network profile of diloco-measured (``network_profile.v1.json``): iperf3 between the hosts of a cluster."""

from __future__ import annotations

import statistics
from typing import Any, Final

from paceline.extras.importers.readings import ForeignFile, PathReading, Readings
from paceline.sim.config.files import parse_json
from paceline.sim.config.units import format_rate
from paceline.sim.errors import quote

_MAX_RATIO: Final = 1.2
"""Of the fastest pair to the slowest one: else their hosts are not alike behind one switch."""


def read(source: ForeignFile) -> Readings:
    """Hosts behind one switch, with the median of all pairs; ``InputError``: no profile, or unlike pairs."""
    try:
        data = parse_json(source.text)
    except ValueError as error:
        raise source.refuse(f"is no whole JSON: {error}") from None
    pairs = data.get("iperf_pairs") if isinstance(data, dict) else None
    if not isinstance(pairs, list) or not pairs:
        raise source.refuse("is no network profile: it has no iperf_pairs")
    rates = [_rate(source, f"iperf_pairs[{number}]", pair) for number, pair in enumerate(pairs)]
    low, high, median = min(rates), max(rates), statistics.median(rates)
    spread = f"{format_rate(low)} to {format_rate(high)}"
    if high > _MAX_RATIO * low:
        raise source.refuse(
            f"has pairs from {spread}, so no single switch; import iperf3's files, us-eu=FILE"
        )
    hosts = {pair[end] for pair in pairs for end in ("from_node", "to_node")}
    notes = [f"bandwidth: of a host, the median of {len(rates)} pairs, measured one by one: {spread}"]
    notes += ["not used: nccl_curve, shaping_fidelity, burst_decay_curve"]
    if data.get("burst_decay_detected"):
        notes += ["the rate fell in a long transfer: burst_decay_detected"]
    path = PathReading(bandwidth_bytes_per_s=median)
    return Readings(paths=(path,), workers={"": len(hosts)}, notes=tuple(notes))


def _rate(source: ForeignFile, where: str, pair: Any) -> float:
    """Bytes per second of a pair of hosts."""
    names = [pair.get(key) for key in ("from_node", "to_node")] if isinstance(pair, dict) else []
    if not names or not all(isinstance(name, str) and name for name in names) or names[0] == names[1]:
        raise source.refuse(f"{where}: needs from_node and to_node, two names")
    rate = pair.get("gbit_s")
    if isinstance(rate, bool) or not isinstance(rate, int | float) or not 1e-6 < rate < 1e9:
        raise source.refuse(f"{where}: gbit_s {quote(rate)} is no rate")
    return rate * 1e9 / 8
