"""Short files of each kind, in our own words and numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from paceline.extras.importers import IMPORTERS
from paceline.extras.importers.cluster import cluster_of
from paceline.extras.importers.readings import Answers, ForeignFile, Readings
from paceline.sim.foreign import foreign_kind
from paceline.sim.network.build import build_network
from paceline.sim.network.network import Network
from paceline.sim.network.network_settings import NetworkSettings

CSV = "RTT (ms),us,eu,asia\nus,,80,150\neu,80,,210\nasia,150,210,\n"
MARKDOWN = """\
Ping round trip ms / Mbit/s; rows receive, columns send.

| | us | eu |
|---|---|---|
| us | - | 67/790 |
| eu | 69/1,150 Mbit/s | \u2013 |
"""
HTML = """\
<html><head><title>Round trips in ms</title><style>td { margin: 1 (s) }</style></head><body>
<table><tr><td>menu</td></tr></table>
<table><tr><th></th><th>us-east-1</th><th>S&atilde;o Paulo (sa)</th></tr>
<tr><td>us-east-1</td><td>&mdash;</td><td>120.5&nbsp;ms</td></tr>
<tr><td>S&atilde;o Paulo (sa)</td><td>n/a</td><td>0 ms</td></tr></table></body></html>
"""
GML = """\
graph [
  Network "Two towns"
  node [ id 0 label "A" Latitude 0.0 Longitude 0.0 Internal 1 ]
  node [ id 1 label "A" Latitude 0.0 Longitude 1.0 Internal 1 ]
  node [ id 2 label "Abroad" Internal 0 ]
  edge [ source 0 target 1 LinkSpeedRaw 1000000000.0 ]
  edge [ source 0 target 1 LinkSpeedRaw 2500000000.0 ]
  edge [ source 1 target 2 LinkSpeedRaw 1000000000.0 ]
]
"""
GRAPHML = """\
<?xml version="1.0" encoding="utf-8"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key attr.name="Latitude" attr.type="double" for="node" id="d1"/>
<key attr.name="Longitude" attr.type="double" for="node" id="d2"/>
<key attr.name="label" attr.type="string" for="node" id="d3"/>
<key attr.name="hyperedge" attr.type="int" for="node" id="d4"/>
<graph edgedefault="undirected">
<node id="0"><data key="d1">50.0</data><data key="d2">8.0</data><data key="d3">Town</data></node>
<node id="1"><data key="d1">51.0</data><data key="d2">8.0</data><data key="d3">City</data></node>
<node id="2"><data key="d3">ring</data><data key="d4">1</data></node>
<edge source="0" target="2"/><edge source="2" target="1"/>
</graph></graphml>
"""
PLATFORM = """\
<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <zone id="all" routing="Full">
    <host id="h1" speed="3Gf,1Gf"/><host id="h2" speed="1Gf"/><router id="r"/>
    <link id="a" bandwidth="125MBps" latency="100us"/>
    <link id="b" bandwidth="1Gbps" latency="2ms" sharing_policy="SPLITDUPLEX"/>
    <route src="h1" dst="h2"><link_ctn id="a"/><link_ctn id="b" direction="UP"/></route>
  </zone>
</platform>
"""
FLOYD = """\
<platform version="4">
  <AS id="all" routing="Floyd">
    <host id="h1" power="1Gf"/><host id="h2" power="1Gf"/><host id="h3" power="1Gf"/><router id="r"/>
    <link id="a" bandwidth="125MBps" latency="100us"/><link id="b" bandwidth="1Gbps" latency="2ms"/>
    <link id="wide" bandwidth="1.25GBps" latency="10ms" sharing_policy="FATPIPE"/>
    <link id="d" bandwidth="1Gbps" latency="2ms"/>
    <route src="h1" dst="r"><link_ctn id="a"/></route>
    <route src="r" dst="h2"><link_ctn id="b"/></route>
    <route src="r" dst="h3"><link_ctn id="wide"/><link_ctn id="d"/></route>
  </AS>
</platform>
"""
ASTRA = """\
topology: [ Ring, Switch ]
npus_count: [ 4, 2 ]
bandwidth: [ 50.0, 25 ]  # GB/s
latency: [ 500, 1000.0 ]
"""
SLURM = """\
# a comment
SwitchName=leaf1 Nodes=n[1-2],login LinkSpeed=100
switchname=leaf2 \\
  nodes=n[08-10]
SwitchName=spine Switches=leaf[1-2]
"""
NCCL = """\
<system version="1">
  <cpu numaid="0" affinity="ffff" arch="x86_64">
    <pci busid="0000:07:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="16">
      <gpu dev="0" sm="80" rank="0" gdr="1"/></pci>
    <pci busid="0000:08:00.0" class="0x030200" link_speed="16.0 GT/s PCIe" link_width="8">
      <gpu dev="1" sm="80" rank="1" gdr="1"/></pci>
    <nic><net name="mlx5_0" dev="0" speed="200000" port="1" latency="0.0"/>
         <net name="mlx5_1" dev="1" speed="100000" port="1" latency="0.0"/></nic>
  </cpu>
</system>
"""
PROFILE = """\
{"profile_id": "p", "captured_at": "2026-08-14T16:36:20Z", "cluster_id": "c",
 "iperf_pairs": [
  {"from_node": "10.0.0.1", "to_node": "10.0.0.2", "direction": "send", "gbit_s": 9.5, "duration_s": 60},
  {"from_node": "10.0.0.2", "to_node": "10.0.0.1", "direction": "send", "gbit_s": 8.5, "duration_s": 60}],
 "nccl_curve": [{"msg_bytes": 1048576, "achieved_bps": 8.5e9}], "shaping_fidelity": [],
 "burst_decay_detected": false}
"""

SAMPLES: Final = {
    "region-matrix": (CSV, MARKDOWN, HTML),
    "topology-zoo": (GML, GRAPHML),
    "simgrid": (PLATFORM, FLOYD),
    "astra-sim": (ASTRA,),
    "slurm": (SLURM,),
    "nccl-topology": (NCCL,),
    "diloco-profile": (PROFILE,),
}
NONE: Final = Answers()
ANSWERS: Final = Answers(latency_s=1e-3, bandwidth_bytes_per_s=125e6)
"""For files that name only the ends of links."""


def read(text: str, answers: Answers = NONE) -> Readings:
    """What a text says, by its own kind."""
    kind = foreign_kind(text)
    assert kind is not None
    return IMPORTERS[kind](ForeignFile("file", text, answers=answers))


def network_of(text: str, answers: Answers = NONE, workers: int | None = None) -> Network:
    """The network that a scenario gets from a text."""
    cluster, _ = cluster_of({"file": read(text, answers)}, replace(answers, workers=workers))
    settings = NetworkSettings.model_validate(cluster["network"])
    return build_network(settings, cluster["workers"])
