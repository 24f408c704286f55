"""Transports: the rules of each library, and its constants where there is no profile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from ..collectives.algorithm_registry import algorithms
from ..collectives.pipelines import NEWEST_NCCL, NcclHosts
from .network import Network
from .network_settings import NetworkSettings
from .transfer import TransferModel

AUTO_ALGORITHM: Final = "auto"
"""Leave the all-reduce to the transport."""


@dataclass(frozen=True)
class PackagedFactor:
    """A constant of a library, in SI units, and the interval of its observations."""

    value: float
    low: float
    high: float
    unit: str
    source: str


GLOO_FACTORS: Final[Mapping[str, PackagedFactor]] = MappingProxyType(
    {
        "overhead_s": PackagedFactor(
            1.35e-3,
            0.7e-3,
            1.5e-3,
            "s",
            "software per message or segment: four AWS hosts (six rows of "
            "benchmarks/board/netem_collectives); low: the lab (docs/validation.md)",
        ),
        "buffer_bytes": PackagedFactor(
            4.0 * 2**20, 2.5e6, 2.0**25, "bytes", "Linux: the largest send buffer that is not configured"
        ),
        "efficiency": PackagedFactor(
            0.997, 0.991, 1.0, "of the nominal bandwidth", "the lab (docs/validation.md)"
        ),
    }
)
"""Fields of ``TransferModel`` that hold for gloo on any hosts."""

DEVICE_COPY: Final = PackagedFactor(
    1 / 6e9, 1 / 12e9, 1 / 3e9, "s/byte", "PCIe 3 x16 between pageable host memory and a GPU, each way"
)
"""Cost of a point-to-point message of GPU workers at each end, since it goes over gloo."""

NCCL_LAUNCH: Final = PackagedFactor(
    20e-6,
    8.4e-6,
    60e-6,
    "s",
    "one more collective on one V100, by DDP's buckets of 1 MB and 25 MB: 10 us (ResNet-50, some 30 more) "
    "and 25 us (ResNet-101, some 80 more), pytorch/pytorch at bf69c14, benchmarks/distributed/ddp/README.md; "
    "low: NCCL's own base latency, NVIDIA/nccl at 5067397, src/graph/tuning.cc; high: all that 128 bytes "
    "take on two hosts of H100s, issue 1453 of NVIDIA/nccl",
)
"""Time to launch a collective over NCCL: its kernel, and the proxies of the network."""

NCCL_CONNECT: Final = PackagedFactor(
    0.4, 0.33, 0.52, "s", "first all-reduce of a process against its later ones, four hosts over TCP, "
    "Adnan082/diloco-measured at 07b7885, results/raw",
)  # fmt: skip
"""Time in which a communicator of NCCL connects, at its first collective; counted by ``network.connect``."""


def nccl_hosts(settings: NetworkSettings, network: Network) -> NcclHosts:
    """What decides NCCL's choice on these hosts; their cards have the rate of their access links."""
    known = NEWEST_NCCL
    if settings.nccl is not None:
        known = known._replace(version=tuple(map(int, settings.nccl.split("."))))
    if settings.host is not None and settings.host.bandwidth is not None:
        known = known._replace(inside_bytes_per_s=settings.host.bandwidth)
    routes = (route.links[0] for route in network.routes.values() if route.links)
    rates = [network.links[link].bandwidth_bytes_per_s for link in network.up.values() or routes]
    return known._replace(card_bytes_per_s=min(rates, default=known.card_bytes_per_s))


DDP_SHARE: Final = PackagedFactor(
    0.03,
    0.014,
    0.056,
    "of a gradient's duration",
    "one GPU with DDP and without: ResNet-50 3.1 %, ResNet-101 5.6 %, ResNeXt-50 1.4 %, ResNeXt-101 2.4 %, "
    "pytorch/pytorch at bf69c14, benchmarks/distributed/ddp/README.md (V100, batches of 32)",
)
"""Cost of averaging gradients on a GPU itself: hooks of the backward pass, copies to and from buckets."""


@dataclass(frozen=True)
class TransportRules:
    """Rules of one library.

    Attributes:
        name: as scenarios spell it; empty: versions before there were transports.
        gloo_messages: messages are gloo's: streams, announcements, its constants.
        nccl_collectives: collectives are NCCL's, chosen by size and number of ranks; a worker's go one after
            another, mixes too, and its point-to-point messages are copied from and to devices.
        averaging_share: cost of averaging gradients, as a share of a gradient's duration.
    """

    name: str
    gloo_messages: bool = False
    nccl_collectives: bool = False
    averaging_share: float = 0.0

    @property
    def all_reduces(self) -> tuple[str, ...]:
        """The all-reduces that it can be made to use."""
        return tuple(algorithms("all_reduce", self.name, True))

    @property
    def choices(self) -> tuple[str, ...]:
        """The all-reduces that ``auto`` chooses among; one alone is always taken."""
        return tuple(algorithms("all_reduce", self.name))

    @property
    def by_price(self) -> bool:
        """Whether the algorithm is chosen by its price on the cluster."""
        return len(self.choices) > 1 and not self.nccl_collectives

    def transfer(self, model: TransferModel) -> TransferModel:
        """Apply this library's rules for messages, and its packaged constants, to ``model``."""
        if not self.gloo_messages:
            return model
        factors = GLOO_FACTORS
        return replace(
            model,
            plain_patterns=self.nccl_collectives,
            pattern_overhead_s=model.overhead_s,
            overhead_s=model.overhead_s + factors["overhead_s"].value,
            announcement=max(model.announcement, 1.0),
            streams=True,
            buffer_bytes=factors["buffer_bytes"].value,
            efficiency=model.efficiency if self.nccl_collectives else factors["efficiency"].value,
            device_copy_s_per_byte=2 * DEVICE_COPY.value if self.nccl_collectives else 0.0,
            launch_s=NCCL_LAUNCH.value if self.nccl_collectives else 0.0,
        )


TRANSPORTS: Final[Mapping[str | None, TransportRules]] = MappingProxyType(
    {
        None: TransportRules(""),
        "ideal": TransportRules("ideal"),
        "gloo": TransportRules("gloo", gloo_messages=True),
        "nccl": TransportRules(
            "nccl", gloo_messages=True, nccl_collectives=True, averaging_share=DDP_SHARE.value
        ),
    }
)
"""Rules by name in the scenario; None: a result folder of a version before there were transports."""
