"""NCCL's topology XML (``NCCL_TOPO_DUMP_FILE``): GPUs and network cards of one host.

Source: ``src/graph/xml.cc`` of NCCL 2: ``speed`` of a card is in Mbit/s, ``link_speed`` that of a lane.
"""

from __future__ import annotations

import math
import re
from xml.etree.ElementTree import Element

from paceline.extras.importers.readings import ForeignFile, PathReading, Readings, parse_xml
from paceline.sim.config.units import format_rate
from paceline.sim.errors import quote


def read(source: ForeignFile) -> Readings:
    """GPUs of a host, its network cards together, and the GPUs' PCIe where no NVLink joins them."""
    root = parse_xml(source)
    devices = [pci for pci in root.iter("pci") if pci.find("gpu") is not None]
    # Files for NCCL_TOPO_FILE may tell GPUs by their PCI class alone.
    devices = devices or [pci for pci in root.iter("pci") if pci.get("class", "").startswith("0x03")]
    if root.tag != "system" or not devices:
        raise source.refuse("is no topology of NCCL: it has no <system> with a GPU")
    if len({cpu.get("host_hash") for cpu in root.iter("cpu")}) > 1:
        raise source.refuse("has several hosts; import the file of a single one")
    cards = [(net.get("name", "?"), _speed(source, net)) for net in root.iter("net")]
    speed = sum(card[1] for card in cards)
    notes = [f"host.gpus: {len(devices)} GPUs"]
    if cards:
        notes += [
            f"bandwidth: {', '.join(name for name, _ in cards)} of a host together, {format_rate(speed)}"
        ]
    bandwidth = None
    if any(next(gpu.iter(name), None) is not None for gpu in devices for name in ("nvlink", "xgmi", "c2c")):
        notes += ["host.bandwidth: unlimited, as the file does not rate the links of its GPUs: add it"]
    else:
        rates = {pci.get("busid", "?"): _pcie(pci) for pci in devices}
        unread = [name for name, rate in rates.items() if rate is None]
        if bandwidth := min((rate for rate in rates.values() if rate is not None), default=None):
            taken = f"{format_rate(bandwidth)} (link_speed x link_width, encoded)"
            notes += [f"host.bandwidth: PCIe of a GPU, {taken}"]
        if unread:
            notes += [f"host.bandwidth: no link_speed and link_width can be read of GPU {', '.join(unread)}"]
    unrated = sum(
        pci.get("class", "").startswith("0x02") and pci.find("nic") is None for pci in root.iter("pci")
    )
    if unrated:
        notes += [
            f"bandwidth: {unrated} network cards without a speed here: add --bandwidth, of all together"
        ]
    notes += ["not used: NUMA nodes, PCIe switches, latencies of cards"]
    paths = (PathReading(bandwidth_bytes_per_s=speed),) if cards else ()
    return Readings(paths=paths, gpus=len(devices), gpu_bandwidth_bytes_per_s=bandwidth, notes=tuple(notes))


def _speed(source: ForeignFile, net: Element) -> float:
    """Bytes per second of a network card."""
    text = net.get("speed", "")
    speed = float(text) if re.fullmatch(r"[0-9]{1,9}(\.[0-9]+)?", text) else math.nan
    if not speed > 0:
        raise source.refuse(f"<net {net.get('name', '')}>: speed {quote(text)} is no number of Mbit/s")
    return speed * 1e6 / 8


def _pcie(pci: Element) -> float | None:
    """Bytes per second of a PCIe link each way, after its line code; None where the file has no speed."""
    lane = re.match(r"([0-9]{1,3}(?:\.[0-9])?) GT/s", pci.get("link_speed", ""))
    lanes = re.fullmatch(r"[0-9]{1,2}", pci.get("link_width", ""))
    if not lane or not lanes or lanes[0] == "0":
        return None
    coding = 0.8 if float(lane[1]) < 8 else 128 / 130
    return float(lane[1]) * 1e9 / 8 * int(lanes[0]) * coding
