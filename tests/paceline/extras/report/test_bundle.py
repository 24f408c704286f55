"""A bundle says what was measured, and not where or by whom; a stranger's is data."""

from __future__ import annotations

import doctest
import getpass
import json
import platform
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.extras.report import bundle
from paceline.reports.page import render
from paceline.sim.config.files import format_json
from paceline.sim.errors import InputError
from paceline.sim.network import profile as profiles
from paceline.sim.records.comparison import compare
from paceline.sim.records.folder import read_results, write_results
from paceline.sim.records.formats.result_files import write_checksums
from paceline.sim.records.run import Machine
from tests.support.made_measurements import TRUE, exact_fit, measurements
from tests.support.made_runs import made_run

HOSTS = ("gpu-17.hpc.example.org", "gpu-18.hpc.example.org")
SCENARIO = """
name: rack
workload: {task: 'adas_models.nets:build', folder: cifar/of/ada, payload: 1 MB}
cluster:
  workers: 2
  hosts: {gpu-17: 1, gpu-18: 1}
  network: {latency: 1 ms, bandwidth: 100 Mbit/s}
schemes: [{all_reduce: {label: 'all_reduce (/home/ada/x.json)'}}, local_sgd]
stop: {target: {metric: test_accuracy, value: 0.95}}
"""
SECRETS = ("gpu-17", "gpu-18", "example.org", "ada", "/home", "10.1.2.3", "lovelace", "cifar")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of ``paceline validate`` that is full of names."""
    labels = ("all_reduce (/home/ada/x.json)", "local_sgd")
    machines = tuple(Machine(host, 1e-5) for host in HOSTS)
    predicted = [
        made_run(label, scheme=label.split(" ")[0], reached_s=10.0 + k) for k, label in enumerate(labels)
    ]
    measured = [
        replace(run, source="measured", machines=machines, message="10.1.2.3 lost by lovelace@gpu-18")
        for run in predicted
    ]
    out = tmp_path / "out-of-ada"
    comparison = compare("rack", predicted, measured, ["gpu-17 is late, see /home/ada/log"], set(), True, [])
    factors = exact_fit().profile.model_copy(update={"machine": "gpu-17, x86_64, 64 cores"})
    probes = measurements(TRUE).model_copy(update={"machine": "gpu-18, x86_64, 64 cores"})
    added = {
        "validation.json": json.dumps(comparison),
        "profile.yaml": profiles.dump(factors),
        "probes.json": format_json(probes),
    }
    write_results(out, SCENARIO, "rack", [*predicted, *measured], added=added)
    return out


def test_the_example_in_the_docstring() -> None:
    assert doctest.testmod(bundle) == (0, 1)


def test_no_names_addresses_or_paths(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(getpass, "getuser", lambda: "lovelace")
    monkeypatch.setattr(Path, "home", lambda: Path("/home/ada"))
    bundle.write_bundle(folder, tmp_path / "b.json")
    text = (tmp_path / "b.json").read_text()
    assert not [secret for secret in SECRETS if re.search(rf"(?<!\w){re.escape(secret)}", text)]
    assert str(tmp_path) not in text
    assert platform.node() not in json.loads(text)["versions"].values()
    document = json.loads(text)
    assert document["scenario"]["cluster"]["hosts"] == {"host-1": 1, "host-2": 1}
    assert document["scenario"]["cluster"]["network"]["bandwidth"] == "100 Mbit/s"
    assert document["scenario"]["workload"] == {
        "task": "own:build",
        "folder": "(left out)",
        "payload": "1 MB",
    }
    assert {m["host"] for m in document["summary"]["runs"][-1]["machines"]} == {"host-1", "host-2"}
    assert document["profile"]["machine"] == document["probes"]["machine"] == "x86_64, 64 cores"
    assert document["comparison"]["warnings"] == ["host-1 is late, see (left out)"]
    assert document["versions"]["python"] == platform.python_version()


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("100 Mbit/s", "100 Mbit/s"),
        ("0.5 s/byte, 1/2 of it", "0.5 s/byte, 1/2 of it"),
        ("2026-11-21T22:36:44+00:00: probes of 4 workers", "2026-11-21T22:36:44+00:00: probes of 4 workers"),
        ("torch 2.13.0+cpu, Linux 6.18.44-fc", "torch 2.13.0+cpu, Linux 6.18.44-fc"),
        ("see ~/x, ../y and C:\\Users\\ada", "see (left out), (left out) and (left out)"),
        ("data/cifar", "(left out)"),
        ("fe80::1:2 and 192.168.0.7:29500", "(left out) and (left out):29500"),
        ("node-9x", "node-9x"),
        ("on node-9, node-9.example.org.", "on host-1, host-1."),
        ("v", "host-2"),
        ("five v", "five v"),
    ],
)
def test_texts(text: str, clean: str) -> None:
    names = bundle.stand_ins(["node-9.example.org", "v"], [])
    assert bundle.anonymise(text, names) == clean


def test_an_opened_bundle_holds_the_same_results(folder: Path, tmp_path: Path) -> None:
    bundle.write_bundle(folder, tmp_path / "b.json")
    opened, content = bundle.unpack(tmp_path / "b.json", tmp_path / "scratch")
    before, after = read_results(folder), read_results(opened)
    assert [run["wall_clock_s"] for run in after.summary["runs"]] == [10.0, 11.0, 10.0, 11.0]
    assert after.summary["summary"][1] == before.summary["summary"][1]
    assert after.metrics["test_accuracy"].tolist() == before.metrics["test_accuracy"].tolist()
    assert "made with paceline" in bundle.describe_bundle(tmp_path / "b.json", content)


@pytest.mark.slow
def test_the_page_of_a_bundle_is_escaped(folder: Path, tmp_path: Path) -> None:
    bundle.write_bundle(folder, tmp_path / "b.json")
    text = (tmp_path / "b.json").read_text().replace("local_sgd", "<script>alert(1)<b>")
    (tmp_path / "b.json").write_text(text)
    page = render([bundle.unpack(tmp_path / "b.json", tmp_path / "scratch")[0]])
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "Predicted and measured" in page


def test_another_folder_makes_no_bundle(folder: Path, tmp_path: Path) -> None:
    (folder / "validation.json").unlink()
    write_checksums(folder)
    with pytest.raises(InputError, match=r"is no folder of 'paceline validate': it has no validation\.json"):
        bundle.write_bundle(folder, tmp_path / "b.json")
    assert not (tmp_path / "b.json").exists()


def test_only_a_bundle_is_replaced(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "b.json"
    bundle.write_bundle(folder, out)
    bundle.write_bundle(folder, out)
    out.write_text('{"my": "own"}')
    with pytest.raises(InputError, match="is there already, and it is no bundle"):
        bundle.write_bundle(folder, out)
    with pytest.raises(InputError, match=r"there is no folder .*nothing"):
        bundle.write_bundle(folder, tmp_path / "nothing" / ".." / "b.json")
    assert out.read_text() == '{"my": "own"}'


def changed(**changes: Any) -> Any:
    return lambda document: {**document, **changes}


def in_summary(key: str, value: Any) -> Any:
    return lambda document: {**document, "summary": {**document["summary"], key: value}}


def in_metrics(key: str, value: Any) -> Any:
    return lambda document: {**document, "metrics": {**document["metrics"], key: value}}


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda document: [document], "is no file of 'paceline report --bundle'"),
        (changed(version=2), "is of another version, or of another kind: 2, not 1"),
        (changed(code="os.system"), "code"),
        (changed(metrics=[]), "metrics"),
        (changed(summary={}), "is no file of a result folder"),
        (in_summary("runs", "all"), "is damaged: runs"),
        (in_summary("winner", 5), "is damaged: winner"),
        (changed(comparison={"decision": {}}), "is damaged: comparison"),
        (in_metrics("time_s", [1.0]), "is damaged"),
        (in_metrics("time_s", ["../../etc/passwd"] * 12), "is damaged"),
        (in_metrics("step", [2**80] * 12), "is damaged"),
        (in_metrics("step", ["1"] * 12), "is damaged: step holds string, not int"),
        (in_metrics("time_s", [None] * 12), "is damaged"),
        (lambda document: {k: v for k, v in document.items() if k != "scenario"}, "scenario"),
    ],
)  # fmt: skip
def test_hostile_bundles(damage: Any, says: str, folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    bundle.write_bundle(folder, path)
    path.write_text(json.dumps(damage(json.loads(path.read_text()))))
    with pytest.raises(InputError) as error:
        bundle.unpack(path, tmp_path / "scratch")
    assert says in str(error.value)
    assert "scratch" not in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_of_a_result_folder_names_the_folder(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"name the folder, {re.escape(str(folder))}"):
        bundle.unpack(folder / "summary.json", tmp_path / "scratch")


@pytest.mark.parametrize("text", ["", "[" * 5000, "{", "\x00", '{"version": 1e999}', '{"version": NaN}', "é"])
def test_what_is_no_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(text, encoding="latin-1")
    with pytest.raises(InputError, match=re.escape(str(tmp_path / "b.json"))):
        bundle.unpack(tmp_path / "b.json", tmp_path / "scratch")


def test_a_bundle_without_end_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle, "MAX_BUNDLE_BYTES", 2**20)
    (tmp_path / "b.json").write_bytes(b" " * (2**20 + 1))
    with pytest.raises(InputError, match="is larger than 1 MiB"):
        bundle.read_bundle(tmp_path / "b.json")
