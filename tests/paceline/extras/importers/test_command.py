"""``paceline import``, and files of other tools given in place of ours."""

from __future__ import annotations

import gzip
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from paceline.sim.errors import InputError
from paceline.sim.foreign import KINDS
from paceline.sim.scenario.schema import load
from tests.paceline.extras.importers.measured.test_iperf3 import made
from tests.paceline.extras.importers.measured.test_ping import LINUX
from tests.paceline.test_command_line import run
from tests.support.foreign_files import ARGUMENTS, SAMPLES

Patch = pytest.MonkeyPatch
Captured = pytest.CaptureFixture[str]

SCENARIO = """\
name: imported
workload: {timing_only: true, payload: 10 MB}
cluster: {file: cluster.yaml, compute: {time: 50 ms}}
schemes: [all_reduce]
stop: {max_iterations: 20}
"""
PLAIN = SCENARIO.replace("file: cluster.yaml", "workers: 4, network: {latency: 1 ms}")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ping.txt").write_text(LINUX)
    Path("iperf.json").write_text(made([900.0]))
    Path("far.csv").write_text("RTT (ms),us,eu\nus,,8e300\neu,8e300,\n")
    Path("scenario.yaml").write_text(SCENARIO)
    Path("plain.yaml").write_text(PLAIN)


@pytest.mark.usefixtures("little_work")
def test_a_cluster_with_its_sources_is_checked_as_the_output_says(
    monkeypatch: Patch, capsys: Captured
) -> None:
    arguments = ("import", "us-eu=ping.txt", "us-eu=iperf.json", "--workers", 2, "--out", "cluster.yaml")
    status, out, err = run(monkeypatch, capsys, *arguments)
    assert (status, out) == (0, "")
    assert "wrote cluster.yaml\n  ping.txt, output of ping:\n" in err
    assert err.rstrip().endswith(
        "next: write 'cluster: {file: cluster.yaml, compute: {time: 50 ms}}' in a scenario, and run "
        "'paceline check SCENARIO'"
    )
    text = Path("cluster.yaml").read_text()
    assert "#   latency: half of the median round trip of 2 packets, 40.6 ms\n" in text
    assert "#   bandwidth: 900 Mbit/s received by the server, one stream" in text
    assert load("scenario.yaml").cluster.network.of_pairs("latency") == {
        ("us", "eu"): 0.0203, ("eu", "us"): 0.0203,
    }  # fmt: skip
    status, out, _ = run(monkeypatch, capsys, "check", "scenario.yaml")
    assert status == 0
    assert "us 1, eu 1" in out
    status, _, err = run(monkeypatch, capsys, *arguments)  # which replaces its own file
    assert status == 0


@pytest.mark.parametrize("kind", SAMPLES)
@pytest.mark.usefixtures("little_work")
def test_a_cluster_of_each_kind_loads(monkeypatch: Patch, capsys: Captured, kind: str) -> None:
    Path("file").write_text(SAMPLES[kind])
    arguments = ["import", "file", *ARGUMENTS.get(kind, []), "--json", "--out", "cluster.yaml"]
    status, out, _ = run(monkeypatch, capsys, *arguments)
    assert status == 0
    examples = {"workers": "4", "compute": "{time: 50 ms}", "network": "{latency: 1 ms}"}
    changes = [f"cluster.{key}={examples[key]}" for key in json.loads(out)["needed"]]
    Path("scenario.yaml").write_text(SCENARIO.replace(", compute: {time: 50 ms}", ""))
    assert load("scenario.yaml", changes).cluster.workers >= 1
    status, _, _ = run(
        monkeypatch, capsys, "check", "scenario.yaml", *(each for c in changes for each in ("--set", c))
    )
    assert status == 0


def test_json_and_packed_files(monkeypatch: Patch, capsys: Captured) -> None:
    Path("p.gz").write_bytes(gzip.compress(LINUX.encode("utf-16")))
    status, out, _ = run(monkeypatch, capsys, "import", "p.gz", "--json", "--bandwidth", "1 Gbit/s")
    assert status == 0
    answer = json.loads(out)
    assert answer["cluster"] == {"network": {"latency": "20.3 ms", "bandwidth": "1 Gbit/s"}}
    assert answer["needed"] == ["workers", "compute"]
    assert answer["notes"][0] == "bandwidth: 1 Gbit/s, where no file says it"


def test_packed_files_are_read_to_their_end_or_refused(monkeypatch: Patch, capsys: Captured) -> None:
    head, tail = LINUX[:300].encode(), LINUX[300:].encode()
    whole = gzip.compress(head) + gzip.compress(tail)
    Path("two.gz").write_bytes(whole)
    Path("plain.txt").write_text(LINUX)
    packed, plain = (
        run(monkeypatch, capsys, "import", each, "--json")[1] for each in ("two.gz", "plain.txt")
    )
    assert json.loads(packed)["cluster"] == json.loads(plain)["cluster"]
    Path("cut.gz").write_bytes(whole[:-9])
    with zipfile.ZipFile("ping.zip", "w") as archive:
        archive.writestr("ping.txt", LINUX)
    for name in ("cut.gz", "ping.zip"):
        status, _, err = run(monkeypatch, capsys, "import", name)
        assert (status, f"{name}: is a zip archive, or packed by gzip and cut" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["plain.yaml"], r"plain.yaml: is not known as output of ping (ping), "),
        (["ping.txt", "--kind", "pong"], "--kind 'pong': there is no such kind; did you mean 'ping'?"),
        (["ping.txt", "--latency", "3"], "--latency: '3' has no unit"),
        (["ping.txt", "--bandwidth-unit", "Mbps"], "--bandwidth-unit: '1 Mbps' may mean bits or bytes"),
        (["ping.txt", "--out", "plain.yaml"], "plain.yaml is there already, and it is no older file"),
        (["ping.txt", "--kind", "iperf3"], "ping.txt:1: is no whole JSON of 'iperf3 -J'"),
        (["nothing"], "nothing: there is no such file"),
        (["us-eu=nothing"], "nothing: there is no such file"),
        (
            ["us-east-eu=ping.txt"],
            "us-east-eu=ping.txt: write ends in letters, digits and '_', as us_east-eu=FILE",
        ),
        (["far.csv"], "far.csv: no network: between.latency.us-eu: "),
        (["iperf.json"], "no file says the latency: import output of ping too, or add --latency '0.1 ms'"),
    ],
)
def test_refused(monkeypatch: Patch, capsys: Captured, arguments: list[str], message: str) -> None:
    status, _, err = run(monkeypatch, capsys, "import", *arguments)
    assert status == 2
    assert message in err
    assert err.count("\n") == 1


def test_what_unfolds_without_end_is_refused(monkeypatch: Patch, capsys: Captured) -> None:
    Path("bomb.gz").write_bytes(gzip.compress(bytes(400 * 2**20), 1))
    status, _, err = run(monkeypatch, capsys, "import", "bomb.gz")
    assert status == 2
    assert "bomb.gz: is larger than 256 MiB, which is too much" in err


DOORS = {
    "cluster.file": "cluster={file: FILE}",
    "profile": "cluster.profile=FILE",
    "trace, JSON": "cluster.compute={trace: {file: FILE.json}}",
    "trace, CSV": "cluster.compute={trace: {file: FILE.csv}}",
    "attached": "cluster.compute={trace: {attached: FILE}}",
    "graph": "cluster.network={graph: FILE.json}",
    "graph, GraphML": "cluster.network={graph: FILE.graphml}",
    "graph, another name": "cluster.network={graph: FILE}",
    "matrix": (
        "cluster.network={sites: {a: 2, b: 2}, within: {latency: 1 ms}, between: {latency: FILE.csv}}"
    ),
    "variation": "cluster.network.variation=[{links: '*', trace: {file: FILE.csv}}]",
    "layers": "workload.layer_profile=FILE.csv",
    "curves, CSV": "workload={curves: FILE.csv, payload: 1 MB}",
    "curves, JSON": "workload={curves: FILE.jsonl, payload: 1 MB}",
    "curves, Parquet": "workload={curves: FILE.parquet, payload: 1 MB}",
    "topology": "schemes=[{gossip: {topology: {file: FILE.json}}}]",
    "topology, GraphML": "schemes=[{gossip: {topology: {file: FILE.graphml}}}]",
    "topology, list": "schemes=[{gossip: {topology: {file: FILE.txt}}}]",
    "svm": "workload={task: svm, file: FILE, batch_size: 1, optimizer: {lr: 1}}",
}
TAKEN: set[tuple[str, str]] = {("torch-trace", "trace, JSON")}
"""Kinds and doors at which such a file is right."""


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("kind", SAMPLES)
def test_a_foreign_file_beside_a_scenario_is_named(kind: str, door: str) -> None:
    change = DOORS[door].replace("FILE", "f")
    (name,) = re.findall(r"\bf(?:\.\w+)?(?=\}|$|,)", change)
    Path(name).write_text(SAMPLES[kind])
    if (kind, door) in TAKEN:
        load("plain.yaml", [change])
        return
    with pytest.raises(InputError) as error:
        load("plain.yaml", [change])
    sentence = f"is {KINDS[kind].what}; read it with 'paceline import {name} --out cluster.yaml'"
    assert sentence in str(error.value)
    assert "damaged" not in str(error.value)


@pytest.mark.parametrize(
    "content", [str.encode, lambda text: text.encode("utf-16"), lambda t: gzip.compress(t.encode())]
)
@pytest.mark.parametrize(
    "command",
    [
        ["check"], ["simulate"], ["sweep"], ["throughput"], ["recommend"], ["report"], ["replay"],
        ["calibrate", "--out", "profile.yaml"], ["simulate", "plain.yaml", "--profile"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_a_foreign_file_given_to_a_command_is_named(
    monkeypatch: Patch, capsys: Captured, command: list[str], content: Any
) -> None:
    for kind, text in SAMPLES.items():
        Path("f").write_bytes(content(text))
        status, _, err = run(monkeypatch, capsys, *command, "f")
        assert status == 2
        assert f"f: is {KINDS[kind].what}; read it with 'paceline import f --out cluster.yaml'" in err
        assert "damaged" not in err
