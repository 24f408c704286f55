"""Remarks on a network's numbers: name plates in the place of rates, and connections that take no time."""

from __future__ import annotations

from typing import Final

from ..config.units import format_rate
from .network import Network
from .network_settings import NetworkSettings
from .stock_tcp import payload_share
from .transport import NCCL_CONNECT, TRANSPORTS

_NAME_PLATES: Final = tuple(125e6 * each for each in (1, 10, 25, 40, 100))
"""Nominal rates of Ethernet cards, in bytes per second."""
_MTUS: Final = 1500, 9000
"""Ethernet's default, which stock hosts have, and jumbo frames."""


def remarks(settings: NetworkSettings, network: Network) -> list[str]:
    """Sentences about bandwidths that look like name plates, and about connecting; none over ``ideal``."""
    rules = TRANSPORTS[settings.transport]
    sentences = _about_plates(settings, network) if rules.gloo_messages else []
    if rules.nccl_collectives and not settings.connect:
        known = NCCL_CONNECT
        sentences.append(
            f"Connecting takes no time here; over NCCL a group's first collective takes {known.low:g} to "
            f"{known.high:g} s longer than the later ones: network.connect: {known.value:g} s adds that."
        )
    return sentences


def _about_plates(settings: NetworkSettings, network: Network) -> list[str]:
    inside = {*network.inner_up.values(), *network.inner_down.values()}
    rates = {link.bandwidth_bytes_per_s for k, link in enumerate(network.links) if k not in inside}
    plates = sorted(rates.intersection(_NAME_PLATES))
    if not plates:
        return []
    looks = "looks like a name plate" if len(plates) == 1 else "look like name plates"
    sizes = _MTUS[:1] if settings.tcp is not None else _MTUS
    shares = " or ".join(f"{100 * payload_share(mtu):.1f} % (MTU {mtu})" for mtu in sizes)
    return [
        f"Bandwidths are those of data, and {', '.join(map(format_rate, plates))} {looks}: TCP over Ethernet "
        f"leaves {shares} of it; iperf3 measures the rest."
    ]
