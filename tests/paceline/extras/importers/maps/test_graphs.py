"""Graphs of other tools: the Topology Zoo, ASTRA-sim, Slurm, NCCL, diloco-measured."""

from __future__ import annotations

import math

import pytest

from paceline.extras.importers.readings import Answers
from paceline.sim.errors import InputError
from tests.paceline.extras.importers.maps.samples import (
    ANSWERS,
    ASTRA,
    GML,
    GRAPHML,
    NCCL,
    PROFILE,
    SLURM,
    network_of,
    read,
)


def test_distance_becomes_latency_and_parallel_links_a_sum() -> None:
    readings = read(GML)
    (link,) = readings.links
    assert link.latency_s == pytest.approx(math.radians(1) * 6371 / 200e3 * 1.5, abs=1e-6)
    assert link.bandwidth_bytes_per_s == pytest.approx(3.5e9 / 8)
    assert readings.hosts == ("A (0)", "A (1)")
    assert any("summed" in note for note in readings.notes)
    assert any("left out: 1 places" in note for note in readings.notes)


def test_what_the_zoo_leaves_out_is_asked() -> None:
    with pytest.raises(InputError, match=r"no coordinates of ring: add --latency '5 ms'"):
        read(GRAPHML)
    with pytest.raises(InputError, match=r"no LinkSpeedRaw of Town - ring, City - ring: add --bandwidth"):
        read(GRAPHML, Answers(latency_s=0.002))
    readings = read(GRAPHML, Answers(latency_s=0.002, bandwidth_bytes_per_s=1e9))
    assert readings.hosts == ("Town", "City")
    assert [link.latency_s for link in readings.links] == [0.002, 0.002]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GML.replace("Latitude 0.0", "Latitude 91.0"), "the Latitude '91.0'"),
        (GML.replace("1000000000.0", '"fast"'), "LinkSpeedRaw 'fast'"),
        (GML.replace("graph [", "graph [ directed 1"), "directed"),
        ("<!DOCTYPE x [<!ENTITY a 'b'>]>\n" + GRAPHML.partition("\n")[2], "file:1: declares entities"),
    ],
)
def test_a_graph_that_is_none_of_the_zoo(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text, ANSWERS)


def test_dimensions_of_astra_sim() -> None:
    network = network_of(ASTRA)
    assert network.num_hosts == 8
    assert network.route(0, 1).latency_s == pytest.approx(500e-9)  # along the ring
    assert network.route(0, 2).latency_s == pytest.approx(1000e-9)
    assert network.route(0, 4).latency_s == pytest.approx(2000e-9)  # through a switch
    rates = sorted({link.bandwidth_bytes_per_s for link in network.links})
    assert rates == pytest.approx([25 * 2**30, 50 * 2**30], rel=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("Ring", "Torus", r"file:1: topology.0: unknown choice 'Torus'; choose from: FullyConnected, Ring"),
        ("[ 4, 2 ]", "[ 4 ]", r"file:2: needs npus_count"),
        ("4, 2", "4.0, 2", r"file:2: npus_count.0: must be a whole number, not 4.0"),
        ("50.0", "-50.0", r"file:3: bandwidth.0: must be at least 1e-06, not -50"),
        ("[ 4, 2 ]", "[ 4, 2.5 ]", r"file:2: npus_count.1: must be a whole number, not 2.5"),
        ("latency: [ 500, 1000.0 ]\n", "", r"file:1: latency: is missing"),
        ("[ 4, 2 ]", "[ 400, 200 ]", r"has 80000 NPUs"),
    ],
)
def test_astra_sim_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(ASTRA.replace(old, new))


def test_slurms_yaml_is_refused_by_its_kind() -> None:
    with pytest.raises(InputError, match="no line of SwitchName"):
        read("- topology: trees\n  tree:\n    switches:\n      - switch: leaf\n        nodes: n[1-2]\n")


def test_slurm_trees() -> None:
    with pytest.raises(InputError, match="add --latency '5 us' --bandwidth"):
        read(SLURM)
    readings = read(SLURM, ANSWERS)
    assert readings.hosts == ("n1", "n2", "login", "n08", "n09", "n10")
    network = network_of(SLURM, ANSWERS)
    assert network.route(0, 1).latency_s == pytest.approx(2e-3)
    assert network.route(0, 3).latency_s == pytest.approx(4e-3)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("leaf[1-2]", "leaf[1-3]", r"no tree of switches: 'leaf3'"),
        ("n[08-10]", "n[2-4]", r"file:3: 'n2' is below leaf1 already"),
        ("n[08-10]", "n[10-08]", r"file:3: 'n\[10-08\]' is no list of names"),
        ("n[08-10]", "n[08-10", r"file:3: .*no list of names"),
        ("SwitchName=spine Switches=leaf[1-2]\n", "", "no tree of switches: 'leaf2'"),
        (
            "SwitchName=spine Switches=leaf[1-2]\n",
            "SwitchName=leaf1 Switches=leaf2\n",
            "needs a switch, once",
        ),
        ("# a comment", "Include other.conf", r"file:1: is no line of SwitchName"),
        ("# a comment", "BlockName=b Nodes=n[1-4]", r"file:1: is no line of SwitchName"),
    ],
)
def test_slurm_refused(old: str, new: str, message: str) -> None:
    assert old in SLURM
    with pytest.raises(InputError, match=message):
        read(SLURM.replace(old, new), ANSWERS)


def test_a_host_whose_gpus_are_told_by_their_class() -> None:
    """As the files that clouds ship for NCCL_TOPO_FILE."""
    devices = "".join(
        f'<pci busid="0000:{n}:00.0" class="{kind}" link_speed="16 GT/s" link_width="16"/>'
        for n, kind in enumerate(["0x030200", "0x030200", "0x020000"])
    )
    switch = f'<pci busid="ffff:ff:01.0" class="0x060400" link_speed="8 GT/s" link_width="16">{devices}</pci>'
    readings = read(f'<system version="1"><cpu numaid="0">{switch}</cpu></system>')
    assert (readings.gpus, readings.paths) == (2, ())
    assert readings.gpu_bandwidth_bytes_per_s == pytest.approx(16e9 / 8 * 16 * 128 / 130)
    assert "1 network cards without a speed here" in readings.notes[2]


def test_a_host_of_nccl() -> None:
    readings = read(NCCL)
    assert readings.gpus == 2
    assert readings.paths[0].bandwidth_bytes_per_s == pytest.approx(300e9 / 8)
    assert readings.gpu_bandwidth_bytes_per_s == pytest.approx(16e9 * 8 / 8 * 128 / 130)
    cut = NCCL.replace('link_speed="16.0 GT/s PCIe" link_width="8"', 'link_speed="Unknown speed"')
    assert read(cut).gpu_bandwidth_bytes_per_s == pytest.approx(16e9 * 16 / 8 * 128 / 130)
    assert any("can be read of GPU 0000:08:00.0" in note for note in read(cut).notes)
    joined = NCCL.replace(
        'gdr="1"/>', 'gdr="1"><nvlink target="0000:c8:00.0" count="12" tclass="0x068000"/></gpu>'
    )
    readings = read(joined)
    assert readings.gpu_bandwidth_bytes_per_s is None
    assert any("does not rate the links" in note for note in readings.notes)


def test_hosts_of_diloco_measured() -> None:
    readings = read(PROFILE)
    assert readings.workers == {"": 2}
    assert readings.paths[0].bandwidth_bytes_per_s == pytest.approx(9e9 / 8)
    assert "8.5 Gbit/s to 9.5 Gbit/s" in readings.notes[0]
    for old, new in (
        ("9.5", '"9.5"'),
        ('"from_node": "10.0.0.1"', '"from_node": "10.0.0.2"'),
        ("9.5", "true"),
    ):
        with pytest.raises(InputError, match=r"^file: iperf_pairs\[0\]: "):
            read(PROFILE.replace(old, new, 1))
    with pytest.raises(InputError, match=r"pairs from 1 Gbit/s to 9.5 Gbit/s, so no single switch"):
        read(PROFILE.replace('"gbit_s": 8.5', '"gbit_s": 1'))
